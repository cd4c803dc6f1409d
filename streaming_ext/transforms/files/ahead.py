"""Pieces that are fetched, and their beginning read, by threads before they are needed."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Final

from streaming_ext.text.sources import SourceFile
from streaming_ext.transforms.block import Block
from streaming_ext.transforms.files.pieces import Reading

_FETCHING: Final = 8  # threads, where bytes are waited for


@dataclass(frozen=True, slots=True)
class Opened:
    """A piece whose beginning is here.

    Attributes:
        pieces: of the file that the worker has, this one and those behind it; none at its end.
        blocks: the samples of the piece.
    """

    pieces: Sequence[int]
    blocks: Iterator[Block]


class Ahead:
    """Opens pieces of files in the background; each is asked for once, and then taken."""

    def __init__(
        self, sources: Sequence[SourceFile], reading: Reading, share: tuple[int, int]
    ) -> None:
        remote = any(source.remote for source in sources)
        self._threads = ThreadPoolExecutor(_FETCHING if remote else 1)
        self._sources, self._reading, self._share = sources, reading, share

    def open(self, number: int, piece: int | None = None) -> "Future[Opened]":
        """Begin to open a piece of a file; by default the first one that the worker has."""
        return self._threads.submit(self._open, number, piece)

    def _open(self, number: int, piece: int | None) -> Opened:
        source = self._sources[number]
        own = self._reading.pieces_of(source, number, self._share)
        pieces = [one for one in own if piece is None or one >= piece]
        if not pieces:
            return Opened((), iter(()))
        blocks = self._reading.blocks(source, pieces[0])
        first = next(blocks, None)
        return Opened(pieces, iter(()) if first is None else chain([first], blocks))

    def others_have_any(self) -> bool:
        """Whether a worker other than this one has a sample; reads on until one is found."""
        for number, source in enumerate(self._sources):
            own = self._reading.pieces_of(source, number, self._share)
            for piece in self._reading.pieces_of(source, number, (0, 1)):
                if piece not in own and any(map(len, self._reading.blocks(source, piece))):
                    return True
        return False

    def close(self) -> None:
        """Stop."""
        self._threads.shutdown(wait=False, cancel_futures=True)
