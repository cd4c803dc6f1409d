"""An export: its records, a format, and the files that its bytes go to.

A format is given the documents of a part, a split at a time. Its bytes go into files of the part,
into spans of files that several parts write into, or, to verify an export, only into hashes.
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

from streaming_ext.base.errors import UsageError
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
    """Return the record whose existence makes an exported part count."""
    return f"{FOLDER}/{part:05}.json"


class ExportOptions(Options):
    """Options that decide the bytes of an export besides the dataset and the format."""

    max_file_size: Annotated[ByteSize | None, Field(ge=1024)] = None
    """Upper bound of a file; default: the format's usual size."""
    rows: Literal["samples", "documents"] = "samples"
    """Content of a WebDataset sample."""
    sequence_length: Annotated[int | None, Field(gt=0, le=2**24)] = None
    """Tokens per sample of WebDataset; default: that of the dataset."""
    provenance: bool = False
    """With documents as rows: source and row of each, as JSON beside its ids."""


class Made(Value):
    """A file that belongs to one part, as indexes over all parts list it.

    Attributes:
        path: below the root of the export.
        documents: complete documents in it, if it holds complete documents.
        tokens: ids in it, padding included.
        samples: samples in it, if the format has samples.
        size: the size of the file, in bytes.
    """

    path: str
    documents: Count = 0
    tokens: Count = 0
    samples: Count = 0
    size: Count


class Extent(Value):
    """The amounts of a split that parts of a dataset hold: all parts, or those before one.

    Attributes:
        documents: number of documents.
        tokens: their ids and one end-of-text id each, without padding.
        files: number of files that belong to one part.
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
    """Everything that decides the bytes of an export.

    Attributes:
        export: name of the format.
        options: the options of the format.
        dataset_manifest: the manifest of the dataset that is exported.
    """

    export: str
    options: ExportOptions
    dataset_manifest: FileRecord


class ExportRecord(Sealed):
    """The record of an exported part.

    Attributes:
        documents, tokens: the amounts of the part.
        made: the files that belong to the part.
        spans: all bytes that it wrote.
    """

    identity: ExportIdentity
    documents: Count
    tokens: Count
    made: tuple[Made, ...]
    spans: tuple[Stretch, ...]


class ExportManifest(Value):
    """The commit point of an export, written last.

    Attributes:
        made_with: versions of libraries that decide bytes of the format.
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
    """Return the manifest of an export.

    Raises:
        FileNotFoundError: there is none.
        CorruptDatasetError: it is damaged.
    """
    return from_json(ExportManifest, storage.read(EXPORT), where=f"{storage}/{EXPORT}")


def read_export_records(storage: Storage) -> dict[int, ExportRecord]:
    """Return the records of exported parts, by part.

    Raises:
        CorruptDatasetError: one is damaged.
    """
    return records_in(storage, FOLDER, partial(from_json, ExportRecord))


def all_spans(manifest: ExportManifest, records: Iterable[ExportRecord]) -> list[Stretch]:
    """Return every span of every file of an export."""
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
        """Return all of it as plain values, for JSON."""
        manifest = self.manifest.model_dump(mode="json", exclude={"spans", "records"})
        return {"export": self.location, **manifest, "files": self.files}


def describe_export(storage: Storage) -> ExportDescription:
    """Read what an export says of itself.

    Raises:
        FileNotFoundError: there is no export.
        CorruptDatasetError: a record is damaged.
    """
    manifest = read_export(storage)
    sizes = file_sizes(all_spans(manifest, read_export_records(storage).values()))
    return ExportDescription(str(storage), manifest, dict(sorted(sizes.items())))


Buffer = bytes | memoryview | npt.NDArray[Any]
# A block stays in the cache of a core from hash to write. Several processes may write into one
# file, and the system lets one of them at a time.
_BLOCK = 2**20
_FLUSHED_AT_ONCE = 2**23  # bytes that the disk starts to write while more are made


