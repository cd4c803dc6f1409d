"""Whole objects of a file: all fields of a document, as JSON Lines and CBOR hold them."""

import json
from collections.abc import Iterator

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.compression import PlainStream
from streaming_ext.text.documents.json.line_pieces import LinesOfPiece
from streaming_ext.text.documents.json.lines import line_blocks, line_text
from streaming_ext.text.documents.json.values import BadValueError
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import MAX_RECORDS, Record

BLOCK_BYTES = 2**20


def values_of_lines(
    stream: PlainStream | LinesOfPiece, options: ReadOptions, *, name: str
) -> Iterator[tuple[str, object]]:
    """Each line's place and value, or what is wrong with it; blank lines are none."""
    skips = options.on_bad_document == "skip"
    for block in line_blocks(stream, block_bytes=BLOCK_BYTES, name=name, skip_long=skips):
        ends = zip(block.starts.tolist(), block.ends.tolist(), strict=True)
        for number, (start, end) in enumerate(ends):
            line = bytes(block.data[start:end])
            if not line.strip():
                continue
            value: object
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                value = BadValueError(f"no valid JSON ({error})")
            yield line_text(block.first_line + number, stream), value


def records_of_values(
    values: Iterator[tuple[str, object]], options: ReadOptions, *, name: str
) -> Iterator[list[Record]]:
    """The values that are objects, some at a time.

    Raises:
        SourceError: another is none, and such are not skipped; names its place.
    """
    records: list[Record] = []
    for place, value in values:
        if isinstance(value, dict):
            records.append(value)
        elif options.on_bad_document != "skip":
            problem = value if isinstance(value, BadValueError) else "no object"
            raise SourceError(
                f"{name}: {place}: {problem}. Mend it, or pass on_bad_document='skip'."
            )
        if len(records) == MAX_RECORDS:
            yield records
            records = []
    if records:
        yield records
