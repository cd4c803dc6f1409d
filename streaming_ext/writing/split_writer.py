"""What writes the shards of a part: an output, fed with whole documents, a split at a time."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streaming_ext.format.compression import Compression
from streaming_ext.format.layout import Split
from streaming_ext.format.record import SplitPart
from streaming_ext.format.schema import content_hash
from streaming_ext.format.shard import Shard, ShardFormat
from streaming_ext.format.spec import DatasetSpec

_ALIGNMENT = 16
_FIRST_BYTES = 64 * 2**20  # of memory; shards that are larger get more when they hold so much


@dataclass(slots=True)
class Memory:
    """Memory that one split of part after part is packed in, or read into.

    Fresh pages take as long as what fills them. What was never written to is no memory yet: a
    holdout of few documents takes little.

    Attributes:
        data: of any content, uint8 (bytes,).
    """

    data: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))

    def of(self, size: int) -> npt.NDArray[np.uint8]:
        """So much of it, whose content is to be given up: (size,)."""
        if len(self.data) < size:
            self.data = np.empty(size, np.uint8)
        return self.data[:size]


Memories = dict[Split, Memory]


def store_shard(
    folder: Path,
    raw_name: str,
    raw: bytes | memoryview,
    *,
    samples: int,
    compression: Compression | None,
) -> Shard:
    """Write a shard below its split's folder; returns what a record says of it.

    Args:
        folder: of the split, on scratch.
        raw_name: of the shard when it is not compressed, relative to the folder.
        raw: its content.
        samples: how many that are.
        compression: None stores it as it is.
    """
    shard = Shard(
        samples=samples, raw_name=raw_name, raw_bytes=len(raw), raw_hash=content_hash(raw)
    )
    stored = raw
    if compression is not None:
        stored = compression.compress(raw)
        shard = shard.model_copy(
            update={
                "zip_name": f"{raw_name}.{compression.codec}",
                "zip_bytes": len(stored),
                "zip_hash": content_hash(stored),
            }
        )
    _write(folder / shard.name, stored)
    return shard


def _write(path: Path, data: bytes | memoryview) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        # Start writing to the disk, so that the later flush has less to wait for.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True, slots=True)
class RawShard:
    """The bytes of one raw shard, valid until the next one is made.

    Attributes:
        samples: how many it holds.
        padding: end-of-text ids that fill up its last sample.
        data: header and samples.
    """

    samples: int
    padding: int
    data: memoryview


class ShardPacker:
    """Collects tokens into full shards and a last one, in one span of memory.

    Only the last sample of all is padded, up to `sequence_length`.
    """

    def __init__(self, form: ShardFormat, eot_id: int, memory: Memory) -> None:
        """Start with an empty shard.

        Args:
            form: of the shards.
            eot_id: fills up the last sample.
            memory: used if it is large enough, and grows if it is not.
        """
        self._format, self._eot, self._memory = form, eot_id, memory
        size = len(form.header(form.samples_per_shard))
        # A shard of fewer samples has a shorter header: it ends where the samples begin.
        self._begin = size + -size % _ALIGNMENT
        self._full = form.samples_per_shard * form.sequence_length
        self._held = 0
        # room: (tokens of a full shard, or of the part that there is memory for,)
        self._room = np.empty(0, form.id_type)
        self._make_room(min(self._full, _FIRST_BYTES // form.id_type.itemsize))
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
        size = self._begin + tokens * self._format.id_type.itemsize
        held = self._room[: self._held]
        if len(self._memory.data) < size:
            self._memory.data = np.empty(size, np.uint8)
        possible = (len(self._memory.data) - self._begin) // self._format.id_type.itemsize
        room = np.frombuffer(
            self._memory.data, self._format.id_type, min(self._full, possible), self._begin
        )
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
        return RawShard(
            samples, padding, data[start : self._begin + end * self._format.id_type.itemsize]
        )


class SplitWriter:
    """One split of a part: a token stream cut into shards as it comes; no token is dropped."""

    def __init__(self, folder: Path, part: int, spec: DatasetSpec, memory: Memory) -> None:
        """Start with no shard.

        Args:
            folder: of the split, on scratch.
            part: number of the part.
            spec: decides the bytes.
            memory: to pack in.
        """
        self._folder, self._part = folder, part
        self._format = spec.shard_format
        self._compression = Compression.parse(spec.compression)
        self._packer = ShardPacker(self._format, spec.tokenizer.eot_id, memory)
        self._shards: list[Shard] = []
        self._documents = self._samples = self._padding = 0

    def add(self, stream: npt.NDArray[Any], documents: int) -> None:
        """Append whole documents; a sample may hold the end of one and begin the next.

        Args:
            stream: their ids, an end-of-text id after each, (tokens,).
            documents: how many.
        """
        self._documents += documents
        self._store(self._packer.add(stream))

    def finish(self) -> SplitPart:
        """Write the last shard, filled up with end-of-text ids."""
        self._store(self._packer.finish())
        return SplitPart(
            documents=self._documents,
            tokens=self._packer.tokens,
            padding=self._padding,
            shards=tuple(self._shards),
        )

    def _store(self, shards: Iterable[RawShard]) -> None:
        split = self._folder.name
        for raw in shards:
            prefix = f"{split}-{self._part:05}-"
            self._shards.append(
                store_shard(
                    self._folder,
                    self._format.shard_name(split, self._part, len(self._shards)),
                    self._format.content(raw.data, prefix=prefix, first=self._samples),
                    samples=raw.samples,
                    compression=self._compression,
                )
            )
            self._samples += raw.samples
            self._padding += raw.padding
