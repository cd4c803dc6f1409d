"""CSV and TSV: the first line names the columns, a document is a row, cells are texts.

A quoted cell may hold line ends, so a file cannot be entered in the middle. An empty cell holds
nothing, unless it is quoted.
"""

import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.document_rows import BadDocument, DocumentRows
from streaming_ext.text.documents.files import (
    SourceBytes,
    Stream,
    head_of,
    packed_suffixes,
)
from streaming_ext.text.documents.source_format import LOOK_BYTES, Names, Table, TableFormat

_BLOCKS = (2**23, 2**26, 2**29)  # bytes that are parsed at once; more if a row takes more
_TYPES = {"number": pa.float64(), "boolean": pa.bool_()}  # of columns that `--where` compares


class CsvFormat(TableFormat):
    """Files of cells with commas between."""

    name = "csv"
    suffixes = packed_suffixes(".csv")
    delimiter: ClassVar[str] = ","

    def schema(self, file: SourceBytes, options: ReadOptions) -> pa.Schema:
        """See `TableFormat.schema`."""
        head = head_of(file, LOOK_BYTES)
        with pa_csv.open_csv(
            pa.BufferReader(head), parse_options=self._parsed(lambda row: "skip")
        ) as reader:
            names = reader.schema.names
        kinds = [_TYPES.get(options.compared.get(name, ""), pa.large_string()) for name in names]
        return pa.schema(zip(names, kinds, strict=True))

    def tables(self, rows: DocumentRows, names: Names) -> Iterator[Table]:
        """See `TableFormat.tables`; if a row is larger than a block, all is read again."""
        schema = self.schema(rows.file, rows.options)
        for size in _BLOCKS:
            try:
                with Stream(rows.file) as stream:
                    yield from self._tables(stream, rows, schema, names, size)
            except pa.ArrowInvalid as error:
                if "block size" not in str(error) or size == _BLOCKS[-1]:
                    raise
            else:
                return

    def _tables(
        self, stream: Stream, rows: DocumentRows, schema: pa.Schema, names: Names, size: int
    ) -> Iterator[Table]:
        bad: deque[BadDocument] = deque()

        def left_out(line: pa_csv.InvalidRow) -> str:
            number = line.number - 2  # the header is line 1
            reason = f"{line.actual_columns} cells, expected {line.expected_columns}"
            marked.ended = line.text == marked.mark
            if not marked.ended:
                bad.append(BadDocument(number, f"row {number}", reason))
            return "skip"

        marked = _MarkedLines(stream, secrets.token_hex(16) + self.delimiter * len(schema))
        with pa_csv.open_csv(
            pa.PythonFile(marked, mode="r"),
            read_options=pa_csv.ReadOptions(use_threads=False, block_size=size),
            parse_options=self._parsed(left_out),
            convert_options=pa_csv.ConvertOptions(
                check_utf8=False,
                column_types=dict.fromkeys(schema.names, pa.large_string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                include_columns=names,
            ),
        ) as reader:
            first = 0
            for batch in chain(reader, [pa.RecordBatch.from_pylist([], reader.schema)]):
                own: list[BadDocument] = []
                while bad and bad[0].row <= first + len(batch) + len(own):
                    own.append(bad.popleft())
                table, own = _with_bad_rows(batch, schema, own, first)
                done = max(0, rows.row - first)  # if smaller blocks were tried before
                first += len(table)
                if done < len(table):
                    own = [one for one in own if one.row >= rows.row]
                    yield Table(table.slice(done), stream.fraction, own)
        if not marked.ended:
            raise ValueError("it ends within a quoted cell: it is cut short")

    def _parsed(self, left_out: object) -> pa_csv.ParseOptions:
        return pa_csv.ParseOptions(
            delimiter=self.delimiter,
            newlines_in_values=True,
            ignore_empty_lines=False,
            invalid_row_handler=left_out,
        )


class TsvFormat(CsvFormat):
    """Files of cells with tabs between, quoted as those of CSV."""

    name = "tsv"
    suffixes = packed_suffixes(".tsv")
    delimiter = "\t"


class _MarkedLines:
    """A stream with one more line: no row of the table, unless a quote is open at the end.

    No chunk ends with a carriage return: Arrow drops a line feed that begins the next one then.
    """

    closed = False

    def __init__(self, stream: Stream, mark: str) -> None:
        self._stream, self.mark, self.ended = stream, mark, False
        self._rest, self._last, self._over = b"", b"\n", False

    def read(self, size: int) -> bytes:
        """The next bytes."""
        while not self._over and len(self._rest) < size:
            data = self._stream.read(size - len(self._rest))
            self._last, self._over = data[-1:] or self._last, not data
            self._rest += data or b"\n"[self._last == b"\n" :] + f"{self.mark}\n".encode()
        end = min(size, len(self._rest))
        end -= self._rest[:end].endswith(b"\r")
        data, self._rest = self._rest[:end], self._rest[end:]
        return data


def _with_bad_rows(
    batch: pa.RecordBatch, schema: pa.Schema, bad: Sequence[BadDocument], first: int
) -> tuple[pa.RecordBatch, list[BadDocument]]:
    """Rows with empty ones for those that the parser left out, and cells as the schema's types.

    Args:
        batch: rows of texts.
        schema: a type for each column.
        bad: the rows that were left out, among these.
        first: number of the first row.

    Returns:
        rows: empty where one is bad.
        bad: these, and those with a cell of another type.
    """
    by_row = {one.row - first: one for one in bad}
    good = np.ones(len(batch) + len(bad), bool)
    good[[*by_row]] = False
    numbers = np.flatnonzero(good)
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = schema.field(name).type
        columns.append(_typed(column, kind))
        for row in numbers[np.asarray(column.is_valid()) & np.asarray(columns[-1].is_null())]:
            reason = f"{name!r} is no {kind}, which --where asks for"
            by_row[row] = BadDocument(first + row, f"row {first + row}", reason)
    index = np.cumsum(good) - 1
    good[[*by_row]] = False
    found = pa.RecordBatch.from_arrays(columns, batch.schema.names)
    return found.take(pa.array(index, mask=~good)), [by_row[row] for row in sorted(by_row)]


def _typed(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cells as another type; null if a cell is no such value."""
    try:
        return cells.cast(kind)
    except pa.ArrowInvalid:
        half = len(cells) // 2
        if not half:
            return pa.nulls(1, kind)
        return pa.concat_arrays([_typed(cells[:half], kind), _typed(cells[half:], kind)])
