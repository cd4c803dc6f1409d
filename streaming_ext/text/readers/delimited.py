"""CSV and TSV: the first line names the columns, a document is a row, cells are texts.

A quoted cell may hold line ends, so a file cannot be entered in the middle. An empty cell holds
nothing, unless it is quoted.
"""

import secrets
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import ClassVar

import pyarrow as pa
import pyarrow.csv as pa_csv

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.document_rows import BadDocument, DocumentRows, with_left_out
from streaming_ext.text.documents.files import SourceBytes, Span
from streaming_ext.text.documents.lines import MarkedLines
from streaming_ext.text.documents.source_format import LOOK_BYTES, Names, Table, TableFormat
from streaming_ext.text.documents.streams import Stream, open_stream, packed_suffixes

_BLOCKS = (2**23, 2**26, 2**29)  # bytes that are parsed at once; more where a row takes more
_TYPES = {"number": pa.float64(), "boolean": pa.bool_()}  # of what `--where` compares with such


class CsvFormat(TableFormat):
    """Files of cells with commas between."""

    name = "csv"
    suffixes = packed_suffixes(".csv")
    delimiter: ClassVar[str] = ","

    def schema(self, file: SourceBytes, options: ReadOptions) -> pa.Schema:
        """See `TableFormat.schema`."""
        with open_stream(file, head=LOOK_BYTES) as stream:
            head = stream.read(LOOK_BYTES)
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise ValueError("it is UTF-16, and UTF-8 is read")
        with pa_csv.open_csv(
            pa.BufferReader(head), parse_options=self._parsed(lambda row: "skip")
        ) as reader:
            names = reader.schema.names
        kinds = [_TYPES.get(options.compared.get(name, ""), pa.large_string()) for name in names]
        return pa.schema(zip(names, kinds, strict=True))

    def tables(
        self, file: SourceBytes, rows: DocumentRows, names: Names, span: Span | None
    ) -> Iterator[Table]:
        """See `TableFormat.tables`; where a row is larger than a block, all is read again."""
        schema = self.schema(file, rows.options)
        for size in _BLOCKS:
            try:
                with open_stream(file) as stream:
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

        marked = MarkedLines(stream, secrets.token_hex(16) + self.delimiter * len(schema))
        texts = dict.fromkeys(schema.names, pa.large_string())
        with pa_csv.open_csv(
            pa.PythonFile(marked, mode="r"),
            read_options=pa_csv.ReadOptions(use_threads=False, block_size=size),
            parse_options=self._parsed(left_out),
            convert_options=pa_csv.ConvertOptions(
                check_utf8=False,
                column_types=texts,
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
                table, own = with_left_out(batch, schema, own, first)
                done = max(0, rows.row - first)  # when smaller blocks were tried
                first += len(table)
                if done < len(table):
                    own = [one for one in own if one.row >= rows.row]
                    yield Table(table.slice(done), stream.fraction, None, own)
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
