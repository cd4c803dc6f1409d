"""Where the messages of an Arrow IPC file or stream lie, found without reading what they hold.

A file is a stream between its magic and its footer:

    stream:  [schema] [dictionary]... [record batch]... end
    file:    ARROW1.. [the same stream] [footer] its length ARROW1
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import RawIOBase
from typing import TYPE_CHECKING, BinaryIO

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.source_format import SeekableBytes, SourceBytes, Span

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAGIC = b"ARROW1"  # of a file; a stream has none
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_CONTINUES = 0xFFFFFFFF  # before each length, but in files of before 2019
_FILE_HEAD = 8  # the magic, padded
_FILE_TAIL = 10  # length of the footer, the magic
_REQUEST_BYTES = 2**16
_MOST_METADATA = 2**27
_RECORD_BATCH = 3  # among the kinds of messages
_KIND, _BODY_BYTES = 1, 3  # fields of the table `Message`
_DICTIONARIES, _BATCHES = 2, 3  # of the table `Footer`


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a file.

    Attributes:
        span: its bytes.
        head: the first of them, which say how many there are.
        has_rows: it is a record batch.
    """

    span: Span
    head: Span
    has_rows: bool


def messages_of(file: SourceBytes) -> tuple[list[Message], tuple[Span, ...]]:
    """All messages in order, and which bytes beside them tell where they are.

    Of a file the footer tells, of a stream each message where the next one begins.

    Raises:
        SourceError: the file is damaged.
    """
    with SeekableBytes(file).buffered(_REQUEST_BYTES) as raw:
        if raw.read(len(MAGIC)) != MAGIC:
            found = list(_chain(raw, 0, file))
            return found, tuple(message.head for message in found)
        raw.seek(max(0, file.size - _FILE_TAIL))
        tail = raw.read(_FILE_TAIL)
        length = int.from_bytes(tail[:4], "little")
        begin = file.size - _FILE_TAIL - length
        if not tail.endswith(MAGIC) or begin < _FILE_HEAD:
            raise _damaged(file.name, file.size)
        raw.seek(begin)
        footer = raw.read(length)
        schema = next(_chain(raw, _FILE_HEAD, file), None)
        if schema is None:
            raise _damaged(file.name, _FILE_HEAD)
        try:
            blocks = [
                Message((at, at + head + body), (at, at + head), has_rows)
                for field, has_rows in ((_DICTIONARIES, False), (_BATCHES, True))
                for at, head, body in _blocks(footer, field)
            ]
        except struct.error as error:
            raise _damaged(file.name, begin) from error
        for one in blocks:
            if not _FILE_HEAD <= one.span[0] <= one.head[1] <= one.span[1] <= begin:
                raise _damaged(file.name, one.span[0])
        blocks.sort(key=lambda one: one.span)
        return [schema, *blocks], ((0, _FILE_HEAD), schema.head, (begin, file.size))


def ranges_of(file: SourceBytes, span: Span) -> tuple[Span, ...]:
    """What reading the record batches takes that begin in a span: those, and what says how.

    Raises:
        SourceError: the file is damaged.
    """
    return _merged(message.span for message in _wanted(messages_of(file)[0], span))


def batch_begins(file: SourceBytes, span: Span | None = None) -> list[int]:
    """The byte that each record batch begins with, of those that begin in a span.

    Raises:
        SourceError: the file is damaged.
    """
    found = messages_of(file)[0]
    wanted = found if span is None else _wanted(found, span)
    return [message.span[0] for message in wanted if message.has_rows]


def needed_bytes(file: SourceBytes, span: Span) -> tuple[Span, ...]:
    """The same, and what tells where it is.

    Raises:
        SourceError: the file is damaged.
    """
    found, telling = messages_of(file)
    wanted = _wanted(found, span)
    last = max((message.span[1] for message in wanted), default=0)
    is_file = telling[:1] == ((0, _FILE_HEAD),)
    heads = telling if is_file else (head for head in telling if head[0] < max(last, span[1]))
    return _merged([*heads, *(message.span for message in wanted)])


