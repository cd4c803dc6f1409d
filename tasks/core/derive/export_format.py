"""What writes an export: a format, fed with the whole documents of a part, a split at a time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy.typing as npt

from streaming_ext.format.layout import Split
from streaming_ext.format.schema import Count, Value
from streaming_ext.format.spec import DatasetSpec
from tasks.core.reading.documents import Documents

Buffer = bytes | memoryview | npt.NDArray[Any]


class ExportOptions(Value):
    """What decides the bytes of an export beside the dataset and the format.

    Attributes:
        max_file_size: upper bound of a file in bytes; None leaves it to the format.
        rows: what a sample is, where the format has samples.
        sequence_length: tokens a sample; None for those of the dataset.
        provenance: whether documents tell where they come from.
    """

    max_file_size: Count | None = None
    rows: Literal["samples", "documents"] = "samples"
    sequence_length: Count | None = None
    provenance: bool = False


class Made(Value):
    """A file that one part made, for indexes over all of them.

    Attributes:
        path: below the root of the export.
        documents: whole ones that it holds, where it holds such.
        tokens: that it holds, what it is filled up with among them.
        samples: that it holds, where the format has samples.
        size: in bytes.
    """

    path: str
    documents: Count = 0
    tokens: Count = 0
    samples: Count = 0
    size: Count


class Extent(Value):
    """How much there is of a split, in the whole dataset or in one part.

    Attributes:
        documents: how many.
        tokens: their ids and one end-of-text id each, without padding.
        files: of the part's own that come of it.
    """

    documents: Count = 0
    tokens: Count = 0
    files: Count = 0

    def __add__(self, other: "Extent") -> "Extent":
        return Extent(
            documents=self.documents + other.documents,
            tokens=self.tokens + other.tokens,
            files=self.files + other.files,
        )


Extents = Mapping[Split, Extent]


class Place(Value):
    """Where a part's share of a split stands in the whole of it.

    Attributes:
        part: its number.
        before: what the parts before it hold.
        own: what it holds.
    """

    part: Count
    split: Split
    before: Extent
    own: Extent


class Sink(Protocol):
    """A file, or a piece of one, that is written from its beginning to its end.

    Attributes:
        size: bytes written so far.
    """

    size: int

    def write(self, data: Buffer) -> None:
        """Append bytes."""
        ...

    def close(self) -> None:
        """It holds all that it is to hold."""
        ...


class Out(Protocol):
    """Where the bytes of an export go; paths are relative to its root."""

    def file(self, path: str) -> Sink:
        """A whole file."""
        ...

    def piece(self, path: str, start: int) -> Sink:
        """The bytes of a shared file from `start` on, of which others write the rest."""
        ...


class SplitExporter(Protocol):
    """One split of one part, open for writing."""

    def add(self, documents: Documents) -> None:
        """Append documents, in the order of the part."""
        ...

    def finish(self) -> list[Made]:
        """Write what is left; returns the files that are the part's own."""
        ...


class ExportFormat(Protocol):
    """How a dataset lies in the files of another trainer: a function of these facts alone.

    It is made of the dataset's specification, `ExportOptions`, and what each split holds; the
    counts of files are those of `files_of`, and not known yet where that is asked.
    """

    @property
    def tells_origins(self) -> bool:
        """Whether it wants to know where documents come from."""
        ...

    def require_possible(self) -> None:
        """Refuse what the format cannot hold; `UsageError` says what it can."""
        ...

    def files_of(self, own: Extent) -> int:
        """How many files a part makes of its share of a split, beside its pieces of shared ones."""
        ...

    def shared(self) -> Mapping[str, int]:
        """Files that several parts write into, with their sizes in bytes."""
        ...

    def open(self, place: Place, out: Out) -> SplitExporter:
        """Begin a part's share of a split."""
        ...

    def finish(self, made: Mapping[Split, Sequence[Made]], out: Out) -> None:
        """Write what is of no part: heads of shared files, indexes.

        Args:
            made: the parts' own files of each split, in order.
            out: takes it.
        """
        ...


MakeFormat = Callable[[DatasetSpec, ExportOptions, Extents], ExportFormat]
