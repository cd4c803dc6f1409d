"""The output `mds`: a token stream cut into MDS shards as it comes; no token is dropped."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streaming_ext.format.compression import Compression
from streaming_ext.format.mds import MdsFormat
from streaming_ext.format.record import SplitPart
from streaming_ext.format.shard import Shard
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.writing.split_writer import Memory, store_shard

_ALIGNMENT = 16
_FIRST_BYTES = 64 * 2**20  # of memory; shards that are larger get more when they hold so much


class MdsSplitWriter:
    """One split of a part as MDS shards; see `SplitWriter` for the words."""

    def __init__(self, folder: Path, part: int, spec: DatasetSpec, memory: Memory) -> None:
        self._folder = folder
        self._part = part
        self._compression = Compression.parse(spec.compression)
        self._format = MdsFormat(
            sequence_length=spec.sequence_length,
            dtype=spec.dtype,
            shard_size=spec.shard_size,
            compression=spec.compression,
        )
        self._packer = ShardPacker(self._format, spec.tokenizer.eot_id, memory)
        self._shards: list[Shard] = []
        self._documents = self._padding = 0

    def add(
        self,
        stream: npt.NDArray[Any],
        rows: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
    ) -> None:
        """Append documents to the stream; a sample may hold the end of one and begin the next."""
        self._documents += len(lengths)
        for raw in self._packer.add(stream):
            self._store(raw)

    def finish(self) -> SplitPart:
        """Write the last shard."""
        for raw in self._packer.finish():
            self._store(raw)
        return SplitPart(
            documents=self._documents,
            tokens=self._packer.tokens,
            padding=self._padding,
            shards=tuple(self._shards),
        )

    def _store(self, raw: "RawShard") -> None:
        name = self._format.shard_names(self._folder.name, self._part, len(self._shards))[0]
        self._shards.append(
            store_shard(
                self._folder, name, raw.data, samples=raw.samples, compression=self._compression
            )
        )
        self._padding += raw.padding


@dataclass(frozen=True, slots=True)
class RawShard:
    """The bytes of one raw shard, valid until the next one is asked for.

    Attributes:
        samples: how many it holds.
        padding: end-of-text ids that fill up its last sample.
        data: header and samples.
    """

    samples: int
    padding: int
    data: memoryview


class ShardPacker:
    """Collects tokens into full shards and a last one, in one piece of memory.

    Only the last sample of all is padded, up to `sequence_length`.
    """

    def __init__(self, shard_format: MdsFormat, eot_id: int, memory: Memory) -> None:
        """Begin with an empty shard.

        Args:
            shard_format: how samples are stored.
            eot_id: what the last sample is filled up with.
            memory: to be used where it is large enough, and to grow where it is not.
        """
        self._format = shard_format
        self._eot = eot_id
        self._dtype = np.dtype(shard_format.dtype).newbyteorder("<")
        header = len(shard_format.header(shard_format.samples_per_shard))
        # A shard of fewer samples has a shorter header: it ends where the samples begin.
        self._begin = header + -header % _ALIGNMENT
        self._full = shard_format.samples_per_shard * shard_format.sequence_length
        self._held = 0
        self._memory = memory
        # room: (tokens of a full shard, or of as much of it as there is memory for yet,)
        self._room = np.empty(0, self._dtype)
        self._make_room(min(self._full, _FIRST_BYTES // self._dtype.itemsize))
        self.tokens = 0

    def add(self, tokens: npt.NDArray[Any]) -> Iterator[RawShard]:
        """Append tokens; yields each shard that becomes full. To be exhausted."""
        self.tokens += len(tokens)
        while len(tokens):
            taken = min(len(tokens), self._full - self._held)
            self._make_room(self._held + taken)
            self._room[self._held : self._held + taken] = tokens[:taken]
            self._held += taken
            tokens = tokens[taken:]
            if self._held == self._full:
                yield self._cut()

    def finish(self) -> Iterator[RawShard]:
        """The last shard, if any token is left for it."""
        if self._held:
            yield self._cut()

    def _make_room(self, tokens: int) -> None:
        if tokens <= len(self._room):
            return
        tokens = min(self._full, max(tokens, 2 * len(self._room)))
        size = self._begin + tokens * self._dtype.itemsize
        held = self._room[: self._held]
        if len(self._memory.data) < size:
            self._memory.data = np.empty(size, np.uint8)
        possible = (len(self._memory.data) - self._begin) // self._dtype.itemsize
        room = np.frombuffer(self._memory.data, self._dtype, min(self._full, possible), self._begin)
        room[: self._held] = held
        self._room = room

    def _cut(self) -> RawShard:
        samples = -(-self._held // self._format.sequence_length)
        end = samples * self._format.sequence_length
        self._make_room(end)
        self._room[self._held : end] = self._eot
        padding, self._held = end - self._held, 0
        header = self._format.header(samples)
        start = self._begin - len(header)
        data = self._memory.data.data
        data[start : self._begin] = header
        return RawShard(samples, padding, data[start : self._begin + end * self._dtype.itemsize])
