"""`from_files`: a sample of each active file in turns; one that ends gives its place to the next.

Three files of 2, 1 and 2 samples with two of them active: a1 b1 a2 c1 c2.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from streaming_ext.errors import ConfigMismatchError, UsageError
from streaming_ext.text.documents.options import FormatName, OnBadDocument, ReadOptions
from streaming_ext.text.listing import list_sources
from streaming_ext.transforms.block import Block, concat
from streaming_ext.transforms.examples import permuted
from streaming_ext.transforms.files.ahead import Ahead, Opened
from streaming_ext.transforms.files.known import Files
from streaming_ext.transforms.files.pieces import PIECE_BYTES, Reading
from streaming_ext.transforms.flow import Flow, Opening, Passes, State


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """How files take turns.

    Attributes:
        repeat: whether another epoch follows.
        seed: of the files' order in each epoch; None for that of their names.
        active: files that are read at once.
        standby: files whose beginning is fetched before their turn comes.
    """

    repeat: bool
    seed: int | None
    active: int
    standby: int

    def order(self, count: int, epoch: int) -> Sequence[int]:
        """The files of an epoch."""
        return range(count) if self.seed is None else permuted(count, self.seed, epoch)


class Shard:
    """An active file: where its next sample lies."""

    def __init__(
        self, place: int, number: int, opening: "Future[Opened]", ahead: Ahead,
        *, piece: int | None = None, row: int = 0,
    ) -> None:  # fmt: skip
        """Take a file whose beginning was asked for.

        Args:
            place: of it in the order of the epoch.
            number: of it.
            opening: of the first piece to be read.
            ahead: opens the others.
            piece: the first one to be read; by default the first that the worker has.
            row: samples of the first piece that were used before.
        """
        self.place, self._number, self._ahead = place, number, ahead
        self._opening: Future[Opened] | None = opening
        self._pieces: Sequence[int] = ()
        self._piece = piece  # in hand
        self._blocks: Iterator[Block] = iter(())
        self._block, self._at = Block(samples=[]), 0
        self._row, self._skip = row, row  # of the piece, used; that have yet to be read over

    def available(self) -> int:
        """Samples in hand, at least one; 0 at the end of the file.

        Raises:
            UsageError: a state names a sample that is not there.
        """
        while self._at == len(self._block):
            block = next(self._blocks, None)
            if block is not None:
                skip = min(self._skip, len(block))
                self._skip -= skip
                self._block, self._at = block, skip
                continue
            if self._skip and (self._pieces or self._opening is None):
                raise UsageError("A state names a sample of a file that is not there: it changed.")
            if self._opening is None:
                return 0
            self._begin(self._opening.result())
        return len(self._block) - self._at

    def _begin(self, opened: Opened) -> None:
        """Go on to a piece, and ask for the one behind it."""
        if self._pieces:
            self._row = 0
        self._pieces, self._blocks = opened.pieces, opened.blocks
        self._piece = opened.pieces[0] if opened.pieces else self._piece
        following = len(self._pieces) > 1
        self._opening = self._ahead.open(self._number, self._pieces[1]) if following else None

    def taken(self, count: int) -> Block:
        """The next samples, of those in hand."""
        self._at += count
        self._row += count
        return self._block.slice(self._at - count, self._at)

    def bytes_each(self) -> float:
        """Of a sample in hand, about."""
        return PIECE_BYTES / max(len(self._block), 1)

    @property
    def state(self) -> list[int | None]:
        """Its place, the piece in hand (None: the first), and how many samples of it were used."""
        return [self.place, self._piece, self._row]


class FilesFlow(Flow):
    """The samples of files."""

    def __init__(self, files: Files, turns: Turns, ahead: Ahead, state: State | None) -> None:
        sources = files.sources
        self._sources, self._turns, self._ahead = sources, turns, ahead
        self._repeat = turns.repeat
        self._known = files.known_by
        self._epoch = 0 if state is None else int(state["epoch"])
        self._next = 0 if state is None else int(state["next"])  # place of the next to be active
        self._any = state is not None and bool(state["any"])  # a sample in this epoch
        self._waiting: dict[tuple[int, int], Future[Opened]] = {}
        self._active: deque[Shard] = deque()
        self._order = turns.order(len(sources), self._epoch)
        if state is None:
            return
        if state["files"] != self._known:
            raise ConfigMismatchError(
                "The state is of other files: their names, sizes or contents are not those that "
                "are there now. Resume with the same files, or start anew."
            )
        for place, piece, row in state["active"]:
            opening = ahead.open(self._order[place], piece)
            shard = Shard(place, self._order[place], opening, ahead, piece=piece, row=row)
            self._active.append(shard)

    def _refill(self) -> None:
        """Have as many active files as there may be, of one epoch, and those behind them ready."""
        count = len(self._sources)
        while True:
            while len(self._active) < self._turns.active and self._next < count:
                key = (self._epoch, self._next)
                opening = self._waiting.pop(key, None) or self._ahead.open(self._order[self._next])
                shard = Shard(self._next, self._order[self._next], opening, self._ahead)
                self._active.append(shard)
                self._next += 1
            if self._active or not self._repeat:
                break
            if not self._any:
                if not self._ahead.others_have_any():
                    raise UsageError(
                        "from_files(repeat=True) of files without a sample never ends."
                    )
                self._repeat = False  # a worker without a piece, or none with a sample
                break
            self._epoch, self._next, self._any = self._epoch + 1, 0, False
            self._order = self._turns.order(count, self._epoch)
        for ahead in range(self._turns.standby):
            epoch, place = divmod(self._epoch * count + self._next + ahead, count)
            if (epoch > self._epoch and not self._repeat) or (epoch, place) in self._waiting:
                continue
            number = self._turns.order(count, epoch)[place]
            self._waiting[epoch, place] = self._ahead.open(number)

    def pull(self, most: int) -> Block | None:
        blocks: list[Block] = []
        rows, size = 0, 0.0
        while rows < most and size < PIECE_BYTES:
            self._refill()
            active = self._active
            if not active:
                break
            available = [shard.available() for shard in active]
            ended = available.index(0) if 0 in available else None
            if ended is None:
                each = sum(shard.bytes_each() for shard in active)
                turns = min(*available, (most - rows) // len(active), int(PIECE_BYTES / each))
                block = _in_turns([shard.taken(max(turns, 1)) for shard in active])
                size += each * max(turns, 1)
            else:
                # Those before the one that is at its end have their turn, and then it leaves.
                block = concat([shard.taken(1) for shard in list(active)[:ended]])
                active.rotate(-ended)
                active.popleft()
            rows += len(block)
            self._any = self._any or bool(len(block))  # an epoch may end within one pull
            blocks.append(block)
        return concat(blocks) if blocks else None

    def state(self) -> State:
        return {"epoch": self._epoch, "next": self._next, "any": self._any, "files": self._known,
                "active": [shard.state for shard in self._active]}  # fmt: skip

    def close(self) -> None:
        self._ahead.close()

    def passes(self) -> Passes:
        ended = self._epoch if self._repeat else 0
        return Passes(ended, ended)


def _in_turns(blocks: Sequence[Block]) -> Block:
    """The first sample of each, then the second of each, and so on; all are as long."""
    if len(blocks) == 1:
        return blocks[0]
    turns = len(blocks[0])
    # (turns, blocks): sample `turn` of each block
    order = np.arange(turns)[:, None] + np.arange(len(blocks)) * turns
    return concat(blocks).gather(order.reshape(-1))


def some_files(
    urls: str | Sequence[str], name: FormatName | Literal["auto"], on_bad: OnBadDocument
) -> tuple[Files, ReadOptions]:
    """The files that patterns mean, and how they are read.

    Raises:
        UsageError: there are none.
        StorageError: a server refuses, or does not answer.
    """
    patterns = [urls] if isinstance(urls, str) else [str(url) for url in urls]
    known = None if name == "auto" else name
    sources = list_sources(patterns, any_name=known is not None)
    if not sources:
        raise UsageError("from_files() needs at least one file.")
    return Files.of(sources), ReadOptions(source_format=known, on_bad_document=on_bad)


def open_files(
    opening: Opening,
    state: State | None,
    *,
    files: Files,
    turns: Turns,
    options: ReadOptions,
) -> Flow:
    """`from_files`: text alone where that is all that is asked for."""
    options = replace(options, columns=(opening.text or "text",))
    reading = Reading(options=options, column=opening.text)
    return FilesFlow(files, turns, Ahead(files.sources, reading, opening.share), state)
