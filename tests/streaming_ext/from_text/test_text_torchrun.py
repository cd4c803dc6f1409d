"""Two ranks under torchrun are killed in the middle; one goes on with the rows that come next."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streaming_ext import StreamingTokenLoader
from tests.streaming_ext.from_text.conftest import Open
from tests.streaming_ext.trainers.recipes import ROOT
from tests.streaming_ext.trainers.test_recipes import descendants

TRAIN = """
import json, os, pathlib, sys

import torch.distributed as dist

from streaming_ext import StreamingTextDataset, StreamingTokenLoader

folder, vocabulary, cache, told = sys.argv[1:]
dist.init_process_group("gloo")
ranks, told = dist.get_world_size(), pathlib.Path(told)
dataset = StreamingTextDataset(
    sources=folder, tokenizer=vocabulary, pattern="gpt2", local=cache, sequence_length=32,
    batch_size=8 // ranks, shuffle=True, shuffle_block_size=50, shard_size=2000,
    extras=["sequence_ids"],
)
loader = StreamingTokenLoader(dataset, num_workers=1)
if told.exists():
    loader.load_state_dict(json.loads(told.read_text()))
for batch in loader:
    rows = [None] * ranks
    dist.all_gather_object(rows, batch["sequence_ids"].tolist())
    if dist.get_rank() == 0:
        told.with_suffix(".new").write_text(json.dumps(loader.state_dict()))
        told.with_suffix(".new").replace(told)
        print(json.dumps([loader.step, sorted(sum(rows, []))]), flush=True)
    dist.barrier()
dist.destroy_process_group()
"""


def run(arguments: list[str | Path], ranks: int, *, kill_after: int | None) -> dict[int, list[int]]:
    """The rows of each step that was told of."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
               "--nproc-per-node", str(ranks), *map(str, arguments)]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    steps = {}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            step, rows = json.loads(line)
            steps[step] = rows
            if step == kill_after:
                for pid in [*descendants(process.pid), process.pid]:
                    os.kill(pid, signal.SIGKILL)
        assert process.wait(240) == (0 if kill_after is None else -signal.SIGKILL)
    return steps


@pytest.mark.soak
def test_killed_on_two_ranks_and_resumed_on_one(
    open_text: Open, folder: Path, vocabulary: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    arguments = [script, folder, vocabulary, tmp_path / "cache", tmp_path / "state.json"]
    loader = StreamingTokenLoader(open_text(batch_size=8))
    whole = {n + 1: sorted(batch["sequence_ids"].tolist()) for n, batch in enumerate(loader)}
    before = run(arguments, 2, kill_after=17)
    after = run(arguments, 1, kill_after=None)
    assert 17 <= max(before) < len(whole)
    assert min(after) in (max(before), max(before) + 1)  # the state may be one step ahead of us
    assert before == {step: rows for step, rows in whole.items() if step <= max(before)}
    assert after == {step: rows for step, rows in whole.items() if step >= min(after)}
