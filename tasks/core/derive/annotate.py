"""Columns that are added to a published dataset: the plan, and the job for a part.

The values of each part are in a file beside its list of documents. A new manifest lists these
files; until it is put, readers see the dataset as before. Shards and indexes do not change, so
training states stay valid.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import ConfigMismatchError, DatasetError, UsageError
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.layout import (
    BUILD,
    COLUMNS_FOLDER,
    MANIFEST,
    columns_path,
    generation_path,
)
from streaming_ext.format.manifest import AddedColumns, Manifest
from streaming_ext.format.parquet import parquet_bytes
from streaming_ext.format.provenance import KEPT_PREFIX
from streaming_ext.format.schema import FileRecord, Hash, Value, content_hash, to_json
from streaming_ext.format.spec import ExcludedTexts
from streaming_ext.store import Storage, open_storage
from streaming_ext.store.locations import absolute
from streaming_ext.store.scratch import writing_scratch
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.text_hashes import UNICODE
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.writing.evaluation_texts import evaluation_texts
from tasks.core.derive.config import AnnotateConfig
from tasks.core.derive.value_table import (
    ORIGIN,
    ValueTable,
    added_columns,
    names_in,
    read_table,
    row_names,
    value_names,
)
from tasks.core.engine.build import DerivedBuild, OnStatus, Published, Recorded, Words
from tasks.core.engine.lifecycle import compare
from tasks.core.engine.output_files import Stretch, file_sizes, scratch_folder
from tasks.core.reading.dataset_files import (
    DatasetFiles,
    open_dataset,
    open_tokenizer,
    read_dataset_manifest,
)
from tasks.core.reading.documents import PartOfDataset, listed_documents
from tasks.core.workers.messages import Job, MadePart, Report, WorkerCache

EVALUATION_COLUMN: Final = "evaluation_texts"
CHARACTERS_COLUMN: Final = "characters"
_log = logging.getLogger(__name__)


class AnnotateJob(Job[MadePart]):
    """Put the values of the added columns for the documents of a part.

    Attributes:
        part: the number of the part.
        dataset: the URL of the dataset.
        manifest: the manifest of the dataset.
        table: the file of the table on scratch; None if values are counted in the texts.
        key: the column that names documents; None for file and row.
        exclude: the evaluation texts to count; without these and a table, characters are counted.
        path: the path of the file of values.
    """

    part: int
    dataset: str
    manifest: FileRecord
    table: Path | None = None
    key: str | None = None
    exclude: ExcludedTexts | None = None
    path: str

    def do(self, cache: WorkerCache, report: Report) -> MadePart:
        """Put the values.

        Raises:
            CorruptDatasetError: the dataset is damaged.
            StorageError: the dataset is full, gone or not writable.
        """
        dataset = cache.storage(self.dataset)
        manifest = cache.latest(read_dataset_manifest, dataset, self.manifest)
        part = PartOfDataset(dataset, manifest, self.part)
        if self.table is not None:
            table = cache.latest(ValueTable.open, self.table)
            rows = _rows_of(table, part, self.key)
            values = table.values.take(pa.array(rows, mask=rows < 0))
        else:
            tokenizer = cache.latest(_tokenizer_of, dataset, self.manifest)
            counts = _counts(part, tokenizer, self.exclude)
            values = pa.table({f"{KEPT_PREFIX}{_column_of(self.exclude)}": counts})
        data = parquet_bytes(values)
        dataset.put(self.path, data)
        return MadePart(documents=len(values), tokens=0, size=len(data))


def _tokenizer_of(dataset: Storage, manifest: FileRecord) -> Tokenizer:
    return open_tokenizer(DatasetFiles(dataset), read_dataset_manifest(dataset, manifest).spec)


def _column_of(exclude: ExcludedTexts | None) -> str:
    return CHARACTERS_COLUMN if exclude is None else EVALUATION_COLUMN


def _counts(part: PartOfDataset, tokenizer: Tokenizer, rule: ExcludedTexts | None) -> Ints:
    """Count characters or evaluation texts in the decoded text of each document: (documents,).

    Args:
        part: the part that holds the documents.
        tokenizer: the tokenizer of the dataset.
        rule: the evaluation texts, counted if they share an n-gram with the document; None to
            count characters.
    """
    evaluation = None if rule is None else evaluation_texts(rule, UNICODE)
    listed = listed_documents(part.files, part.record)
    counts = np.zeros(len(listed), np.int64)
    for at, block in part.blocks(listed):
        texts = [text.decode(errors="replace") for text in block.texts(tokenizer)]
        decoded = pa.array(texts, pa.large_string())
        if evaluation is None:
            counts[at] = pc.utf8_length(decoded)
        else:
            documents, _ = evaluation.find(decoded)
            counts[at] = np.bincount(documents, minlength=len(at))
    return counts


def _rows_of(table: ValueTable, part: PartOfDataset, key: str | None) -> Ints:
    """Return the table's row about each document of a part, -1 if there is none: (documents,)."""
    if key is None:
        listed, origins = listed_documents(part.files, part.record), part.source_rows()
        for url, from_byte in origins.files:
            if from_byte:
                raise UsageError(
                    f"{part.files.storage} has documents of {url} behind byte {from_byte:,} alone, "
                    "so their rows in the file are not known. Name documents by a kept column: "
                    "--key."
                )
        urls = [url for url, _ in origins.files]
        files, rows = origins.numbered(listed["row"].to_numpy(), listed["source"].to_numpy())
        return table.find(row_names(urls, files, rows))
    column = _key_of(part, key)
    rows = np.full(len(column), -1)
    if column.null_count < len(column):  # else it has no type
        rows[np.asarray(column.is_valid())] = table.find(value_names(column.drop_null()))
    return rows


