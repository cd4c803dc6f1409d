"""JSON: a file that is one array of objects, read in pieces; or, by its first character, lines."""

import codecs
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.compression import (
    PlainStream,
    codec_of,
    open_anywhere,
    open_here,
    pack,
    packed_suffixes,
)
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.json.json_lines import JsonLinesFormat
from streaming_ext.text.documents.json.values import (
    BadValueError,
    batches_of_values,
    check_fields,
    require_object,
    sample_of,
)
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    BATCH_BYTES,
    MAX_TEXT_BYTES,
    Block,
    DocumentBatch,
    FileLook,
    SourceBytes,
    SourceFormat,
    Span,
)

_HEAD_BYTES = 2**12  # in which the first character stands
_CHUNK_BYTES = 2**20
_LOOK_DOCUMENTS = 50
_KEEP_BAD = "surrogateescape"  # each byte that is no UTF-8 as a character that no text holds
_SPACE = " \t\r\n"
_decode = json.JSONDecoder(parse_int=float).raw_decode
_CUT_OFF = 32  # characters before the end of what is here in which a fault may only mean more


class JsonFormat(SourceFormat):
    """`.json` files: an array of objects, or an object a line."""

    name = "json"
    suffixes = packed_suffixes(".json")
    _lines = JsonLinesFormat()

    def is_in_folder(self, name: str) -> bool:
        """None: folders hold such files for other reasons too, so they must be named."""
        return False

    def read(
        self,
        path: Path,
        options: ReadOptions,
        *,
        name: str | None = None,
        span: Span | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[DocumentBatch]:
        """See `SourceFormat.read`; the message names document and byte."""
        where = name or str(path)
        if span is None:
            with open_here(path, name=where) as stream:
                if _is_array(stream):
                    size = path.stat().st_size
                    rows = DocumentRows(options, where=where, size=size, batch_bytes=batch_bytes)
                    with open_here(path, name=where) as again:
                        yield from _batches(again, rows)
                    return
        yield from self._lines.read(path, options, name=where, span=span, batch_bytes=batch_bytes)

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`: an object a line can, an array cannot."""
        with open_anywhere(file) as stream:
            is_array = _is_array(stream)
        return not is_array and self._lines.can_be_cut(file)

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span) -> tuple[Span, ...]:
        """See `SourceFormat.needed`; of lines."""
        return self._lines.needed(file, options, span)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook:
        """See `SourceFormat.look`: the first documents name the fields."""
        with open_anywhere(file) as stream:
            if not _is_array(stream):
                return self._lines.look(file, options)
        with open_anywhere(file) as stream:
            first = islice(_documents(stream, file.name), _LOOK_DOCUMENTS)
            try:
                values = [require_object(value) for value, _ in first]
            except BadValueError as error:
                raise SourceError(f"{file.name}: {error}.") from error
        check_fields(values, options, where=file.name)
        return FileLook(
            blocks=(Block(None, file.size),), plain=False, codec=codec_of(file.name)
        )  # fmt: skip

    def read_blocks(
        self, file: SourceBytes, options: ReadOptions, blocks: Sequence[int], *, batch_bytes: int
    ) -> Iterator[tuple[int, Iterator[DocumentBatch]]]:
        """See `SourceFormat.read_blocks`."""
        with open_anywhere(file) as stream:
            is_array = _is_array(stream)
        if not is_array:
            yield from self._lines.read_blocks(file, options, blocks, batch_bytes=batch_bytes)
            return
        for block in blocks:
            rows = DocumentRows(options, where=file.name, size=file.size, batch_bytes=batch_bytes)
            with open_anywhere(file) as stream:
                yield block, _batches(stream, rows)

    def write(
        self, path: Path, texts: pa.ChunkedArray, options: ReadOptions, *, codec: str
    ) -> None:
        """See `SourceFormat.write`."""
        documents = list(sample_of(texts, options))
        pack(json.dumps(documents, ensure_ascii=False, indent=0).encode(), path, codec)


def _is_array(stream: PlainStream) -> bool:
    head = stream.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8)
    return head.lstrip().startswith(b"[")


class _Characters:
    """The characters of a stream that are not used yet, and where they stand in it."""

    def __init__(self, stream: PlainStream, where: str, *, skip_bad: bool) -> None:
        self._stream, self.where, self._skip_bad = stream, where, skip_bad
        self.has_bad = False
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.text = ""
        self.at = 0  # of the next character, in `text`
        self.ended = False
        self._before = 0  # bytes that were dropped
        self._counted = self._counted_bytes = 0  # characters of `text`, and their bytes

    def byte(self, at: int | None = None) -> int:
        """Where a character stands in the unpacked file; a byte order mark is not counted."""
        at = self.at if at is None else at
        if at < self._counted:
            self._counted = self._counted_bytes = 0
        self._counted_bytes += len(_bytes(self.text[self._counted : at]))
        self._counted = at
        return self._before + self._counted_bytes

    def more(self) -> None:
        """Read at least as much again as is here, and drop what is used."""
        self._before = self.byte()
        self.text, self.at = self.text[self.at :], 0
        self._counted = self._counted_bytes = 0
        data = self._stream.read(max(_CHUNK_BYTES, len(self.text)))
        self.ended = not data
        try:
            self.text += self._decoder.decode(data, final=self.ended)
        except UnicodeDecodeError as error:
            if not self._skip_bad:
                byte = self._before + len(_bytes(self.text)) + error.start
                raise SourceError(
                    f"{self.where}: byte {byte}: no valid UTF-8. Mend the file, leave it out, or "
                    "pass --on-bad-document skip."
                ) from error
            self.has_bad, self._decoder.errors = True, _KEEP_BAD
            self.text += self._decoder.decode(data, final=self.ended)

    def bad_byte(self, end: int) -> int | None:
        """Where in the file the first byte stands that is no UTF-8, of the text up to `end`."""
        if self.has_bad:
            try:
                self.text[self.at : end].encode()
            except UnicodeEncodeError as error:
                return self.byte(self.at + error.start)
        return None

    def next(self) -> str:
        """The next character that is no white space, not used yet; none at the end."""
        while True:
            rest = self.text[self.at : self.at + 1]
            if rest and rest not in _SPACE:
                return rest
            if rest:
                self.at += 1
            elif self.ended:
                return ""
            else:
                self.more()


def _bytes(text: str) -> bytes:
    return text.encode(errors=_KEEP_BAD)


def _documents(
    stream: PlainStream, where: str, *, skip_bad: bool = False
) -> Iterator[tuple[object, int]]:
    """The values of the array, or what is wrong with one, and the byte where that stands."""
    here = _Characters(stream, where, skip_bad=skip_bad)
    number = 0
    assert here.next() == "["  # noqa: S101  (else it is read as lines)
    here.at += 1
    while (found := here.next()) != "]":
        if number:
            if found != ",":
                problem = f"expected ',' or ']', got {found or 'the end of the file'!r}"
                raise _refused(here, number, problem)
            here.at += 1
            here.next()
        value, end = _decoded(here, number)
        bad_byte = here.bad_byte(end)
        if bad_byte is None:
            yield value, here.byte()
        else:
            yield BadValueError("no valid UTF-8"), bad_byte
        here.at = end
        number += 1
    here.at += 1
    if here.next():
        raise _refused(here, number, "something stands behind the end of the array")


def _decoded(here: _Characters, number: int) -> tuple[object, int]:
    """The value that begins here, and where it ends."""
    while True:
        try:
            value, end = _decode(here.text, here.at)
        except json.JSONDecodeError as error:
            certain = error.pos < len(here.text) - _CUT_OFF and "Unterminated" not in error.msg
            if certain or here.ended or len(here.text) - here.at > MAX_TEXT_BYTES:
                raise _refused(here, number, f"no valid JSON ({error.msg})", error.pos) from error
        except RecursionError as error:
            raise _refused(here, number, "values nested too deep") from error
        else:
            if end < len(here.text) or here.ended:  # else a number may go on
                return value, end
        here.more()


def _refused(here: _Characters, number: int, problem: str, at: int | None = None) -> SourceError:
    """A fault behind which nothing can be read."""
    return SourceError(
        f"{here.where}: document {number + 1}, byte {here.byte(at)}: {problem}. Mend it, or leave "
        "the file out."
    )


def _batches(stream: PlainStream, rows: DocumentRows) -> Iterator[DocumentBatch]:
    where, options = rows.where, rows.options
    values = (
        (f"document {number + 1}, byte {byte}", value)
        for number, (value, byte) in enumerate(
            _documents(stream, where, skip_bad=options.on_bad_document == "skip")
        )
    )
    yield from batches_of_values(values, rows, fraction=lambda: stream.fraction)
