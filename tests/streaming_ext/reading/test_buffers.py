"""Memory comes back when nothing refers to it any more, whatever the interpreter counts."""

import gc
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streaming_ext import StreamingTokenLoader
from streaming_ext.reading.buffers import Buffers

SHAPE = (3, 8)
INTERPRETERS = [Path(p) for p in os.environ.get("SHARDMILL_PYTHONS", "").split(os.pathsep) if p]


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


KEEPERS: dict[str, Callable[[np.ndarray], Any]] = {
    "the array": lambda array: array,
    "a view": lambda array: array[1:],
    "a view of a view": lambda array: array[1:].reshape(-1)[2:].view(np.int32),
    "a memoryview": memoryview,
    "a tensor": torch.from_numpy,
    "a view of a tensor": lambda array: torch.from_numpy(array)[2, 1:],
    "an array of a tensor": lambda array: torch.from_numpy(array)[1].numpy(),
    "what autograd keeps": lambda array: (
        torch.ones(SHAPE, requires_grad=True) * torch.from_numpy(array)
    ).sum(),
}


@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS.keys())
def test_memory_is_used_again_only_when_nothing_refers_to_it(keep: Callable[..., Any]) -> None:
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


def test_batches_that_are_held_ahead_stay_whole_where_references_are_counted_otherwise(
    open_raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on interpreters that lend references to the stack instead of counting them (3.14)."""
    counted = sys.getrefcount
    expected = [batch["tokens"].clone() for batch in StreamingTokenLoader(open_raw())]
    monkeypatch.setattr(sys, "getrefcount", lambda value: counted(value) - 2)
    held = [batch["tokens"] for batch in StreamingTokenLoader(open_raw())]
    assert len(held) > 20
    assert all((a == b).all() for a, b in zip(held, expected, strict=True))


@pytest.mark.skipif(not INTERPRETERS, reason="SHARDMILL_PYTHONS names no other interpreter")
@pytest.mark.parametrize("python", INTERPRETERS, ids=str)
def test_with_other_interpreters(python: Path) -> None:
    """The same with their own numpy, where they have one."""
    if subprocess.run([python, "-c", "import numpy"], check=False).returncode:
        pytest.skip(f"{python} has no numpy")
    code = """
from importlib.util import module_from_spec, spec_from_file_location
import sys, numpy as np
spec = spec_from_file_location("buffers", sys.argv[1])
module = module_from_spec(spec); spec.loader.exec_module(module)
buffers = module.Buffers()
array = buffers.take((3, 8), np.int64); place = array.ctypes.data
view = array[1:].reshape(-1)[2:]; del array
assert buffers.take((3, 8), np.int64).ctypes.data != place
del view
held = [buffers.take((3, 8), np.int64) for _ in range(2)]
assert place in [each.ctypes.data for each in held], "memory did not come back"
"""
    source = Path(sys.modules[Buffers.__module__].__file__ or "")
    subprocess.run([python, "-c", code, source], check=True, env=dict(os.environ))


@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_arrays_begin_at_a_page(kind: type) -> None:
    """Copies between them are slow on some processors where they stand otherwise."""
    buffers = Buffers()
    arrays = [buffers.take(SHAPE, kind) for _ in range(5)] + [buffers.take((0, 8), kind)]
    assert {address(array) % mmap.PAGESIZE for array in arrays} == {0}