def _key_of(part: PartOfDataset, key: str) -> pa.Array:
    """Return the column that names the documents of a part, (documents,)."""
    added = part.added()
    if key in added:
        return added[key]
    listed, name = listed_documents(part.files, part.record, values=True), f"{KEPT_PREFIX}{key}"
    return listed[name].combine_chunks() if len(listed) else pa.nulls(0)


class TableIdentity(Value):
    """The identity of added columns: the table, and the column by which it names documents.

    Attributes:
        table: the content hash of the file, of the rule of evaluation texts, or of the name
            "characters".
        key: the column that names documents; None for file and row.
    """

    table: Hash
    key: str | None = None


@dataclass(frozen=True, kw_only=True)
class AnnotateBuild(DerivedBuild):
    """The build of a dataset's next manifest, with more columns.

    Attributes:
        original: the manifest that is replaced.
        table: the table; None if values are counted in the texts.
        columns: the names of the added columns.
        named: the identity of the added columns.
        before: the manifest's entry of the columns, if they were added already.
    """

    config: AnnotateConfig
    original: Manifest
    table: ValueTable | None
    columns: tuple[str, ...]
    named: TableIdentity
    before: AddedColumns | None
    jobs: tuple[AnnotateJob, ...] = ()
    kind: str = "annotate"

    words: ClassVar[Words] = Words("annotating", "annotated")

    @property
    def identity(self) -> TableIdentity:
        """The identity of the added columns."""
        return self.named

    def is_published(self, output: Storage) -> bool:
        """Return True: the dataset itself is published."""
        return True

    def recorded(self, output: Storage, *, published: bool) -> Recorded:
        """Return the parts whose values the manifest lists."""
        files = () if self.before is None else self.before.files
        parts = {number: [Stretch.of(file)] for number, file in enumerate(files)}
        return Recorded(storage=output, parts=parts)

    def beside(self, output: Storage) -> Mapping[str, int]:
        """Return nothing: `shard` made the rest of the dataset."""
        return {}

    def prepare(self, output: Storage) -> None:
        """Put the table on scratch, and remove values of other tables that killed runs left."""
        if self.table is not None and (file := self.jobs[0].table) is not None:
            with writing_scratch(self.scratch):
                self.table.save(file)
        stay = {file.path for each in self.original.added for file in each.files}
        stay |= {job.path for job in self.jobs}
        for path in output.list(COLUMNS_FOLDER):
            if path not in stay:
                output.remove(path)

    def finish(self, output: Storage, on_status: OnStatus) -> Published:
        """Return the manifest that lists the values."""
        on_status("reading what was written")
        data = to_json(self.original)
        file = FileRecord.of(generation_path(content_hash(data)), data)
        paths = [job.path for job in self.jobs]
        files = mapped_ahead(lambda path: FileRecord.of(path, output.read(path)), paths)
        added = AddedColumns(
            columns=self.columns,
            first_part=self.jobs[0].part,
            files=tuple(files),
            replaced=file if self.before is None else self.before.replaced,
        )
        manifest = self.original
        if self.before is None:
            output.put(file.path, data)
            manifest = manifest.model_copy(update={"added": (*manifest.added, added)})
        elif added != self.before:
            raise DatasetError(
                f"{output}: values that were made again have other bytes, as this pyarrow is "
                f"another one. Put {COLUMNS_FOLDER} back from a copy of the dataset."
            )
        return Published(MANIFEST, to_json(manifest), file_sizes(map(Stretch.of, added.files)))


