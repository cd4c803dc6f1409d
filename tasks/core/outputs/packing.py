"""Cutting a token stream into raw shards as it comes; no token is dropped."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.formats.mds import ShardFormat

_ALIGNMENT = 16


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
    """Collects tokens into full shards and a last one, in one buffer.

    Only the last sample of all is padded, up to `sequence_length`.
    """

    def __init__(self, shard_format: ShardFormat, eot_id: int, buffer: bytearray | None) -> None:
        """Begin with an empty shard.

        Args:
            shard_format: how samples are stored.
            eot_id: what the last sample is filled up with.
            buffer: to be used if it is large enough, which saves fresh pages; see `buffer`.
        """
        self._format = shard_format
        self._eot = eot_id
        dtype = np.dtype(shard_format.dtype).newbyteorder("<")
        header = len(shard_format.header(shard_format.samples_per_shard))
        # A shard of fewer samples has a shorter header: it ends where the samples begin.
        self._begin = header + -header % _ALIGNMENT
        capacity = shard_format.samples_per_shard * shard_format.sequence_length
        size = self._begin + capacity * dtype.itemsize
        self.buffer = buffer if buffer is not None and len(buffer) >= size else bytearray(size)
        self._bytes = memoryview(self.buffer)
        # room: (tokens of a full shard,)
        self._room = np.frombuffer(self.buffer, dtype, capacity, self._begin)
        self._held = 0
        self.tokens = 0

    def add(self, tokens: npt.NDArray[Any]) -> Iterator[RawShard]:
        """Append tokens; yields each shard that becomes full. To be exhausted."""
        self.tokens += len(tokens)
        while len(tokens):
            taken = min(len(tokens), len(self._room) - self._held)
            self._room[self._held : self._held + taken] = tokens[:taken]
            self._held += taken
            tokens = tokens[taken:]
            if self._held == len(self._room):
                yield self._cut()

    def finish(self) -> Iterator[RawShard]:
        """The last shard, if any token is left for it."""
        if self._held:
            yield self._cut()

    def _cut(self) -> RawShard:
        samples = -(-self._held // self._format.sequence_length)
        end = samples * self._format.sequence_length
        self._room[self._held : end] = self._eot
        padding, self._held = end - self._held, 0
        header = self._format.header(samples)
        start = self._begin - len(header)
        self._bytes[start : self._begin] = header
        stop = self._begin + end * self._room.itemsize
        return RawShard(samples, padding, self._bytes[start:stop])
