"""What finders of items in a stream have alike: a window of its bytes, and the item in hand."""

from streaming_ext.text.documents.compression import Stream
from streaming_ext.text.documents.json.values import LARGE_TEXT_BYTES


class ItemWindow:
    """A window of a stream that moves over its items.

    Attributes:
        number: of the item in hand, from 0.
        start: its first byte in the unpacked file.
    """

    def __init__(self, stream: Stream, where: str) -> None:
        self._stream, self._where = stream, where
        self._data = b""
        self._at = 0  # in `_data`
        self._before = 0  # bytes dropped before `_data`
        self._kept: int | None = None  # where the item in hand begins in `_data`; None: not kept
        self.number = self.start = 0

    def _taken(self) -> bytes | None:
        """The item in hand, None where it is not kept; a large one is not kept beside."""
        if self._kept is None:
            return None
        item = self._data[self._kept : self._at]
        if len(item) > LARGE_TEXT_BYTES:
            self._data, self._before, self._at = (
                self._data[self._at :], self._before + self._at, 0,
            )  # fmt: skip
        return item
