"""The parts of an export: its records, its format, and the files that it writes.

A format gets the documents of a part, a split at a time. It writes files of the part, or spans of
files that several parts share, or, to verify an export, only computes hashes.
"""

import io
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash
from pydantic import ByteSize, Field

from streaming_ext.base.errors import UsageError, option_name
from streaming_ext.format.layout import EXPORT, Split
from streaming_ext.format.schema import Count, FileRecord, Sealed, Value, from_json
from streaming_ext.format.spec import DatasetSpec, TokenizerIdentity
from streaming_ext.store import Put, Storage
from streaming_ext.store.scratch import writing_scratch
from streaming_ext.text.options import Options
from tasks.core.engine.output_files import Stretch, file_sizes
from tasks.core.reading.dataset_files import records_in
from tasks.core.reading.documents import DocumentBlock

FOLDER = "export"


def record_path(part: int) -> str:
    """Return the path of the record that makes an exported part count."""
    return f"{FOLDER}/{part:05}.json"


class ExportOptions(Options):
    """The options that, with the dataset and the format, decide the bytes of an export."""

    max_file_size: Annotated[ByteSize | None, Field(ge=1024)] = None
    """Upper bound of a file; default: the format's usual size."""
    rows: Literal["samples", "documents"] = "samples"
    """Content of a WebDataset sample."""
    sequence_length: Annotated[int | None, Field(gt=0, le=2**24)] = None
    """Tokens per sample of WebDataset; default: that of the dataset."""
    provenance: bool = False
    """With documents as rows: source and row of each, as JSON beside its ids."""


class Made(Value):
    """A file that belongs to one part, with the facts that indexes of all parts list.

    Attributes:
        path: the path below the root of the export.
        documents: the number of documents, if the file holds complete documents.
        tokens: the number of ids, including padding.
        samples: the number of samples, if the format has samples.
        size: the size of the file, in bytes.
    """

    path: str
    documents: Count = 0
    tokens: Count = 0
    samples: Count = 0
    size: Count


