"""WebDataset: tars of samples; a document is a sample's `.txt`, or a field of its `.json`.

A sample is the members next to each other whose paths are the same up to the first dot of the name.
Members are read one after another from a stream, and never written anywhere.

A tar is whole if nothing but headers, members and blocks of zeros stands in it, and such a block is
the last.
"""

import codecs
import tarfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import IO, NamedTuple, Self, cast

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.document_rows import MAX_TEXT_BYTES
from streaming_ext.text.documents.files import Stream, packed_suffixes
from streaming_ext.text.documents.objects import BadValueError, ParsedValue, decoded
from streaming_ext.text.documents.source_format import ObjectFormat

_READ_BYTES = 128 * tarfile.BLOCKSIZE  # at once
_ZEROS = bytes(tarfile.BLOCKSIZE)
_TXT = ("text", "txt")  # columns that are the `.txt` of a sample, if it has one


class WebDatasetFormat(ObjectFormat):
    """Tars of samples, packed or not."""

    name = "webdataset"
    suffixes = packed_suffixes(".tar")
    has_records = False
    look_bytes = 2**24  # images and the like included

    def values(self, stream: Stream, options: ReadOptions) -> Iterator[ParsedValue]:
        """See `ObjectFormat.values`."""
        for key, group in groupby(_members(stream), key=attrgetter("key")):
            sample = [*group]
            value = _document(sample, options)
            yield ParsedValue(f"sample {key!r}", value, sum(len(one.data) for one in sample))
            del value, sample  # they may be large


class _Member(NamedTuple):
    """A file of a sample.

    Attributes:
        key: the path of the sample.
        ending: the rest of the file's path, without the dot and in lower case.
        data: the content of a text, without a byte order mark.
        problem: the reason why the text cannot be read.
    """

    key: str
    ending: str
    data: bytes = b""
    problem: str = ""


class _Header(tarfile.TarInfo):
    """A header of a tar; damage after the first one is no end of the tar."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """A header from its bytes."""
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if buf in (b"", _ZEROS):
                raise
            raise tarfile.ReadError(f"a header that is damaged or cut short: {error}") from error


def _members(stream: Stream) -> Iterator[_Member]:
    """The members of samples, of any number of tars end to end.

    Raises:
        tarfile.TarError, ValueError: a tar is damaged or cut short.
    """
    with tarfile.open(
        fileobj=cast("IO[bytes]", stream),
        mode="r|",
        bufsize=_READ_BYTES,
        ignore_zeros=True,
        tarinfo=_Header,
        encoding="utf-8",
        errors="surrogateescape",
    ) as tar:
        end = 0
        while (info := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # else all headers are kept
            end = tar.offset
            if info.issparse() or not 0 <= info.size <= stream.most:
                kind = "sparse " if info.issparse() else ""
                raise tarfile.ReadError(f"a {kind}member of {info.size} bytes, which is not read")
            folder, slash, base = info.name.rpartition("/")
            stem, dot, ending = base.partition(".")
            if not dot or (base.startswith("__") and stem.endswith("__")):
                continue
            member = _Member(f"{folder}{slash}{stem}", ending.lower())
            is_text, is_link = member.ending in ("txt", "json"), info.islnk() or info.issym()
            if is_text and is_link:
                yield member._replace(problem="a link, which is not followed")
            elif is_text and info.isreg() and info.size > MAX_TEXT_BYTES:
                yield member._replace(problem=f"longer than {MAX_TEXT_BYTES} bytes")
            elif is_text and info.isreg():
                data = cast("IO[bytes]", tar.extractfile(info)).read()
                yield member._replace(data=data.removeprefix(codecs.BOM_UTF8))
                del data
            elif info.isreg():
                yield member
        if tar.offset == end:
            raise tarfile.ReadError("no block of zeros ends it after the last member")


def _document(sample: Sequence[_Member], options: ReadOptions) -> object:
    """The fields of a sample, or its fault; its `.json` is decoded only if a column needs it."""
    texts: dict[str, bytes] = {}
    for _, ending, data, problem in sample:
        if ending in ("txt", "json"):
            if fault := "more than one" if ending in texts else problem:
                return BadValueError(f".{ending}: {fault}")
            texts[ending] = data
    if not texts:
        return dict.fromkeys((one.ending for one in sample), b"")
    columns = {*options.columns, *options.compared}
    described: object = {}
    if "json" in texts and ("txt" not in texts or options.compared or columns - {*_TXT}):
        described = decoded(texts["json"])
    if "txt" not in texts or not isinstance(described, dict):
        return described
    if not columns & {*_TXT}:
        return {"txt": None, **described}
    try:
        return described | dict.fromkeys(_TXT, texts["txt"].decode())
    except UnicodeDecodeError as error:
        return BadValueError(f".txt: no valid UTF-8 ({error})")
