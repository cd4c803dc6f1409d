"""A table of values for documents, indexed by the names of the documents.

A document is named by its file and row, or by the value of one of its columns. Names are compared
as 128 bits; for a file and row, or a text, these are a hash (`streaming_ext.text.text_hashes`).
"""

import io
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from streaming_ext.base.arrays import Ints, look_up
from streaming_ext.base.errors import UsageError, one_line
from streaming_ext.format.condition import fits, is_text
from streaming_ext.format.duplicates import fixed_binary, fixed_bytes
from streaming_ext.format.provenance import KEPT_PREFIX, MAX_VALUE_BYTES
from streaming_ext.format.shuffled import Keys, document_keys
from streaming_ext.text.documents.columns import stored, too_long
from streaming_ext.text.documents.files import codec_of
from streaming_ext.text.text_hashes import text_digests

ORIGIN: Final = ("source", "row")  # the columns that name documents, unless a key does
Names = npt.NDArray[np.bytes_]  # 16 bytes per document
_TEXT: Final = pa.large_string()
_NAMES: Final = "names"  # column of the saved table; value columns have a prefix


def _csv(file: Any, texts: Collection[str]) -> pa.Table:
    convert = pa_csv.ConvertOptions(null_values=[""])  # as for sources
    convert.strings_can_be_null, convert.quoted_strings_can_be_null = True, False
    convert.column_types = dict.fromkeys(texts, _TEXT)
    parse = pa_csv.ParseOptions(newlines_in_values=True)
    return pa_csv.read_csv(file, parse_options=parse, convert_options=convert)


def _json(file: Any, texts: Collection[str]) -> pa.Table:
    schema = pa.schema(dict.fromkeys(texts, pa.string()))
    return pa_json.read_json(file, parse_options=pa_json.ParseOptions(explicit_schema=schema))


_READERS: Final[Mapping[str, Callable[[Any, Collection[str]], pa.Table]]] = {
    ".parquet": lambda file, texts: pq.read_table(file),
    ".csv": _csv,
    ".jsonl": _json,
}


def read_table(url: str, data: bytes, names: Collection[str]) -> pa.Table:
    """Parse the table in a file.

    Args:
        url: the URL of the file, whose suffix gives the format.
        data: the bytes of the file.
        names: the columns that name documents by texts, which may look like numbers.

    Raises:
        UsageError: the file has another format, or is damaged.
    """
    name, codec = url, codec_of(url)
    if codec != "none":
        name = url.rpartition(".")[0]
    reader = next((read for suffix, read in _READERS.items() if name.endswith(suffix)), None)
    if reader is None:
        raise UsageError(f"{url} must end in {', '.join(_READERS)}, .csv.gz or .jsonl.zst.")
    try:
        if codec != "none":
            data = pa.CompressedInputStream(io.BytesIO(data), codec).read()
        texts = names if reader is _csv else ()  # other formats have types
        table = reader(pa.BufferReader(data), texts)
        dates = [field.name for field in table.schema if pa.types.is_temporal(field.type)]
        guessed = dates and reader in (_csv, _json)  # a text that looks like a date stays a text
        return reader(pa.BufferReader(data), [*texts, *dates]) if guessed else table
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{url} cannot be read: {one_line(error)}.") from error


def as_names(halves: Keys) -> Names:
    """Return the names with these halves, (documents, 2).

    NumPy drops zero bytes at the end of an `S16`, and pads with zero bytes to compare. All names
    have 16 bytes, so the comparison is exact.
    """
    return np.ascontiguousarray(halves).view("S16").ravel()


def row_names(urls: Sequence[str], files: Ints, rows: Ints) -> Names:
    """Return the names of documents by file and row: (documents,).

    Args:
        urls: the URLs of all files.
        files: the number of the file of each document, (documents,).
        rows: the row of each document in its file, (documents,).
    """
    digests = text_digests(pa.array(urls, _TEXT))[files]
    halves = [document_keys(half, digests[:, half].view(np.int64), rows) for half in range(2)]
    return as_names(np.stack(halves, axis=1))


def value_names(column: pa.Array) -> Names:
    """Return the names of documents by a column of texts or numbers without nulls: (documents,)."""
    if column.type == _TEXT:
        return as_names(text_digests(column))
    halves = np.zeros((len(column), 2), np.uint64)
    halves[:, 0] = (np.asarray(column) + 0).view(np.uint64)  # -0.0 is 0.0
    return as_names(halves)


