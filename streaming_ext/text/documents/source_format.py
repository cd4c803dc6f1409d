"""What a source format is: a look into a file, and its documents in batches."""

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.errors import UsageError
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.filters.filters import FilterName

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BATCH_BYTES = 16 * 2**20  # of text; what a batch costs is little beside, and so is its memory
MAX_BATCH_ROWS = 2**16
MAX_TEXT_BYTES = 2**28  # of one document: far above any that people write
LENGTH_BYTES = 4  # that a text is taken to need in a file beside its own bytes

MAX_RECORDS = 1024  # that `SourceFormat.records` gives at once

Span = tuple[int, int]  # [start, end)
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadDocument:
    """A row that cannot be read.

    Attributes:
        row: its number in the file.
        place: where that is, for people.
        reason: what is wrong there, one line.
    """

    row: int
    place: str
    reason: str


@dataclass(frozen=True, slots=True)
class DocumentBatch:
    """Some consecutive rows of a source file.

    Attributes:
        rows: row in the file of each text, int64 (num_texts,).
        texts: the texts that are neither null nor bad.
        num_rows: rows read, nulls and bad ones among them.
        fraction: of what is being read that is read with this batch, in [0, 1].
        bad: rows left out since they cannot be read, in order.
        dropped: how many each filter dropped, by its name.
        places: what names each text in its file however that is cut, int64 (num_texts,); None
            where the format cannot be cut, and `rows` are that.
        values: of each column that is kept, in the order of `ReadOptions.kept`: (num_texts,) each.
    """

    rows: npt.NDArray[np.int64]
    texts: pa.LargeStringArray
    num_rows: int
    fraction: float
    bad: tuple[BadDocument, ...] = ()
    dropped: Mapping[FilterName, int] = field(default_factory=dict)
    places: npt.NDArray[np.int64] | None = None
    values: tuple[pa.Array, ...] = ()

    @property
    def named_by(self) -> npt.NDArray[np.int64]:
        """What names each text in its file, (num_texts,)."""
        return self.rows if self.places is None else self.places

    @property
    def nulls(self) -> int:
        """Rows that hold no text."""
        left_out = len(self.bad) + sum(self.dropped.values())
        return self.num_rows - len(self.texts) - left_out


class SourceBytes(Protocol):
    """A source file wherever it lies: its name, its size in bytes, and any range of its bytes."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def size(self) -> int:
        """In bytes."""
        ...

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end)."""
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """A run of rows that can be read without what stands before it.

    Attributes:
        rows: how many; None where only reading would tell.
        size: in bytes.
    """

    rows: int | None
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FileLook:
    """What a look into a file tells, without reading its documents.

    Attributes:
        blocks: where the file can be entered, and so be cut.
        plain: a block's size is that of its texts, not packed, and of `LENGTH_BYTES` for each;
            else it is that of the piece of the file.
        needed: the only ranges of bytes that reading the text takes, merged and in order; None
            where it takes all.
        codec: how the text is packed.
    """

    blocks: tuple[Block, ...]
    plain: bool
    needed: tuple[Span, ...] | None = None
    codec: str = "none"


