"""Raw shards of a token stream: nothing lost, nothing twice, padding at the very end."""

import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_ext.base.errors import UsageError
from streaming_ext.format.mds import MdsFormat
from streaming_ext.writing.split_writer import Memory, ShardPacker
from tests.tasks.core.doubles import make_spec

FORMAT = make_spec().shard_format  # samples of 4 tokens, 3 a shard
EOT = 9


@dataclass
class Packed:
    """A raw shard, copied out of the buffer."""

    samples: int
    padding: int
    ids: list[int]


def packer_of(form: MdsFormat, memory: Memory) -> ShardPacker:
    return ShardPacker(form, EOT, memory)


def pack(
    ids: Sequence[int],
    form: MdsFormat = FORMAT,
    *,
    cuts: Sequence[int] = (),
    memory: Memory | None = None,
) -> list[Packed]:
    """The shards of a stream that comes in pieces, cut at `cuts`."""
    packer = packer_of(form, memory or Memory())
    found: list[Packed] = []
    pieces = np.split(np.array(ids, form.dtype), sorted(min(cut, len(ids)) for cut in cuts))
    steps = [*(packer.add(piece) for piece in pieces), packer.finish()]
    for raw in (raw for step in steps for raw in step):
        tokens = form.tokens_of(raw.data, raw.samples)  # checks size and header
        found.append(Packed(raw.samples, raw.padding, tokens.reshape(-1).tolist()))
    assert packer.tokens == len(ids)
    return found


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [
        (0, []),
        (1, [(1, 3)]),
        (4, [(1, 0)]),
        (5, [(2, 3)]),
        (12, [(3, 0)]),
        (13, [(3, 0), (1, 3)]),
        (24, [(3, 0), (3, 0)]),
        (31, [(3, 0), (3, 0), (2, 1)]),
    ],
)
def test_truth_table(num_tokens: int, expected: list[tuple[int, int]]) -> None:
    assert FORMAT.samples_per_shard == 3
    assert [(each.samples, each.padding) for each in pack(range(num_tokens))] == expected


@given(
    num_tokens=st.integers(0, 20_000),
    cuts=st.lists(st.integers(0, 20_000), max_size=5),
    length=st.integers(1, 3000),
    spare=st.integers(0, 50_000),
    dtype=st.sampled_from(["uint16", "uint32"]),
    kept=st.booleans(),
)
def test_shards_hold_the_stream(
    num_tokens: int, cuts: list[int], length: int, spare: int, dtype: str, kept: bool
) -> None:
    form = MdsFormat(
        sequence_length=length,
        dtype=dtype,  # type: ignore[arg-type]
        shard_size=300 + length * 4 + spare,
        compression="none",
    )
    memory = Memory(np.full(2 * form.shard_size, 255, np.uint8)) if kept else None
    shards = pack(range(num_tokens), form, cuts=cuts, memory=memory)
    ids = [each for shard in shards for each in shard.ids]
    assert ids[:num_tokens] == list(range(num_tokens))
    assert ids[num_tokens:] == [EOT] * sum(shard.padding for shard in shards)
    assert form.raw_size(form.samples_per_shard) <= form.shard_size
    if shards:
        *full, last = shards
        assert all((each.samples, each.padding) == (form.samples_per_shard, 0) for each in full)
        assert 1 <= last.samples <= form.samples_per_shard
        assert 0 <= last.padding < length


@given(num_tokens=st.integers(1, 5000), shard_size=st.integers(204, 2000))
def test_counts_are_those_of_mds_writer(num_tokens: int, shard_size: int) -> None:
    """Its rule: begin a new shard where the next sample would make this one too large."""
    form = MdsFormat(sequence_length=4, dtype="uint16", shard_size=shard_size, compression="none")
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
            pack(range(num_tokens), form)
    else:
        assert [each.samples for each in pack(range(num_tokens), form)] == counts


def test_memory_is_kept_where_it_is_large_enough() -> None:
    memory = Memory()
    packer_of(FORMAT, memory)
    first = memory.data
    packer_of(FORMAT, memory)
    assert memory.data is first
    memory.data = np.empty(10, np.uint8)
    packer_of(FORMAT, memory)
    assert len(memory.data) >= len(first)


def test_memory_grows_with_what_a_large_shard_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming_ext.writing.split_writer._FIRST_BYTES", 64)
    form = MdsFormat(sequence_length=4, dtype="uint16", shard_size=2**20, compression="none")
    memory = Memory()
    shards = pack(range(20_000), form, cuts=range(0, 20_000, 500), memory=memory)
    assert [each for shard in shards for each in shard.ids] == list(range(20_000))
    assert len(memory.data) < form.shard_size  # as much as there was to hold, not a whole shard


def test_a_split_of_few_documents_takes_little_memory() -> None:
    """Of the 64 MiB that a shard may need, what was never written to."""
    form = MdsFormat(sequence_length=4, dtype="uint16", shard_size=2**26, compression="none")
    before, memory = resident_bytes(), Memory()
    pack(range(100), form, memory=memory)
    assert len(memory.data) > 0.9 * 2**26
    assert resident_bytes() - before < 2**25


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