def plan_annotate(
    config: AnnotateConfig, output: Storage, on_status: OnStatus = lambda words: None
) -> AnnotateBuild:
    """Plan the columns to add; nothing is written.

    Raises:
        UsageError: the table does not fit the dataset.
        ConfigMismatchError: another command writes to the dataset.
        DatasetError: there is no dataset, or it is damaged.
    """
    _, manifest = open_dataset(output)
    _require_no_other_run(output)
    on_status("reading the table")
    exclude = config.excluded_texts(mark_only=True)
    if config.table is not None:
        data = _read(config.table)
    else:
        data = CHARACTERS_COLUMN.encode()
        if exclude is not None:
            data = to_json(exclude) + UNICODE.encode()
    identity = TableIdentity(table=content_hash(data), key=config.key)
    name = content_hash(to_json(identity))
    before = next((each for each in manifest.added if each.table == name), None)
    known = {*manifest.columns} - {*(before.columns if before else ())}
    numbers = range(before.first_part, before.end) if before else range(len(manifest.parts))
    parts = [*mapped_ahead(partial(PartOfDataset, output, manifest), numbers)]
    table, columns = None, (_column_of(exclude),)
    if config.table is not None:
        table = _indexed(config.table, data, config.key, parts, manifest, known=known)
        columns = tuple(each.removeprefix(KEPT_PREFIX) for each in table.values.column_names)
        if before is None:
            on_status("looking for the documents")
            _require_all(config, table, parts, output)
    elif columns[0] in known:
        of = "" if exclude is None else ", of other texts"
        raise UsageError(f"{output} has a column {columns[0]!r} already{of}.")
    scratch = scratch_folder(config, output)
    jobs = tuple(
        AnnotateJob(
            part=number,
            dataset=str(output),
            manifest=FileRecord.of(MANIFEST, to_json(manifest)),
            table=None if table is None else scratch / "table.arrow",
            key=config.key,
            exclude=exclude,
            path=columns_path(name, number),
        )
        for number in numbers
    )
    build = AnnotateBuild(
        config=config,
        original=manifest,
        table=table,
        columns=columns,
        named=identity,
        before=before,
        parts=tuple(
            Part.whole(number, SourceFile(url=f"{output}/{file.path}", size=file.size))
            for number, file in enumerate(part.record.documents for part in parts)
        ),
        jobs=jobs,
        scratch=scratch,
    )
    return compare(build, output)