class SourceFormat(ABC):
    """One format of source files. `read` is all that tokenizing and verifying need.

    What a format leaves out is not refused by any of them: files are fetched whole, and a missing
    column is found when the file is read.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    sample_suffix: ClassVar[str] = ""  # behind names of what `write` makes, if of another format
    has_records: ClassVar[bool] = False  # a document has fields beside its text: `records`
    cuts_records: ClassVar[bool] = False  # `records` takes a span

    @abstractmethod
    def read(
        self,
        path: Path,
        options: ReadOptions,
        *,
        name: str | None = None,
        span: Span | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[DocumentBatch]:
        """The documents of a file in order.

        Args:
            path: where its bytes lie, at least those that `look` says are needed.
            options: which text to read.
            name: what messages call the file; its path by default.
            span: read this piece of the file only: what begins in these bytes, in rows numbered
                from the piece's own first. Pieces end to end hold what the file holds.
            batch_bytes: text a batch, in bytes; a longer document stands alone.

        Raises:
            SourceError: the file is damaged, or made to fill memory or disk; the message names the
                row from which on.
            UsageError: the file holds no such text.
        """

    def records(
        self, path: Path, options: ReadOptions, *, name: str, span: Span | None = None
    ) -> Iterator[list[Record]]:
        """The documents of a file in order, with all their fields, at most `MAX_RECORDS` at once.

        Args:
            path: where all of its bytes lie, or those of the piece.
            options: what to do with a bad one.
            name: what messages call the file.
            span: of the piece that is read, as for `read`.

        Raises:
            SourceError: the file is damaged; the message names the place.
        """
        raise UsageError(f"{name}: a document of the format {self.name} is its text alone.")

    def is_in_folder(self, name: str) -> bool:
        """Whether a file of this name, below a folder that is a source, is one of its sources."""
        return name.endswith(self.suffixes)

    def beside(self, path: Path) -> tuple[Path, ...]:
        """Further files that reading one on this machine takes: they pin its content with it."""
        return ()

    def outside(self, path: Path, options: ReadOptions, span: Span | None) -> bytes:
        """What other files on this machine hold of a file's documents: it pins the file with it.

        Args:
            path: of the file.
            options: which text is read.
            span: of the piece that is read; all of the file where there is none.

        Raises:
            SourceError: a file is damaged or gone.
        """
        return b""

    def can_be_cut(self, file: SourceBytes) -> bool:
        """Whether `read` takes a span of this file: it can be entered anywhere. Reads little.

        Raises:
            SourceError: the file is damaged or gone.
        """
        return False

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span) -> tuple[Span, ...]:
        """All that reading a piece takes: ranges of bytes, in order, that do not overlap.

        Raises:
            SourceError: the file is damaged or gone.
            UsageError: it holds no such text, or cannot be cut.
        """
        raise UsageError(f"{file.name}: files of the format {self.name} cannot be cut.")

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook | None:
        """What can be told without reading the documents; None where nothing can.

        Raises:
            SourceError: the file is damaged or gone.
            UsageError: it holds no such text.
        """
        return None

    def own_checksums(
        self, file: SourceBytes, options: ReadOptions, span: Span | None = None
    ) -> bool:
        """Compare the text of a file with checksums in it.

        Args:
            file: its bytes, at least those that are needed of it.
            options: which text is read.
            span: of the piece that is read; all of it by default.

        Returns:
            Whether all of the text has checksums.

        Raises:
            SourceError: it is not what they say.
        """
        return False

    def read_blocks(
        self, file: SourceBytes, options: ReadOptions, blocks: Sequence[int], *, batch_bytes: int
    ) -> Iterator[tuple[int, Iterator[DocumentBatch]]]:
        """Some blocks of a file that need not be here: number and documents of each, in order.

        Only what is asked for is read. `fraction` is of the block.

        Raises:
            SourceError: the file is damaged or gone.
        """
        raise UsageError(f"{file.name}: files of the format {self.name} cannot be sampled.")

    def write(
        self, path: Path, texts: pa.ChunkedArray, options: ReadOptions, *, codec: str
    ) -> None:
        """A file of these texts like those that were looked at, for a sample to be timed."""
        raise UsageError(f"{path}: no file of the format {self.name} can be made.")


class SeekableBytes(io.RawIOBase):
    """A source file as libraries want it: one that can be sought in."""

    def __init__(self, file: SourceBytes) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The place of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to another place."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}
        self._at = offset + base[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        end = self._file.size if size < 0 else min(self._at + size, self._file.size)
        data = self._file.read(self._at, end) if end > self._at else b""
        self._at += len(data)
        return data

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fill a buffer with the next bytes."""
        view = memoryview(buffer)
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def buffered(self, size: int) -> io.BufferedReader:
        """The file from here on, read in requests of so many bytes."""
        return io.BufferedReader(self, size)
