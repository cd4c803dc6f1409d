"""The writer of the shards of one split of a part."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import ceil_div
from streaming_ext.format.compression import Compression
from streaming_ext.format.layout import Split
from streaming_ext.format.record import SplitPart
from streaming_ext.format.schema import content_hash
from streaming_ext.format.shard import Shard
from streaming_ext.format.spec import DatasetSpec

_ALIGNMENT = 16
_FIRST_BYTES = 64 * 2**20  # of memory; larger shards get more when they need it


@dataclass(slots=True)
class Memory:
    """Memory in which a split is packed, or into which it is read, for one part after another.

    It is reused because getting fresh pages takes as long as filling them. Pages that were never
    written to take no memory, so a holdout of few documents takes little.

    Attributes:
        data: the memory, with any content, uint8 (bytes,).
    """

    data: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))

    def of(self, size: int) -> npt.NDArray[np.uint8]:
        """Return `size` bytes; if the memory is too small, get new memory and lose the content."""
        if len(self.data) < size:
            self.data = np.empty(size, np.uint8)
        return self.data[:size]


Memories = dict[Split, Memory]


class SplitWriter:
    """A writer that cuts the token stream of one split of a part into shards; no token is dropped.

    The tokens of a shard are collected in one span of memory. Only the last sample of the split is
    padded, up to `sequence_length`.
    """

    def __init__(self, folder: Path, part: int, spec: DatasetSpec, memory: Memory) -> None:
        """Start with no shard.

        Args:
            folder: the folder of the split, on scratch.
            part: number of the part.
            spec: the specification of the dataset.
            memory: the memory for packing; it grows if it is too small.
        """
        self._folder, self._part, self._memory = folder, part, memory
        self._format, self._eot = spec.shard_format, spec.tokenizer.eot_id
        self._compression = Compression.parse(spec.compression)
        size = len(self._format.header(self._format.samples_per_shard))
        # A shard of fewer samples has a shorter header, which also ends where the samples begin.
        self._begin = size + -size % _ALIGNMENT
        self._full = self._format.samples_per_shard * spec.sequence_length  # tokens
        self._held = 0
        # room: (tokens,), at most a full shard
        self._room = np.empty(0, self._format.id_type)
        self._make_room(min(self._full, _FIRST_BYTES // self._room.itemsize))
        self._shards: list[Shard] = []
        self._documents = self._tokens = self._samples = 0

    def add(self, stream: npt.NDArray[Any], documents: int) -> None:
        """Append whole documents; a sample may hold the end of one and the beginning of the next.

        Args:
            stream: their ids, with an end-of-text id after each document, (tokens,).
            documents: the number of documents.
        """
        self._documents += documents
        self._tokens += len(stream)
        while len(stream):
            taken = min(len(stream), self._full - self._held)
            self._make_room(self._held + taken)
            self._room[self._held : self._held + taken] = stream[:taken]
            self._held += taken
            stream = stream[taken:]
            if self._held == self._full:
                self._store()

    def finish(self) -> SplitPart:
        """Write the last shard; end-of-text ids fill its last sample."""
        if self._held:
            self._store()
        return SplitPart(
            documents=self._documents,
            tokens=self._tokens,
            padding=self._samples * self._format.sequence_length - self._tokens,
            shards=tuple(self._shards),
        )

    def _make_room(self, tokens: int) -> None:
        """Get memory for this many tokens of a shard; collected tokens stay."""
        if tokens <= len(self._room):
            return
        tokens = min(self._full, max(tokens, 2 * len(self._room)))
        held = self._room[: self._held]
        memory = self._memory.of(self._begin + tokens * held.itemsize)
        self._room = np.frombuffer(memory, self._format.id_type, offset=self._begin)
        self._room[: self._held] = held

    def _store(self) -> None:
        """Write the collected tokens as a shard."""
        samples = ceil_div(self._held, self._format.sequence_length)
        end = samples * self._format.sequence_length
        self._make_room(end)
        self._room[self._held : end] = self._eot
        self._held = 0
        header = self._format.header(samples)
        start = self._begin - len(header)
        data = self._memory.data.data
        data[start : self._begin] = header
        split = self._folder.name
        raw_name = self._format.shard_name(split, self._part, len(self._shards))
        raw = stored = self._format.content(
            data[start : self._begin + end * self._room.itemsize],
            prefix=f"{split}-{self._part:05}-",
            first=self._samples,
        )
        shard = Shard(
            samples=samples, raw_name=raw_name, raw_bytes=len(raw), raw_hash=content_hash(raw)
        )
        if self._compression is not None:
            stored = self._compression.compress(raw)
            packed = {
                "zip_name": f"{raw_name}.{self._compression.codec}",
                "zip_bytes": len(stored),
                "zip_hash": content_hash(stored),
            }
            shard = shard.model_copy(update=packed)
        _write(self._folder / shard.name, stored)
        self._shards.append(shard)
        self._samples += samples


def _write(path: Path, data: bytes | memoryview) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        # Start writing to the disk, so that the later flush takes less time.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
