"""`cache`: blocks of a first pass, kept in memory for those that follow."""

import os
import uuid
from dataclasses import dataclass, field

from streaming_ext.transforms.block import Block
from streaming_ext.transforms.flow import Flow, Opening, Source, State, plain


@dataclass(slots=True)
class Kept:
    """What this process read of a dataset so far, from its beginning.

    Attributes:
        blocks: in order.
        states: where each begins, and where the last one ends.
        ended: these are all.
        name: no other ones have it, of no other process.
        process: whose they are.
    """

    blocks: list[Block] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    ended: bool = False
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    process: int = field(default_factory=os.getpid)


class Shelf:
    """What is kept of a dataset, by the share that a worker has of it."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], Kept] = {}

    def of(self, opening: Opening) -> Kept:
        """What is kept; nothing that a fork copied."""
        kept = self._kept.get(opening.share)
        if kept is None or kept.process != os.getpid():
            kept = self._kept[opening.share] = Kept()
        return kept

    def __getstate__(self) -> dict[str, object]:
        """Nothing of it goes to another process."""
        return {"_kept": {}}


class CacheFlow(Flow):
    """Blocks that are kept, then those of the source; a resume elsewhere reads the source."""

    def __init__(self, source: Source, kept: Kept, opening: Opening, state: State | None) -> None:
        self._dataset, self._kept, self._opening = source, kept, opening
        self._flow: Flow | None = None
        self._number: int | None = 0  # of the next block; None where it is not of those kept
        if state is not None and state["kept"] == kept.name:
            self._number = int(state["number"])
        elif state is not None:
            self._number = None
            self._flow = source.open(opening, state["source"])
        if self._number is not None and not kept.states:
            self._flow = source.open(opening, None)
            kept.states.append(self._flow.state())

    def pull(self, most: int) -> Block | None:
        kept = self._kept
        if self._number is None:
            return None if self._flow is None else self._flow.pull(most)
        if self._number < len(kept.blocks):
            self._number += 1
            if self._flow is not None:  # another iterator read on from where it stood
                self._flow.close()
                self._flow = None
            return kept.blocks[self._number - 1].copied()  # users may change them
        if kept.ended:
            return None
        if self._flow is None:
            self._flow = self._dataset.open(self._opening, plain(kept.states[self._number]))
        block = self._flow.pull(most)
        if block is None:
            kept.ended = True
            return None
        kept.blocks.append(block)
        kept.states.append(self._flow.state())
        self._number += 1
        return block.copied()

    def state(self) -> State:
        if self._number is None:
            source = {} if self._flow is None else self._flow.state()
            return {"source": source, "kept": None, "number": 0}
        kept = self._kept
        return {"source": kept.states[self._number], "kept": kept.name, "number": self._number}

    def close(self) -> None:
        if self._flow is not None:
            self._flow.close()


def open_cached(source: Source, opening: Opening, state: State | None, *, shelf: Shelf) -> Flow:
    """`cache`: all columns, whatever is asked for."""
    return CacheFlow(source, shelf.of(opening), opening.asking(None), state)
