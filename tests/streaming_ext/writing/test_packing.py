"""Raw shards of a token stream: nothing lost, nothing twice, padding at the very end."""

import resource
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.format.record import SplitPart
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.writing.split_writer import Memory, SplitWriter
from tests.tasks.core.doubles import make_spec

SPEC = make_spec()  # samples of 4 tokens, 3 per shard
EOT = SPEC.tokenizer.eot_id


def pack(
    ids: Sequence[int],
    spec: DatasetSpec = SPEC,
    *,
    cuts: Sequence[int] = (),
    memory: Memory | None = None,
) -> tuple[SplitPart, list[int]]:
    """Write a split of a stream in arrays cut at `cuts`; return it, and the ids on the disk."""
    with TemporaryDirectory() as folder:
        writer = SplitWriter(Path(folder), 0, spec, memory or Memory())
        for some in np.split(np.array(ids, spec.dtype), sorted(min(at, len(ids)) for at in cuts)):
            writer.add(some, 1)
        made = writer.finish()
        stored = [(Path(folder) / shard.name).read_bytes() for shard in made.shards]
    assert made.tokens == len(ids)
    assert made.documents == 1 + len(cuts)
    tokens = [
        spec.shard_format.tokens_of(raw, shard.samples).reshape(-1)  # checks size and header
        for raw, shard in zip(stored, made.shards, strict=True)
    ]
    return made, [number for each in tokens for number in each.tolist()]


@settings(max_examples=40, deadline=None)
@given(
    num_tokens=st.integers(0, 20_000),
    cuts=st.lists(st.integers(0, 20_000), max_size=5),
    length=st.integers(1, 3000),
    spare=st.integers(0, 50_000),
    kept=st.booleans(),
)
def test_shards_hold_the_stream(num_tokens, cuts, length, spare, kept) -> None:
    spec = make_spec(sequence_length=length, shard_size=300 + length * 4 + spare)
    form = spec.shard_format
    memory = Memory(np.full(2 * form.shard_size, 255, np.uint8)) if kept else None
    made, ids = pack(range(num_tokens), spec, cuts=cuts, memory=memory)
    assert ids[:num_tokens] == list(range(num_tokens))
    assert ids[num_tokens:] == [EOT] * made.padding
    assert 0 <= made.padding < length
    assert form.raw_size(form.samples_per_shard) <= form.shard_size
    if made.shards:
        *full, last = made.shards
        assert all(shard.samples == form.samples_per_shard for shard in full)
        assert 1 <= last.samples <= form.samples_per_shard


def test_memory_grows_with_what_a_large_shard_holds(monkeypatch) -> None:
    monkeypatch.setattr("streaming_ext.writing.split_writer._FIRST_BYTES", 64)
    memory = Memory()
    spec = make_spec(shard_size=2**20)
    _, ids = pack(range(20_000), spec, cuts=range(0, 20_000, 500), memory=memory)
    assert ids == list(range(20_000))
    assert len(memory.data) < spec.shard_size  # as much as the ids need, not a whole shard


def test_a_split_of_few_documents_takes_little_memory() -> None:
    """A shard may need 64 MiB, but memory that was never written to takes no room."""
    before, memory = resident_bytes(), Memory()
    pack(range(100), make_spec(shard_size=2**26), memory=memory)
    assert len(memory.data) > 0.9 * 2**26
    assert resident_bytes() - before < 2**25


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
