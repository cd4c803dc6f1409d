"""Memory is reused once nothing refers to it, whatever references the interpreter counts."""

import gc
import mmap
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from streaming_ext.reading.buffers import Buffers
from tests.command_line import run_program

SHAPE = (3, 8)


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


KEEPERS: dict[str, Callable[[np.ndarray], Any]] = {
    "a view of a view": lambda array: array[1:].reshape(-1)[2:].view(np.int32),
    "a memoryview": memoryview,
    "a view of a tensor": lambda array: torch.from_numpy(array)[2, 1:],
    "an array of a tensor": lambda array: torch.from_numpy(array)[1].numpy(),
    "what autograd keeps": lambda array: (
        torch.ones(SHAPE, requires_grad=True) * torch.from_numpy(array)
    ).sum(),
}


@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS.keys())
def test_memory_is_used_again_only_when_nothing_refers_to_it(keep) -> None:
    buffers = Buffers()
    array = buffers.take(SHAPE, np.int64)
    array[...] = 7
    position = address(array)
    kept = keep(array)
    del array
    others = [buffers.take(SHAPE, np.int64) for _ in range(3)]
    assert position not in map(address, others)
    for other in others:
        other[...] = -1
    del kept
    gc.collect()
    assert position == address(buffers.take(SHAPE, np.int64))


def test_arrays_of_other_kinds_have_memory_of_their_own() -> None:
    buffers = Buffers()
    position = address(buffers.take(SHAPE, np.int64))
    assert buffers.take((3, 16), np.int32).nbytes == 3 * 8 * 8
    assert address(buffers.take(SHAPE, np.int64)) == position
    assert buffers.take((0, 8), np.int64).shape == (0, 8)


def test_no_more_than_some_blocks_wait() -> None:
    buffers = Buffers()
    arrays = [buffers.take(SHAPE, np.int64) for _ in range(40)]
    assert len(set(map(address, arrays))) == 40
    del arrays
    (kind,) = buffers._kinds.values()
    assert len(kind.idle) == len(kind.blocks) == 16


@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_arrays_begin_at_a_page(kind) -> None:
    """Copies between arrays that are not aligned are slow on some processors."""
    buffers = Buffers()
    arrays = [buffers.take(SHAPE, kind) for _ in range(5)] + [buffers.take((0, 8), kind)]
    assert {address(array) % mmap.PAGESIZE for array in arrays} == {0}


def test_an_array_may_live_until_the_process_has_cleared_this_module() -> None:
    """Python clears modules in the reverse order of their import: `json` last."""
    program = """
import json, sys
import numpy as np
from streaming_ext.reading import buffers
sys.kept = json, buffers
json.owner = buffers.Buffers()
json.array = json.owner.take((3, 8), np.int64)
"""
    ended = run_program(sys.executable, "-c", program)
    assert (ended.returncode, ended.stderr) == (0, "")