@dataclass(frozen=True)
class ValueTable:
    """A table of values, sorted by names.

    Attributes:
        names: the name of each row, ascending: (rows,).
        values: the columns to add, with the prefix of kept columns.
    """

    names: Names
    values: pa.Table

    @classmethod
    def of(cls, names: Names, values: pa.Table) -> tuple[Self, Ints]:
        """Return the table of rows with these names, (rows,), and the rows that repeat a name."""
        order = np.argsort(names, kind="stable")
        names = names[order]
        made = cls(names, values.take(pa.array(order)).combine_chunks())
        return made, np.sort(order[1:][names[1:] == names[:-1]])

    def save(self, path: Path) -> None:
        """Write the table to a file that `open` maps."""
        names = fixed_binary(self.names.view(np.uint8).reshape(-1, 16))
        table = self.values.append_column(_NAMES, names)
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table, max_chunksize=max(1, len(table)))

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map a saved table, so that all workers of a host share its memory."""
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        names = fixed_bytes(table[_NAMES].chunk(0)).view("S16").ravel()
        return cls(names, table.drop_columns([_NAMES]))

    def find(self, names: Names) -> Ints:
        """Return the row of each name, -1 if there is none: (names,)."""
        rows = np.full(len(names), -1)
        is_known, at = look_up(self.names, names)
        rows[is_known] = at
        return rows


def added_columns(table: pa.Table, key: str | None, known: Collection[str], where: str) -> pa.Table:
    """Return the columns that a table adds, in the form of kept columns.

    Args:
        table: the table.
        key: the column that names documents; None for file and row.
        known: the names of the dataset's columns.
        where: the table, for messages.

    Raises:
        UsageError: the table names no documents, adds no column, or has a value that cannot be
            stored.
    """
    keys, found = ORIGIN if key is None else (key,), ", ".join(table.column_names) or "none"
    for name in table.column_names:
        if table.column_names.count(name) > 1:
            raise UsageError(f"{where} has more than one column {name!r}. Rename one.")
    if missing := [name for name in keys if name not in table.column_names]:
        raise UsageError(
            f"{where} has no column {missing[0]!r}; its columns are {found}. Documents are named "
            "by `source` and `row`, or by a kept column that --key names."
        )
    columns = {name: table[name] for name in table.column_names if name not in keys}
    if not len(table):
        raise UsageError(f"{where} has no row.")
    if not columns:
        raise UsageError(f"{where} adds no column: it has {found} alone.")
    if again := [name for name in columns if name in known]:
        raise UsageError(
            f"The dataset has a column {again[0]!r} already. Rename the one of {where}."
        )
    return pa.table(
        {f"{KEPT_PREFIX}{name}": _stored(name, column, where) for name, column in columns.items()}
    )


def _stored(name: str, column: pa.ChunkedArray, where: str) -> pa.Array:
    if not fits("value", column.type):
        raise UsageError(
            f"{where}: column {name!r} is of type {column.type}; texts, numbers, True and False "
            "can be added."
        )
    if is_text(column.type):
        column = column.cast(_TEXT)  # of any size
    made = stored(column.combine_chunks())
    if long := too_long(made):
        raise UsageError(
            f"{where}: row {long[0]} of column {name!r} has more than {MAX_VALUE_BYTES} bytes."
        )
    return made.cast(_TEXT) if pa.types.is_null(made.type) else made


def names_in(
    table: pa.Table, key: str | None, kind: pa.DataType, urls: Iterable[str], where: str
) -> Names:
    """Return the name of each row's document: (rows,).

    Args:
        table: the table.
        key: the column that names documents; None for file and row.
        kind: the type of the key column in the dataset.
        urls: the URLs of all files of the dataset; a table may have the end of a URL.
        where: the table, for messages.

    Raises:
        UsageError: a name is missing, has another type, or fits several files.
    """

    def column(name: str, kind: pa.DataType) -> pa.Array:
        try:
            values = table[name].cast(kind)
        except pa.ArrowException as error:
            raise UsageError(f"{where}: column {name!r}: {one_line(error)}.") from error
        if values.null_count:
            raise UsageError(f"{where}: column {name!r} holds nulls; each row names a document.")
        return values.combine_chunks()

    if key is not None:
        return value_names(column(key, kind))
    sources = column("source", _TEXT).dictionary_encode()
    by_end = defaultdict(list)
    for url in urls:
        by_end[url.rpartition("/")[2]].append(url)
    given = [_url_of(name, by_end, where) for name in sources.dictionary.to_pylist()]
    rows = np.asarray(column("row", pa.int64()))
    return row_names(given, np.asarray(sources.indices), rows)


def _url_of(name: str, by_end: Mapping[str, Sequence[str]], where: str) -> str:
    """Return the URL that equals a name or ends with it, or the name itself if there is none."""
    known = by_end.get(name.rpartition("/")[2], ())
    found = [url for url in known if url.endswith(f"/{name}")]
    if name in known or not found:
        return name
    if len(found) > 1:
        raise UsageError(
            f"{where}: source {name!r} may be {found[0]} or {found[1]}: give more of its name."
        )
    return found[0]