class HashedFile(io.FileIO):
    """A file, or a span of one, hashed as it is written from its beginning to its end.

    Attributes:
        size: bytes written so far.
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
            start: the position of the first byte in it.
            closed: called with the finished span.
            file: the file on this host; without it nothing is kept but the hash.
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
        """Append bytes; returns how many. After a failure they go nowhere."""
        view = memoryview(data)  # type: ignore[arg-type]  # of an array: only from 3.12 on
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
        """Have the disk start to write all so far: `fdatasync` waits for less then.

        Linux writes what is "not needed", and keeps in memory what it is writing.
        """
        begin, self._flushed = self._flushed, self._start + self.size
        if begin < self._flushed and not self.closed:  # no bytes would stand for all of the file
            size = self._flushed - begin
            os.posix_fadvise(self.fileno(), begin, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """End the span."""
        if self.closed:
            return
        with writing_scratch(self._file):
            try:
                self._start_flush()
            finally:
                super().close()
        self._on_close(Stretch(self._path, self._start, self.size, self._digest.hexdigest()))

    def __exit__(self, kind: object, *_: object) -> None:
        """End the span, or only close the file if it failed."""
        if kind is None:
            self.close()
        else:
            super().close()


def _open_as_it_is(file: str, flags: int) -> int:
    """Open a file that other parts write into too: it keeps what it holds."""
    return os.open(file, flags & ~os.O_TRUNC, 0o666)


class ExportFiles:
    """The files of an export, or without a folder only the hashes of what is written.

    Files of one part are put in place once they are finished; shared files stay in their folder.

    Args:
        folder: the folder of the files that belong to one part, on scratch; empty or missing.
        shared: folder of the files that several parts write into.
        put: puts a file in place.

    Attributes:
        spans: the bytes that were written.
        made: files that belong to one part, as `ExportFormat.finish` needs them.
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
        """Return a complete file."""
        file = self._folder and self._folder / path

        def closed(span: Stretch) -> None:
            self.spans.append(span)
            if file is not None:
                self._put(path, file)

        return HashedFile(path, 0, closed, file)

    def span(self, path: str, start: int) -> HashedFile:
        """Return the bytes of a shared file from `start` on; other parts write the rest."""
        return HashedFile(path, start, self.spans.append, self._shared and self._shared / path)

    def put(self, path: str, data: Buffer, *, start: int | None = None) -> None:
        """Write a complete file, or bytes of a shared one from `start` on."""
        with self.file(path) if start is None else self.span(path, start) as sink:
            sink.write(data)


class PartPosition(Value):
    """The position of a part in a split.

    Attributes:
        part: the number of the part.
        split: the split of the dataset.
        before: the extent of the split in the parts before it.
    """

    part: Count
    split: Split
    before: Extent


class ExportFormat:
    """The layout of a dataset in the files of another trainer.

    A format is a function of the dataset's specification, the options, and what each split holds.

    Args:
        spec: the specification of the dataset.
        options: the options of the export.
        totals: the extent of each split; their `files` are the sums of `files_of`, and not known
            yet when that is called.

    Attributes:
        name: the name of the format.
        takes: the options that it uses.
        needs_origins: True if it writes where documents come from.
        has_uint16: True if an id has 16 bits.
        made_with: the versions of libraries that decide bytes of it.
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
        """The type of an id: that of the dataset, or 16 bits."""
        return np.dtype("uint16" if self.has_uint16 else self.spec.dtype).newbyteorder("<")

    @property
    def file_sizes(self) -> tuple[int, int]:
        """The least and the most bytes of a file, if it has a bound."""
        return 0, 2**63

    def require_possible(self) -> None:
        """Refuse what the format cannot hold.

        Raises:
            UsageError: saying what it can.
        """
        for field in self.options.model_dump(exclude_defaults=True):
            if field not in self.takes:
                possible = ", ".join(map(_option, self.takes)) or "no such option"
                raise UsageError(
                    f"{_option(field)} does not go with {self.name}, which takes {possible}."
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
        """Return the number of files of a split in a part, if their names depend on other parts."""
        return 0

    def shared(self) -> Mapping[str, int]:
        """Return files that several parts write into, with their sizes in bytes."""
        return {}

    def write(
        self, position: PartPosition, documents: Iterable[DocumentBlock], out: ExportFiles
    ) -> None:
        """Write what a part holds of a split, and list in `out.made` files that are its own.

        Args:
            position: the position of the part in the split.
            documents: the documents in order; each block is valid until the next one is taken.
            out: the files to write to.
        """
        raise NotImplementedError

    def finish(self, made: Mapping[Split, Sequence[Made]], out: ExportFiles) -> None:
        """Write what belongs to no part: heads of shared files, indexes.

        Args:
            made: the files of each split that belong to one part, in order.
            out: the files to write to.
        """


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"