class Extent(Value):
    """The amounts of a split in all parts of a dataset, or in the parts before a certain one.

    Attributes:
        documents: the number of documents.
        tokens: the number of ids, with one end-of-text id per document, without padding.
        files: the number of files that belong to one part.
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


class ExportIdentity(Value):
    """All facts that decide the bytes of an export.

    Attributes:
        export: the name of the format.
        options: the options of the format.
        dataset_manifest: the manifest of the dataset that is exported.
    """

    export: str
    options: ExportOptions
    dataset_manifest: FileRecord


class ExportRecord(Sealed):
    """The record of an exported part.

    Attributes:
        documents, tokens: the numbers of documents and tokens of the part.
        made: the files that belong to the part.
        spans: all bytes that the part wrote.
    """

    identity: ExportIdentity
    documents: Count
    tokens: Count
    made: tuple[Made, ...]
    spans: tuple[Stretch, ...]


class ExportManifest(Value):
    """The manifest of an export: the commit point, put last.

    Attributes:
        made_with: the versions of libraries that influence the bytes of the format.
        dataset: the location of the dataset.
        records: the records of the parts, in order.
        spans: the bytes that belong to no part, such as indexes.
    """

    format: Literal[1] = 1
    made_with: dict[str, str] = Field(default_factory=dict)
    identity: ExportIdentity
    dataset: str
    tokenizer: TokenizerIdentity
    splits: dict[Split, Extent]
    records: tuple[FileRecord, ...]
    spans: tuple[Stretch, ...]


def is_export(storage: Storage) -> bool:
    """Return whether a storage holds a published export, rather than a dataset."""
    try:
        storage.read(EXPORT)
    except FileNotFoundError:
        return False
    return True


def read_export(storage: Storage) -> ExportManifest:
    """Read the manifest of an export.

    Raises:
        FileNotFoundError: there is no manifest.
        CorruptDatasetError: it is damaged.
    """
    return from_json(ExportManifest, storage.read(EXPORT), where=f"{storage}/{EXPORT}")


def read_export_records(storage: Storage) -> dict[int, ExportRecord]:
    """Read the records of exported parts; return them by part.

    Raises:
        CorruptDatasetError: a record is damaged.
    """
    return records_in(storage, FOLDER, partial(from_json, ExportRecord))


def all_spans(manifest: ExportManifest, records: Iterable[ExportRecord]) -> list[Stretch]:
    """Return the bytes of all files of an export."""
    return [*manifest.spans, *(span for record in records for span in record.spans)]


def made_files(
    splits: Iterable[Split], records: Collection[ExportRecord]
) -> dict[Split, list[Made]]:
    """Return the files of each split that belong to one part, in order."""
    return {
        split: [
            file for record in records for file in record.made if file.path.startswith(f"{split}/")
        ]
        for split in splits
    }


class ExportDescription(NamedTuple):
    """The description of an export for `inspect`; `files` are paths and sizes in bytes."""

    location: str
    manifest: ExportManifest
    files: dict[str, int]

    def facts(self) -> dict[str, Any]:
        """Return the description as plain values for JSON."""
        manifest = self.manifest.model_dump(mode="json", exclude={"spans", "records"})
        return {"export": self.location, **manifest, "files": self.files}


def describe_export(storage: Storage) -> ExportDescription:
    """Read the metadata of an export.

    Raises:
        FileNotFoundError: there is no export.
        CorruptDatasetError: a record is damaged.
    """
    manifest = read_export(storage)
    sizes = file_sizes(all_spans(manifest, read_export_records(storage).values()))
    return ExportDescription(str(storage), manifest, dict(sorted(sizes.items())))


Buffer = bytes | memoryview | npt.NDArray[Any]
# Small enough to stay in a core's cache between hashing and writing; and several processes may
# write to one file, but the system lets only one at a time.
_BLOCK = 2**20
_FLUSHED_AT_ONCE = 2**23  # bytes per early write to disk


class HashedFile(io.FileIO):
    """A file, or a span of a file, that is hashed while it is written from beginning to end.

    Attributes:
        size: the number of bytes written so far.
    """

    def __init__(
        self,
        path: str,
        start: int,
        closed: Callable[[Stretch], None],
        file: Path | None = None,
    ) -> None:
        """Begin a span.

        Args:
            path: the path of the file, below the root of the export.
            start: the position of the first byte in the file.
            closed: a function that is called with the finished span.
            file: the file on this host; if None, only the hash is kept.
        """
        self.size = 0
        self._path, self._start, self._on_close = path, start, closed
        self._digest, self._flushed = xxhash.xxh3_128(), start
        self._file = file or Path(os.devnull)
        with writing_scratch(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            super().__init__(self._file, "wb", opener=_open_as_it_is)
            self.seek(start)

    def write(self, data: Buffer) -> int:  # type: ignore[override]
        """Append bytes, and return their number; after a failure, bytes are dropped."""
        view = memoryview(data)  # type: ignore[arg-type]  # arrays: from Python 3.12 on
        if not view.nbytes:
            return 0
        view = view.cast("B")
        for start in range(0, len(view), _BLOCK):
            block = view[start : start + _BLOCK]
            self._digest.update(block)
            self.size += len(block)
            with writing_scratch(self._file):
                while len(block) and not self.closed:
                    block = block[super().write(block) :]
                if self._start + self.size - self._flushed >= _FLUSHED_AT_ONCE:
                    self._start_flush()
        return len(view)

    def _start_flush(self) -> None:
        """Have the disk start to write the bytes so far, so that `fdatasync` waits for less.

        On POSIX_FADV_DONTNEED, Linux starts to write dirty pages, and meanwhile keeps them.
        """
        begin, self._flushed = self._flushed, self._start + self.size
        if begin < self._flushed and not self.closed:  # a size of 0 would mean the rest of the file
            size = self._flushed - begin
            os.posix_fadvise(self.fileno(), begin, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """End the span, and report it."""
        if self.closed:
            return
        with writing_scratch(self._file):
            try:
                self._start_flush()
            finally:
                super().close()
        self._on_close(Stretch(self._path, self._start, self.size, self._digest.hexdigest()))

    def __exit__(self, kind: object, *_: object) -> None:
        """End the span, or after an error only close the file."""
        if kind is None:
            self.close()
        else:
            super().close()


def _open_as_it_is(file: str, flags: int) -> int:
    """Open a file without truncating it, as other parts write into it too."""
    return os.open(file, flags & ~os.O_TRUNC, 0o666)


class ExportFiles:
    """The files of an export, or, without a folder, only the hashes of what is written.

    A file of one part is put once it is finished; shared files stay in their folder.

    Args:
        folder: the folder on scratch of files that belong to one part, which is empty or missing.
        shared: the folder of files that several parts write into.
        put: a function that puts a file on the output.

    Attributes:
        spans: the bytes that were written.
        made: the files that belong to one part, for `ExportFormat.finish`.
    """

    def __init__(
        self,
        folder: Path | None = None,
        shared: Path | None = None,
        put: Put = lambda path, file: None,
    ) -> None:
        self._folder, self._shared, self._put = folder, shared, put
        self.spans: list[Stretch] = []
        self.made: list[Made] = []

    def file(self, path: str) -> HashedFile:
        """Open a whole file for writing."""
        file = self._folder and self._folder / path

        def closed(span: Stretch) -> None:
            self.spans.append(span)
            if file is not None:
                self._put(path, file)

        return HashedFile(path, 0, closed, file)

    def span(self, path: str, start: int) -> HashedFile:
        """Open a shared file for writing from `start` on; other parts write the rest."""
        return HashedFile(path, start, self.spans.append, self._shared and self._shared / path)

    def put(self, path: str, data: Buffer, *, start: int | None = None) -> None:
        """Write a whole file, or bytes of a shared file from `start` on."""
        with self.file(path) if start is None else self.span(path, start) as sink:
            sink.write(data)


class PartPosition(Value):
    """The position of a part in a split.

    Attributes:
        part: the number of the part.
        split: the split of the dataset.
        before: the extent of the split in earlier parts.
    """

    part: Count
    split: Split
    before: Extent


class ExportFormat:
    """The layout of a dataset in the files of another trainer.

    It depends only on the dataset's specification, the options, and the extents of the splits.

    Args:
        spec: the specification of the dataset.
        options: the options of the export.
        totals: the extent of each split; `files` are the sums of `files_of`, and 0 while that is
            called.

    Attributes:
        name: the name of the format.
        takes: the names of the options that it uses.
        needs_origins: True if it writes the sources of documents.
        has_uint16: True if an id has 16 bits.
        made_with: the versions of libraries that influence its bytes.
    """

    name: ClassVar[str]
    takes: tuple[str, ...] = ()
    needs_origins = False
    has_uint16 = False
    made_with: ClassVar[Mapping[str, str]] = {}

    def __init__(self, spec: DatasetSpec, options: ExportOptions, totals: Extents) -> None:
        self.spec, self.options, self.totals = spec, options, totals

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an id: the dataset's, or 16 bits."""
        return np.dtype("uint16" if self.has_uint16 else self.spec.dtype).newbyteorder("<")

    @property
    def file_sizes(self) -> tuple[int, int]:
        """The least and the most bytes that `max_file_size` may be."""
        return 0, 2**63

    def require_possible(self) -> None:
        """Refuse options and datasets that do not fit the format.

        Raises:
            UsageError: one does not fit; the message says what does.
        """
        for field in self.options.model_dump(exclude_defaults=True):
            if field not in self.takes:
                possible = ", ".join(map(option_name, self.takes)) or "no such option"
                raise UsageError(
                    f"{option_name(field)} does not go with {self.name}, which takes {possible}."
                )
        size, (least, most) = self.options.max_file_size, self.file_sizes
        if size is not None and not least <= size <= most:
            bound = f"at least {least:,}" if size < least else f"at most {most:,}"
            raise UsageError(
                f"--max-file-size {size:,} bytes: a file of {self.name} has {bound} here."
            )
        ids = self.spec.tokenizer.vocab_size
        if self.has_uint16 and ids > 2**16:
            raise UsageError(
                f"{self.name} stores an id in 16 bits, so it holds 65,536 different ones; this "
                f"dataset's vocabulary has {ids:,}. Formats for larger ones: megatron, llmc, "
                "nanotron, olmo, litdata, parquet, webdataset."
            )

    def files_of(self, documents: int, tokens: int) -> int:
        """Return the number of files of a part's split, if file names depend on earlier parts."""
        return 0

    def shared(self) -> Mapping[str, int]:
        """Return the files that several parts write into, with their sizes in bytes."""
        return {}

    def write(
        self, position: PartPosition, documents: Iterable[DocumentBlock], out: ExportFiles
    ) -> None:
        """Write a part's documents of a split, and list the part's own files in `out.made`.

        Args:
            position: the position of the part in the split.
            documents: the documents in order; each block is valid until the next.
            out: the files to write to.
        """
        raise NotImplementedError

    def finish(self, made: Mapping[Split, Sequence[Made]], out: ExportFiles) -> None:
        """Write the bytes that belong to no part: heads of shared files, and indexes.

        Args:
            made: the files of each split that belong to one part, in order.
            out: the files to write to.
        """
