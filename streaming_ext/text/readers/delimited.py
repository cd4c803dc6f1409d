"""CSV and TSV: the first line names the columns, a document is a row, cells are texts."""

import secrets
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.columns import cast_if_possible
from streaming_ext.text.documents.document_rows import BadRow, DocumentRows
from streaming_ext.text.documents.files import SourceBytes, Stream, head_of, packed_suffixes
from streaming_ext.text.documents.source_format import LOOK_BYTES, Names, Table, TableFormat

_BLOCK_BYTES = 2**25  # that are parsed at once; no row may be longer
_TYPES = {"number": pa.float64(), "boolean": pa.bool_()}  # of columns that `--where` compares


class CsvFormat(TableFormat):
    """Files of cells with commas between them; an empty cell is null, unless it is quoted."""

    name = "csv"
    suffixes = packed_suffixes(".csv")
    delimiter: ClassVar[str] = ","

    def schema(self, file: SourceBytes, options: ReadOptions) -> pa.Schema:
        """See `TableFormat.schema`."""
        parse = self._parsed(lambda row: "skip")
        head = head_of(file, LOOK_BYTES)
        # Without its last line, which may end within a character: Arrow would refuse that.
        lines = head[: max(map(head.rfind, (b"\n", b"\r"))) + 1] or (head and head + b"\n")
        with pa_csv.open_csv(pa.BufferReader(lines), None, parse) as reader:
            names = reader.schema.names
        kinds = [_TYPES.get(options.compared.get(name, ""), pa.large_string()) for name in names]
        return pa.schema(zip(names, kinds, strict=True))

    def tables(self, rows: DocumentRows, names: Names) -> Iterator[Table]:
        """See `TableFormat.tables`."""
        schema = self.schema(rows.file, rows.options)
        malformed: deque[BadRow] = deque()

        def left_out(line: pa_csv.InvalidRow) -> str:
            lines.ended = line.text == lines.mark
            if not lines.ended:
                number = line.number - 2  # the header is line 1
                reason = f"{line.actual_columns} cells, expected {line.expected_columns}"
                malformed.append(BadRow(number, f"row {number}", reason))
            return "skip"

        read = pa_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)
        parse = self._parsed(left_out)
        convert = pa_csv.ConvertOptions(check_utf8=False, null_values=[""], include_columns=names)
        convert.column_types = dict.fromkeys(schema.names, pa.large_string())
        convert.strings_can_be_null, convert.quoted_strings_can_be_null = True, False
        with Stream(rows.file) as stream:
            lines = _MarkedLines(stream, secrets.token_hex(16) + self.delimiter * len(schema))
            with pa_csv.open_csv(pa.PythonFile(lines, mode="r"), read, parse, convert) as reader:
                for left in chain(reader, [pa.RecordBatch.from_pylist([], reader.schema)]):
                    while len(left) or (malformed and malformed[0].row == rows.row):
                        ahead = malformed[0].row - rows.row if malformed else len(left)
                        if ahead:
                            yield _typed(left.slice(0, ahead), schema, rows.row, stream.fraction)
                        else:
                            row = pa.RecordBatch.from_pylist([{}], schema)
                            yield Table(row, stream.fraction, [malformed.popleft()])
                        left = left.slice(min(ahead, len(left)))  # noqa: PLW2901
        if not lines.ended:
            raise ValueError("it ends within a quoted cell: it is cut short")

    def _parsed(self, left_out: object) -> pa_csv.ParseOptions:
        parse = pa_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        parse.ignore_empty_lines, parse.invalid_row_handler = False, left_out
        return parse


class TsvFormat(CsvFormat):
    """Files of cells with tabs between them, quoted as in CSV."""

    name = "tsv"
    suffixes = packed_suffixes(".tsv")
    delimiter = "\t"


class _MarkedLines:
    """A stream with one more line: not a row of the table, unless a quote is open at the end.

    No chunk ends with a carriage return: Arrow would drop a line feed that begins the next chunk.
    """

    closed = False

    def __init__(self, stream: Stream, mark: str) -> None:
        self._stream, self.mark, self.ended = stream, mark, False
        self._rest, self._last, self._over = b"", b"\n", False

    def read(self, size: int) -> bytes:
        """Read the next bytes."""
        while not self._over and len(self._rest) < size:
            data = self._stream.read(size - len(self._rest))
            self._last, self._over = data[-1:] or self._last, not data
            self._rest += data or b"\n"[self._last == b"\n" :] + f"{self.mark}\n".encode()
        end = min(size, len(self._rest))
        end -= self._rest[:end].endswith(b"\r")
        data, self._rest = self._rest[:end], self._rest[end:]
        return data


def _typed(batch: pa.RecordBatch, schema: pa.Schema, first: int, fraction: float) -> Table:
    """Cast the cells of rows from `first` on to the types of a schema; mark other rows as bad."""
    columns, bad = [], {}
    for name, cells in zip(batch.schema.names, batch.columns, strict=True):
        columns.append(cast_if_possible(cells, schema.field(name).type))
        wrong = np.asarray(cells.is_valid()) & np.asarray(columns[-1].is_null())
        for row in np.flatnonzero(wrong) + first:
            reason = f"{name!r} is no {columns[-1].type}, which --where asks for"
            bad[row] = BadRow(row, f"row {row}", reason)
    table = pa.RecordBatch.from_arrays(columns, batch.schema.names)
    return Table(table, fraction, [bad[row] for row in sorted(bad)])