def _wanted(found: Sequence[Message], span: Span) -> list[Message]:
    return [
        message
        for message in found
        if message.span[0] < span[1] and (message.span[0] >= span[0] or not message.has_rows)
    ]


def _merged(ranges: Iterable[Span]) -> tuple[Span, ...]:
    found: list[Span] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return tuple(found)


def _chain(raw: BinaryIO, at: int, file: SourceBytes) -> Iterator[Message]:
    """The messages from a byte on, each of which tells where the next one begins."""
    while at < file.size:
        raw.seek(at)
        head = raw.read(8)
        if len(head) < 8:
            raise _damaged(file.name, at)
        length, begin = struct.unpack("<I", head[:4])[0], at + 4
        if length == _CONTINUES:
            length, begin = struct.unpack("<I", head[4:])[0], at + 8
        if not length:
            return
        if length > _MOST_METADATA or begin + length > file.size:
            raise _damaged(file.name, at)
        raw.seek(begin)
        try:
            kind, body = _kind_and_body(raw.read(length))
        except (struct.error, IndexError) as error:
            raise _damaged(file.name, at) from error
        after = begin + length + body
        if body < 0 or after > file.size:
            raise _damaged(file.name, at)
        yield Message((at, after), (at, begin + length), kind == _RECORD_BATCH)
        at = after
    raise _damaged(file.name, at)  # a stream cut between two batches would pass as whole


class JoinedRanges(RawIOBase):
    """Some ranges of a file as one stream of Arrow messages, with an end.

    Attributes:
        used: bytes that were read.
        size: of all ranges.
    """

    def __init__(self, file: SourceBytes, ranges: Sequence[Span]) -> None:
        self._file = file
        self._ranges = iter(ranges)
        self._at = self._end = 0
        self._ending = END_OF_STREAM
        self.used = 0
        self.size = sum(end - start for start, end in ranges)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """The next bytes, of one range at a time."""
        view = memoryview(buffer)
        while self._at == self._end:
            following = next(self._ranges, None)
            if following is None:
                given = min(len(view), len(self._ending))
                view[:given], self._ending = self._ending[:given], self._ending[given:]
                return given
            self._at, self._end = following
        data = self._file.read(self._at, min(self._at + len(view), self._end))
        view[: len(data)] = data
        self._at += len(data)
        self.used += len(data)
        return len(data)


def _field(table: bytes, number: int) -> int:
    """Where a field of the root table of a flat buffer stands, 0 where it is left out."""
    (root,) = struct.unpack_from("<I", table)
    fields = root - struct.unpack_from("<i", table, root)[0]
    (size,) = struct.unpack_from("<H", table, fields)
    entry = 4 + 2 * number
    offset = struct.unpack_from("<H", table, fields + entry)[0] if entry < size else 0
    return root + offset if offset else 0


def _kind_and_body(message: bytes) -> tuple[int, int]:
    """Two fields of the table `Message`: which kind it is, and how long what follows it is."""
    kind, body = _field(message, _KIND), _field(message, _BODY_BYTES)
    return message[kind] if kind else 0, struct.unpack_from("<q", message, body)[0] if body else 0


def _blocks(footer: bytes, field: int) -> Iterator[tuple[int, int, int]]:
    """Place, length of the head and length of the body of the messages of a kind."""
    place = _field(footer, field)
    if not place:
        return
    place += struct.unpack_from("<I", footer, place)[0]
    (count,) = struct.unpack_from("<I", footer, place)
    for number in range(count):
        yield struct.unpack_from("<qi4xq", footer, place + 4 + 24 * number)


def _damaged(name: str, at: int) -> SourceError:
    return SourceError(
        f"{name}: no whole Arrow file or stream, or damaged from byte {at} on. Fetch it again, or "
        "leave it out."
    )
