"""What writes the shards of a part: an output, fed with whole documents, a split at a time."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streaming_ext.format.compression import Compression
from streaming_ext.format.layout import Split
from streaming_ext.format.record import SplitPart
from streaming_ext.format.schema import content_hash
from streaming_ext.format.shard import Shard
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


class SplitWriter(Protocol):
    """One split of one part, open for writing below a folder of scratch."""

    def add(
        self,
        stream: npt.NDArray[Any],
        rows: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
    ) -> None:
        """Append whole documents, in the order of the source.

        Args:
            stream: their ids, an end-of-text id behind each, (tokens,).
            rows: their rows in the source file, (documents,).
            lengths: their tokens, without end-of-text ids, (documents,).
        """
        ...

    def finish(self) -> SplitPart:
        """Write what is left, and say what there is."""
        ...


# The split's folder on scratch, the number of the part, what decides the bytes, and memory to use.
OpenSplit = Callable[[Path, int, DatasetSpec, Memory], SplitWriter]


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
        shard = replace(
            shard,
            zip_name=f"{raw_name}.{compression.codec}",
            zip_bytes=len(stored),
            zip_hash=content_hash(stored),
        )
    _write(folder / shard.name, stored)
    return shard


def _write(path: Path, data: bytes | memoryview) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        # Have the disk begin, so that putting it in place later has less to wait for.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


Header = Callable[[int], bytes]  # what stands in a shard before so many samples


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
    """Collects tokens into full shards and a last one, in one span of memory.

    Only the last sample of all is padded, up to `sequence_length`.
    """

    def __init__(
        self,
        *,
        sequence_length: int,
        samples_per_shard: int,
        dtype: str,
        eot_id: int,
        memory: Memory,
        header: Header,
    ) -> None:
        """Begin with an empty shard.

        Args:
            sequence_length: tokens a sample.
            samples_per_shard: of a full one.
            dtype: of an id.
            eot_id: what the last sample is filled up with.
            memory: to be used where it is large enough, and to grow where it is not.
            header: what stands before so many samples.
        """
        self._length, self._eot, self._header = sequence_length, eot_id, header
        self._dtype = np.dtype(dtype).newbyteorder("<")
        size = len(header(samples_per_shard))
        # A shard of fewer samples has a shorter header: it ends where the samples begin.
        self._begin = size + -size % _ALIGNMENT
        self._full = samples_per_shard * sequence_length
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
        samples = -(-self._held // self._length)
        end = samples * self._length
        self._make_room(end)
        self._room[self._held : end] = self._eot
        padding, self._held = end - self._held, 0
        header = self._header(samples)
        start = self._begin - len(header)
        data = self._memory.data.data
        data[start : self._begin] = header
        return RawShard(samples, padding, data[start : self._begin + end * self._dtype.itemsize])


class StreamWriter:
    """One split of a part: a token stream cut into shards as it comes; no token is dropped."""

    def __init__(
        self,
        folder: Path,
        part: int,
        spec: DatasetSpec,
        memory: Memory,
        *,
        header: Header = lambda samples: b"",
        content: Callable[[RawShard, int], bytes | memoryview] = lambda raw, first: raw.data,
    ) -> None:
        """Begin with no shard; see `OpenSplit`.

        Args:
            folder, part, spec, memory: see there.
            header: what stands before the ids of a shard.
            content: the file of a shard, by its bytes and the number of its first sample.
        """
        self._folder, self._part, self._content = folder, part, content
        self._format = spec.shard_format
        self._compression = Compression.parse(spec.compression)
        self._packer = ShardPacker(
            sequence_length=spec.sequence_length,
            samples_per_shard=self._format.samples_per_shard,
            dtype=spec.dtype,
            eot_id=spec.tokenizer.eot_id,
            memory=memory,
            header=header,
        )
        self._shards: list[Shard] = []
        self._documents = self._samples = self._padding = 0

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
        """Write the last shard, filled up with end-of-text ids."""
        for raw in self._packer.finish():
            self._store(raw)
        return SplitPart(
            documents=self._documents,
            tokens=self._packer.tokens,
            padding=self._padding,
            shards=tuple(self._shards),
        )

    def _store(self, raw: RawShard) -> None:
        self._shards.append(
            store_shard(
                self._folder,
                self._format.shard_names(self._folder.name, self._part, len(self._shards))[0],
                self._content(raw, self._samples),
                samples=raw.samples,
                compression=self._compression,
            )
        )
        self._samples += raw.samples
        self._padding += raw.padding
