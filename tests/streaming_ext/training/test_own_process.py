"""A script that trains in a process of its own: its imports, its workers, and its end."""

import subprocess
import sys

THEIRS = "raise SystemExit('this is not part of shardmill')\n"
TRAIN = """
import multiprocessing, sys, threading, time

import torch, xxhash
from torch.utils.data import DataLoader

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader

# As with "spawn", workers get all by pickles; but what takes long to import is imported once.
NOT_FORKED = {"num_workers": 1, "multiprocessing_context": "forkserver"}


def dataset():
    return StreamingTokenDataset(
        remote=sys.argv[1], local=sys.argv[2], batch_size=8, sequence_length=8, shuffle=True
    )


def epoch(batches):
    return torch.cat([batch["tokens"] for batch in batches])


def read_for_ever(views):
    while True:
        for view in views.values():
            xxhash.xxh3_128_hexdigest(view)


if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(["streaming_ext.training.loader"])
    expected = StreamingTokenLoader(dataset())
    first, second = epoch(expected), epoch(expected)
    assert not torch.equal(first, second)
    plain = DataLoader(dataset(), batch_size=8, persistent_workers=True, **NOT_FORKED)
    assert torch.equal(epoch(StreamingTokenLoader(dataset(), **NOT_FORKED)), first)
    assert torch.equal(epoch(plain), first)
    assert torch.equal(epoch(plain), second)
    views = dataset().reader.shards.views(range(100))
    for _ in range(4):
        threading.Thread(target=read_for_ever, args=(views,), daemon=True).start()
    time.sleep(0.05)
    print(len(first))
"""


def test_workers_that_are_not_forked_beside_the_users_own_tasks_and_threads_that_read_at_the_end(
    packed, tmp_path
) -> None:
    """The user's folder has its own `flows` and `tasks`; threads still read when Python ends."""
    folder = tmp_path / "theirs"
    for name in ("flows.py", "tasks.py", "flows/__init__.py", "tasks/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(THEIRS)
    (folder / "train.py").write_text(TRAIN)
    command = [sys.executable, "train.py", packed.root, tmp_path / "cache"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 500
