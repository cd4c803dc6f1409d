"""Two ranks of a chain under torchrun are killed in the middle; one goes on with the next batch."""

from pathlib import Path

import pytest

from streaming_ext.transforms import CheckpointableDataset
from tests.streaming_ext.from_text.test_text_torchrun import run

TRAIN = """
import json, pathlib, sys

import torch.distributed as dist

from streaming_ext.transforms import CheckpointableLoader
from tests.streaming_ext.transforms.test_torchrun import chain

folder, vocabulary, told = sys.argv[1:]
dist.init_process_group("gloo")
rank, ranks, told = dist.get_rank(), dist.get_world_size(), pathlib.Path(told)
loader = CheckpointableLoader(chain(folder, vocabulary), num_workers=1, samples_in_message=2)
if told.exists():
    loader.load_state_dict(json.loads(told.read_text()))
for batch in loader:
    rows = [None] * ranks
    dist.all_gather_object(rows, batch["input_ids"][rank::ranks].tolist())
    if rank == 0:
        told.with_suffix(".new").write_text(json.dumps(loader.state_dict()))
        told.with_suffix(".new").replace(told)
        print(json.dumps([batch["step"][0].item(), sorted(sum(rows, []))]), flush=True)
    dist.barrier()
dist.destroy_process_group()
"""


def chain(folder: str, vocabulary: str) -> CheckpointableDataset:
    """Batches of all ranks, with the number of their first row."""
    files = CheckpointableDataset.from_files(folder, n_active_shards=2, shuffle_shards=True)
    tokens = files.tokenize(vocabulary, pattern="gpt2").ensure_bos_eos(vocabulary, pattern="gpt2")
    return tokens.concat_chunk(16).shuffle(20).enumerate().batch(4, drop_last=True)


@pytest.mark.soak
def test_killed_on_two_ranks_and_resumed_on_one(
    folder: Path, vocabulary: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    whole = {one["step"][0].item(): sorted(one["input_ids"].tolist())
             for one in chain(str(folder), str(vocabulary))}  # fmt: skip
    assert len(whole) > 25
    arguments: list[str | Path] = [script, folder, vocabulary, tmp_path / "state.json"]
    before = run(arguments, 2, kill_after=36)
    after = run(arguments, 1, kill_after=None)
    assert 36 <= max(before) < max(whole)
    assert min(after) in (max(before), max(before) + 4)  # the state may be one batch ahead of us
    assert before == {step: rows for step, rows in whole.items() if step <= max(before)}
    assert after == {step: rows for step, rows in whole.items() if step >= min(after)}
