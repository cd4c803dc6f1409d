"""Arguments of stock StreamingDataset: each is accepted, or refused with one clear error."""

import inspect

import pytest

from streaming_ext import StreamingTokenDataset
from streaming_ext.base.errors import UsageError
from streaming_ext.training.stock import streaming

STOCK = set(inspect.signature(streaming.StreamingDataset.__init__).parameters) - {"self"}
OURS = set(inspect.signature(StreamingTokenDataset.__init__).parameters)


@pytest.mark.parametrize("name", sorted(STOCK - OURS))
def test_each_has_an_answer(name) -> None:
    with pytest.raises(UsageError, match=f"`{name}` is an argument of stock StreamingDataset: "):
        StreamingTokenDataset(local="nowhere", **{name: None})


def test_others_are_python_s_own_error(open_raw) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'bach_size'"):
        open_raw(bach_size=3)


@pytest.mark.parametrize("name", ["per_device", None])
def test_other_ways_to_make_batches(open_raw, name) -> None:
    with pytest.raises(UsageError, match="`batching_method` must be 'random' or 'stratified' or"):
        open_raw(batching_method=name)
