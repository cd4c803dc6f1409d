"""Training in a folder that holds the user's own `flows` and `tasks`."""

import subprocess
import sys
from pathlib import Path

from tests.streaming_ext.build import Built

THEIRS = "raise SystemExit('this is not part of shardmill')\n"
TRAIN = """
import sys

import torch

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader


def epoch(workers, how):
    dataset = StreamingTokenDataset(
        remote=sys.argv[1], local=sys.argv[2], batch_size=8, sequence_length=8, shuffle=True
    )
    loader = StreamingTokenLoader(dataset, num_workers=workers, multiprocessing_context=how)
    return torch.cat([batch["tokens"] for batch in loader])


if __name__ == "__main__":
    expected = epoch(0, None)
    assert torch.equal(epoch(1, "spawn"), expected)
    print(len(expected))
"""


def test_training_with_a_spawned_worker(packed: Built, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    for name in ("flows.py", "tasks.py", "flows/__init__.py", "tasks/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(THEIRS)
    (folder / "train.py").write_text(TRAIN)
    ended = subprocess.run(
        [sys.executable, "train.py", packed.root, tmp_path / "cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 500
