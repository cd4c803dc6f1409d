"""The record of a run: what tokenizing a part gave, sorted by key, until the dataset is published.

Below `shuffle/` of the output:

    00007.json      the record of part 7; when it is there, the part is tokenized
    00007-002.run   its third run: documents sorted by key, in blocks of equal ranges of keys;
                    without a shuffle its only one, in the order of the source
    00007-000.digests   where copies are looked for: sorted hashes of its documents
    drops-00000.bin     what the second stage leaves out as copies, of one range of hashes
    index.npz       of all runs, made when all parts are tokenized
"""

import base64
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.layout import SHUFFLE_FOLDER
from streaming_ext.dataset.record import PartCounts
from streaming_ext.dataset.schema import Count, FileRecord, Sealed, Value, from_json
from streaming_ext.errors import CorruptDatasetError

INDEX_PATH = f"{SHUFFLE_FOLDER}/index.npz"


def run_record_path(part: int) -> str:
    """Where the record of a part's runs lies."""
    return f"{SHUFFLE_FOLDER}/{part:05}.json"


def run_path(part: int, run: int) -> str:
    """Where a run of a part lies."""
    return f"{SHUFFLE_FOLDER}/{part:05}-{run:03}.run"


def digests_path(part: int, run: int) -> str:
    """Where a run of hashes of a part lies."""
    return f"{SHUFFLE_FOLDER}/{part:05}-{run:03}.digests"


class Run(Value):
    """One sorted run; the arrays are told as text, for there may be thousands of blocks.

    Attributes:
        file: its hash is that of `digests`: a block has its own, and is read as a whole.
        offsets: byte that each block begins with, then the size: int64 (blocks + 1,).
        counts: documents of each block, int64 (blocks,).
        digests: XXH3-64 of each block, uint64 (blocks,).
    """

    file: FileRecord
    offsets: str
    counts: str
    digests: str

    @classmethod
    def of(
        cls,
        path: str,
        offsets: npt.ArrayLike,
        counts: npt.ArrayLike,
        digests: npt.ArrayLike,
    ) -> "Run":
        """What a file holds that was written."""
        edges, hashes = np.asarray(offsets, "<i8"), np.asarray(digests, "<u8")
        return cls(
            file=FileRecord(path=path, size=int(edges[-1]), xxh128=content_hash(hashes.tobytes())),
            offsets=_told(edges),
            counts=_told(np.asarray(counts, "<i8")),
            digests=_told(hashes),
        )

    def at(self, path: str) -> "Run":
        """The same under another name."""
        return self.model_copy(update={"file": self.file.model_copy(update={"path": path})})


def _told(array: npt.NDArray[Any]) -> str:
    """An array as text."""
    return base64.b64encode(array.tobytes()).decode()


def heard(text: str, dtype: str) -> npt.NDArray[Any]:
    """An array from such a text."""
    return np.frombuffer(base64.b64decode(text), dtype)


class RunRecord(PartCounts, Sealed):
    """What became of a part's source files in the first stage, and its runs.

    Attributes:
        splits: counts alone; nothing is packed yet.
        documents: of each piece.
        whole_version: what pins all of the first file, where the part holds the first piece of it.
        runs: sorted by key, each of documents that follow those of the one before; without a
            shuffle one, in the order of the source.
        digests: runs of hashes, where copies are looked for.
    """

    format: Literal[1] = 1
    documents: tuple[Count, ...]
    whole_version: str | None = None
    runs: tuple[Run, ...]
    digests: tuple[Run, ...] = ()

    def files(self) -> list[FileRecord]:
        """Every file of this part but the record itself."""
        return [run.file for run in self.runs] + self.digest_files

    @property
    def digest_files(self) -> list[FileRecord]:
        """Those of them that hold hashes."""
        return [run.file for run in self.digests]


def run_record_of(data: bytes, *, where: str) -> RunRecord:
    """The record that a file holds.

    Raises:
        CorruptDatasetError: it is damaged; `where` names the file.
    """
    record = from_json(RunRecord, data, where=where)
    in_order = () if record.spec.shuffle is not None else record.runs
    for run in (*record.runs, *record.digests):
        try:
            blocks = len(heard(run.counts, "<i8"))
            sound = len(heard(run.offsets, "<i8")) == blocks + 1
            if run not in in_order:  # a block for each range of keys
                sound = sound and not blocks & (blocks - 1)
        except ValueError:
            sound = False
        if not sound:
            raise CorruptDatasetError(f"{where} does not tell the blocks of {run.file.path}.")
    return record
