"""Helpers for tests of chains: samples as plain values, and a resume at every position."""

import copy
import json
from collections.abc import Callable
from typing import Any

import torch

from streaming_ext.transforms import CheckpointableDataset, CheckpointableIterator

NUMBERED = [{"id": n, "input_ids": list(range(n, n + n % 5))} for n in range(41)]


def plain(value: Any) -> Any:
    """Return a sample without tensors."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return value.tolist() if isinstance(value, torch.Tensor) else value


def subset_of(
    dataset: CheckpointableDataset, number: int, workers: int, state: Any = None
) -> CheckpointableIterator:
    """Return the pass of one of several workers."""
    return CheckpointableIterator(dataset, (number, workers), state)


def samples_of(dataset: CheckpointableDataset) -> list[Any]:
    return [plain(sample) for sample in dataset]


def require_resumes(make: Callable[[], CheckpointableDataset], *, some: int = 1) -> list[Any]:
    """Resume after every sample in a new dataset; return the samples of a whole pass.

    A state must be JSON, and must not change when it is used.
    """
    samples, states = [], []
    with make().iter() as all_samples:
        states.append(all_samples.state_dict())
        for sample in all_samples:
            samples.append(plain(sample))
            states.append(all_samples.state_dict())
    assert len(samples) >= some, "nothing was produced"
    for position, state in enumerate(states):
        saved = json.loads(json.dumps(state))
        before = copy.deepcopy(saved)
        with make().iter(state_dict=saved) as rest:
            assert [plain(sample) for sample in rest] == samples[position:], position
        assert saved == before
    return samples


def batches_of(folder: str, vocabulary: str) -> CheckpointableDataset:
    """Return batches of all ranks, with the number of their first row."""
    files = CheckpointableDataset.from_files(folder, n_active_shards=2, shuffle_shards=True)
    tokens = files.tokenize(vocabulary, pattern="gpt2").ensure_bos_eos(vocabulary, pattern="gpt2")
    return tokens.concat_chunk(16).shuffle(20).enumerate().batch(4, drop_last=True)