def _indexed(
    where: str,
    data: bytes,
    key: str | None,
    parts: Sequence[PartOfDataset],
    manifest: Manifest,
    *,
    known: set[str],
) -> ValueTable:
    """Return the table, indexed by the names of documents.

    Args:
        where: the file, for messages.
        data: the content of the file.
        key: the column that names documents; None for file and row.
        parts: the parts of the dataset that get values.
        manifest: the manifest of the dataset.
        known: the columns that the dataset has.

    Raises:
        UsageError: the table does not fit the dataset.
    """
    if key is not None and key not in known:
        raise UsageError(
            f"{parts[0].files.storage} has no column {key!r}, it has "
            f"{', '.join(known) or 'none'}. Correct --key."
        )
    kind = _kind_of(parts, key)
    texts = [key or ORIGIN[0]] if pa.types.is_large_string(kind) else []
    table = read_table(where, data, texts)
    values = added_columns(table, key, known, where)
    names = names_in(table, key, kind, _urls(parts, manifest), where)
    indexed, again = ValueTable.of(names, values)
    if len(again):
        keys = ("source", "row") if key is None else (key,)
        shown = ", ".join(f"{each} {table[each][int(again[0])].as_py()!r}" for each in keys)
        raise UsageError(f"{where} has several rows of one document: {shown} is in it again.")
    return indexed


def _require_no_other_run(output: Storage) -> None:
    """Refuse a dataset that another command has started to change.

    Raises:
        ConfigMismatchError: there is one; the message names it.
    """
    try:
        kind = json.loads(output.read(BUILD))["kind"]
    except FileNotFoundError:
        return
    if kind != "annotate":
        raise ConfigMismatchError(f"`shardmill {kind}` of {output} is not finished: finish it.")


def _read(table: str) -> bytes:
    folder, _, name = absolute(table).rpartition("/")
    try:
        return open_storage(folder or "/").read(name)
    except FileNotFoundError:
        raise UsageError(f"There is no file {table}.") from None


def _kind_of(parts: Sequence[PartOfDataset], key: str | None) -> pa.DataType:
    """Return the type of the column that names documents.

    Raises:
        UsageError: the column holds no names, or names of several types.
    """
    if key is None:
        return pa.large_string()  # of `source`

    def kind_in(part: PartOfDataset) -> pa.DataType | None:
        column = _key_of(part, key)
        return column.type if column.null_count < len(column) else None

    kinds = {kind for kind in mapped_ahead(kind_in, parts) if kind is not None}
    if len(kinds) != 1 or pa.bool_() in kinds:
        shown = " and ".join(sorted(map(str, kinds))) or "null"
        raise UsageError(
            f"column {key!r} is of type {shown}: documents are named by texts, or by numbers "
            "of one type."
        )
    return kinds.pop()


def _urls(parts: Sequence[PartOfDataset], manifest: Manifest) -> set[str]:
    """Return the URLs of all files of some parts."""
    some = parts if manifest.shuffled is None else parts[:1]  # each part knows the files of all
    return {url for part in some for url, _ in part.source_rows().files}


def _require_all(
    config: AnnotateConfig, table: ValueTable, parts: Sequence[PartOfDataset], output: Storage
) -> None:
    """Count documents without a row and rows without a document; refuse them unless `partial`.

    Raises:
        UsageError: there are some, and `partial` is False.
    """
    found, missing, first = np.zeros(len(table.names), np.bool_), 0, ""

    def look(part: PartOfDataset) -> Ints:
        return _rows_of(table, part, config.key)

    for part, rows in zip(parts, mapped_ahead(look, parts), strict=True):
        found[rows[rows >= 0]] = True
        missing += int((rows < 0).sum())
        if missing and not first:
            listed, index = listed_documents(part.files, part.record), int(np.argmin(rows))
            row, source = (listed[name][index].as_py() for name in ("row", "source"))
            first = f" (first: {part.source_rows().of(row, source)})"
    unknown = int((~found).sum())
    if not (missing or unknown):
        return
    documents = sum(part.record.documents_kept for part in parts)
    words = (
        f"{missing:,} of {documents:,} documents of {output} have no row in {config.table}{first}, "
        f"and {unknown:,} of its {len(found):,} rows are of no document"
    )
    if not config.partial:
        raise UsageError(
            f"{words}. Correct the table, or pass --partial: missing values are null then."
        )
    _log.warning("%s.", words)
