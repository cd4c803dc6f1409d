"""What writes the shards of a part: an output, fed with whole documents, a split at a time."""

import os
from collections.abc import Callable
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
