"""Python functions of one sample: `map`, `filter`, `filter_map`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from streaming_ext.errors import UsageError
from streaming_ext.transforms.block import Block, Sample
from streaming_ext.transforms.copies import copied
from streaming_ext.transforms.flow import Flow, Opening, Source, State, Through
from streaming_ext.transforms.steps.dropping import Dropping, DroppingFlow

Function = Callable[[Sample], Any]
Kind = Literal["map", "filter", "filter_map"]


@dataclass(frozen=True, slots=True)
class OfSample:
    """A function of one sample, over a block of them, which nobody else has.

    A function may change the sample that it is handed. One that only says whether a sample stays
    has a copy.
    """

    function: Function
    kind: Kind

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.kind}({getattr(self.function, '__name__', type(self.function).__name__)})"

    def __call__(self, block: Block) -> Block:
        """The samples that it makes, or leaves."""
        return Block(samples=self.of(block.samples))

    def of(self, samples: Sequence[Sample]) -> list[Sample]:
        """The same, of plain samples."""
        function = self.function
        if self.kind == "filter":
            return [sample for sample in samples if function(copied(sample))]
        made = [function(sample) for sample in samples]
        if self.kind == "filter_map":
            return [sample for sample in made if sample is not None]
        if any(sample is None for sample in made):
            raise UsageError(
                "The function of map() returned None, expected a sample. Return the sample that it "
                "was given, or use filter_map() to leave samples out."
            )
        return made


class BlockMap(Through):
    """A function of blocks that needs no samples of other blocks."""

    def __init__(self, source: Flow, function: Callable[[Block], Block]) -> None:
        super().__init__(source)
        self._function = function

    def pull(self, most: int) -> Block | None:
        block = self.source.pull(most)
        return block if block is None else self._function(block)


def open_function(
    source: Source, opening: Opening, state: State | None, *, function: OfSample
) -> Flow:
    """`map`, `filter` and `filter_map`: a user's function may look at any column."""
    below = opening.asking(None)
    flow = source.open(below, state)
    if function.kind == "map":
        return BlockMap(flow, function)
    return DroppingFlow(flow, Dropping(function.name, source, below, function))
