"""Plain text: a file is a document."""

import codecs
import io
from collections.abc import Iterator

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.columns import missing
from streaming_ext.text.documents.document_rows import MAX_TEXT_BYTES
from streaming_ext.text.documents.files import SourceBytes, Stream, packed_suffixes
from streaming_ext.text.documents.objects import TOO_LONG, BadValueError, ParsedValue
from streaming_ext.text.documents.source_format import Lacking, ObjectFormat


class PlainTextFormat(ObjectFormat):
    """Files of text; the names of columns do not matter."""

    name = "text"
    suffixes = packed_suffixes(".txt")
    must_be_named = True
    has_records = False

    def values(self, stream: Stream, options: ReadOptions) -> Iterator[ParsedValue]:
        """See `ObjectFormat.values`: the text is in the first column."""
        data = io.BufferedReader(stream).read(MAX_TEXT_BYTES + 1)
        value: object = BadValueError(TOO_LONG)
        if len(data) <= MAX_TEXT_BYTES:
            try:
                value = {options.columns[0]: data.removeprefix(codecs.BOM_UTF8).decode()}
            except UnicodeDecodeError as error:
                value = BadValueError(f"no valid UTF-8 at byte {error.start} of its text")
        yield ParsedValue("row 0", value)

    def check(self, file: SourceBytes, options: ReadOptions) -> Lacking:
        """See `SourceFormat.check`: the file lacks all columns."""
        where = f"{file.name}, which is plain text,"
        return {name: missing(where, name, (), kind) for name, kind in options.compared.items()}
