"""The output `webdataset`: a token stream cut into rows, each a member of a tar.

Tars are the same on each host, at any time, for any user. `tarfile.TarFile` fills a tar up to
10,240 bytes, and a member begins where the file stands that it writes to. Here both are known
before a byte is written, so that `tarfile` makes the heads alone.
"""

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streaming_ext.format.compression import Compression
from streaming_ext.format.record import SplitPart
from streaming_ext.format.shard import Shard
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.writing.split_writer import Memory, store_shard

END = bytes(2 * tarfile.BLOCKSIZE)  # of a tar


def member(name: str, content: bytes) -> bytes:
    """A file in a tar: its head, its content and padding; its time and owner are 0."""
    head = tarfile.TarInfo(name)
    head.size = len(content)
    return head.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def npy(ids: npt.NDArray[Any]) -> bytes:
    """What `numpy.save` writes."""
    file = io.BytesIO()
    np.save(file, ids)
    return file.getvalue()


class WebdatasetSplitWriter:
    """One split of a part as tars; see `SplitWriter` for the words."""

    def __init__(self, folder: Path, part: int, spec: DatasetSpec, memory: Memory) -> None:
        self._folder, self._part, self._spec = folder, part, spec
        self._format = spec.shard_format
        self._compression = Compression.parse(spec.compression)
        self._dtype = np.dtype(spec.dtype).newbyteorder("<")
        # No two samples that are made in one run have one key; those of merged datasets may.
        self._prefix = f"{folder.name}-{part:05}-"
        self._full = self._format.samples_per_shard * spec.sequence_length
        self._waiting: list[npt.NDArray[Any]] = []  # ids of the tar in hand
        self._held = 0
        self._shards: list[Shard] = []
        self._documents = self._tokens = self._padding = self._samples = 0

    def add(
        self,
        stream: npt.NDArray[Any],
        rows: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
    ) -> None:
        """Append documents to the stream; a row may hold the end of one and begin the next."""
        self._documents += len(lengths)
        self._tokens += len(stream)
        while len(stream):
            taken = stream[: self._full - self._held]
            self._waiting.append(taken.copy())  # the caller's memory is used again
            self._held += len(taken)
            stream = stream[len(taken) :]
            if self._held == self._full:
                self._store()

    def finish(self) -> SplitPart:
        """Fill up the last row with end-of-text ids, and write the last tar."""
        if self._held:
            self._padding = -self._held % self._spec.sequence_length
            self._waiting.append(np.full(self._padding, self._spec.tokenizer.eot_id, self._dtype))
            self._store()
        return SplitPart(
            documents=self._documents,
            tokens=self._tokens,
            padding=self._padding,
            shards=tuple(self._shards),
        )

    def _store(self) -> None:
        ids = np.concatenate(self._waiting).astype(self._dtype, copy=False)
        self._waiting, self._held = [], 0
        rows = ids.reshape(-1, self._spec.sequence_length)
        members = [
            member(f"{self._prefix}{number:012}.npy", npy(row))
            for number, row in enumerate(rows, self._samples)
        ]
        self._samples += len(rows)
        self._shards.append(
            store_shard(
                self._folder,
                self._format.shard_names(self._folder.name, self._part, len(self._shards))[0],
                b"".join([*members, END]),
                samples=len(rows),
                compression=self._compression,
            )
        )
