"""Slices of a token stream: nothing lost, nothing twice, padding at the very end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_ext.errors import UsageError
from streaming_ext.format import ShardFormat
from tasks.core.packing import ShardSlice, cut
from tests.tasks.core.doubles import make_spec

FORMAT = make_spec().shard_format  # samples of 4 tokens, 3 a shard


def piece(start: int, end: int, padding: int, samples: int) -> ShardSlice:
    return ShardSlice(start=start, end=end, padding=padding, samples=samples)


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [
        (0, []),
        (1, [piece(0, 1, 3, 1)]),
        (4, [piece(0, 4, 0, 1)]),
        (5, [piece(0, 5, 3, 2)]),
        (12, [piece(0, 12, 0, 3)]),
        (13, [piece(0, 12, 0, 3), piece(12, 13, 3, 1)]),
        (24, [piece(0, 12, 0, 3), piece(12, 24, 0, 3)]),
        (31, [piece(0, 12, 0, 3), piece(12, 24, 0, 3), piece(24, 31, 1, 2)]),
    ],
)
def test_truth_table(num_tokens: int, expected: list[ShardSlice]) -> None:
    assert FORMAT.samples_per_shard == 3
    assert cut(num_tokens, FORMAT) == expected


@given(
    num_tokens=st.integers(0, 200_000),
    length=st.integers(1, 3000),
    spare=st.integers(0, 50_000),
    dtype=st.sampled_from(["uint16", "uint32"]),
)
def test_slices_cover_the_stream(num_tokens: int, length: int, spare: int, dtype: str) -> None:
    form = ShardFormat(
        sequence_length=length,
        dtype=dtype,  # type: ignore[arg-type]
        shard_size=300 + length * 4 + spare,
        compression="none",
    )
    slices = cut(num_tokens, form)
    position = 0
    for each in slices:
        assert each.start == position < each.end
        assert each.end - each.start + each.padding == each.samples * length
        position = each.end
    assert position == num_tokens
    if slices:
        *full, last = slices
        assert all((each.samples, each.padding) == (form.samples_per_shard, 0) for each in full)
        assert 1 <= last.samples <= form.samples_per_shard
        assert 0 <= last.padding < length
        assert form.raw_size(form.samples_per_shard) <= form.shard_size


@given(num_tokens=st.integers(1, 5000), shard_size=st.integers(204, 2000))
def test_counts_are_those_of_mds_writer(num_tokens: int, shard_size: int) -> None:
    """Its rule: begin a new shard where the next sample would make this one too large."""
    form = ShardFormat(sequence_length=4, dtype="uint16", shard_size=shard_size, compression="none")
    empty = form.raw_size(0)
    counts, size = [0], empty
    for _ in range(-(-num_tokens // 4)):
        if size + 12 > shard_size:  # 8 bytes of tokens, 4 of offset
            counts.append(0)
            size = empty
        counts[-1] += 1
        size += 12
    if counts[0] == 0:  # not even one fits
        with pytest.raises(UsageError):
            cut(num_tokens, form)
    else:
        assert [each.samples for each in cut(num_tokens, form)] == counts
