"""Plain text: a file is a document."""

import codecs
from collections.abc import Iterator

from streaming_ext.base.errors import UsageError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.document_rows import MAX_TEXT_BYTES
from streaming_ext.text.documents.files import SourceBytes
from streaming_ext.text.documents.kept_values import option_of
from streaming_ext.text.documents.objects import TOO_LONG, BadValueError, Value
from streaming_ext.text.documents.source_format import Block, FileLook, ObjectFormat
from streaming_ext.text.documents.streams import Stream, packed_suffixes

_READ_BYTES = 2**24


class PlainTextFormat(ObjectFormat):
    """Files of text; the names of columns do not matter."""

    name = "text"
    suffixes = packed_suffixes(".txt")
    must_be_named = True
    has_records = False

    def values(self, stream: Stream, options: ReadOptions) -> Iterator[Value]:
        """See `ObjectFormat.values`: the text stands in the first column."""
        self.look(stream.file, options)
        chunks: list[bytes] = []
        size = 0
        value: object
        while size <= MAX_TEXT_BYTES and (data := stream.read(_READ_BYTES)):
            chunks.append(data)
            size += len(data)
        try:
            text = b"".join(chunks).removeprefix(codecs.BOM_UTF8).decode()
            value = {options.columns[0]: text}
        except UnicodeDecodeError as error:
            value = BadValueError(f"no valid UTF-8 at byte {error.start} of its text")
        yield Value("row 0", value if size <= MAX_TEXT_BYTES else BadValueError(TOO_LONG))

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook:
        """See `SourceFormat.look`: the file is one row."""
        if options.compared:
            named = " and ".join(dict.fromkeys(map(option_of, options.compared.values())))
            raise UsageError(
                f"{file.name}: plain text has no columns, and {named} names "
                f"{', '.join(options.compared)}."
            )
        return FileLook(blocks=(Block(1, file.size),))
