"""The output `webdataset`: a token stream cut into rows, each a member of a tar."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.compression import Compression
from streaming_ext.dataset.record import SplitPart
from streaming_ext.dataset.shard import Shard
from streaming_ext.dataset.spec import DatasetSpec
from tasks.core.memories import Memory
from tasks.core.outputs.stored import store_shard
from tasks.core.outputs.tar_members import END, member, npy


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
