"""What a chain gives does not depend on how long blocks happen to be: it is what a loop over single
samples gives, beyond the lengths of blocks that steps take at once, and behind a resume too."""

from itertools import islice
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streaming_ext.transforms import CheckpointableDataset
from tests.streaming_ext.transforms.cuts import Cuts

Chain = CheckpointableDataset


def ids_of(samples: Any) -> Any:
    return {"input_ids": [sample["id"] for sample in samples]}


@pytest.mark.parametrize("kind", ["arrays", "samples", "own"])
@settings(max_examples=12, deadline=None)
@given(
    size=st.one_of(st.integers(1, 130), st.integers(1000, 5000)), count=st.integers(0, 12_000),
    drop_last=st.booleans(), seed=st.integers(0, 2**32), at=st.floats(0, 1),
)  # fmt: skip
@example(size=10, count=9_000, drop_last=True, seed=0, at=0.9)
def test_only_the_last_batch_is_short(
    kind: str, *, size: int, count: int, drop_last: bool, seed: int, at: float
) -> None:
    """As arrays cut out of columns, of samples one by one, by a function of its user."""

    def make() -> Chain:
        numbers = Cuts(seed).numbers(count)
        if kind == "own":
            return numbers.batch(size, ids_of, drop_last)
        alone = numbers.map(lambda sample: {"input_ids": [sample["id"]]})
        if kind == "samples":
            return alone.map(lambda sample: {"input_ids": sample["input_ids"][0]}).batch(
                size, drop_last=drop_last
            )
        return alone.concat_chunk(1).batch(size, drop_last=drop_last)

    def numbers_of(batch: Any) -> list[int]:
        return [int(number) for number in batch["input_ids"]]

    wanted = [list(range(begin, min(begin + size, count))) for begin in range(0, count, size)]
    if drop_last and wanted and len(wanted[-1]) < size:
        wanted.pop()
    behind = int(at * len(wanted))
    with make().iter() as batches:
        found = [numbers_of(batch) for batch in islice(batches, behind)]
        state = batches.state_dict()
        found += map(numbers_of, batches)
    assert found == wanted
    with make().iter(state) as rest:
        assert [*map(numbers_of, rest)] == wanted[behind:]
