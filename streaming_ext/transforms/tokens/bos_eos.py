"""`add_bos_eos`: a token before and one behind those of each sample."""

from dataclasses import dataclass

import numpy as np

from streaming_ext.transforms.block import Block, Ragged
from streaming_ext.transforms.flow import Flow, Opening, Source, State
from streaming_ext.transforms.steps.functions import BlockMap


@dataclass(frozen=True, slots=True)
class Ends:
    """What is put around the tokens of a column; None for nothing."""

    bos: int | None
    eos: int | None
    column: str

    def __call__(self, block: Block) -> Block:
        """The samples with it."""
        if not len(block):
            return block
        tokens = block.tokens(self.column)
        first, last = int(self.bos is not None), int(self.eos is not None)
        lengths = tokens.lengths + first + last
        kind = np.result_type(
            tokens.values.dtype, np.min_scalar_type(max(self.bos or 0, self.eos or 0))
        )
        made = Ragged.of_lengths(np.empty(int(lengths.sum()), kind), lengths)
        of_text = np.ones(len(made.values), bool)
        if self.bos is not None:
            of_text[made.offsets[:-1]] = False
            made.values[made.offsets[:-1]] = self.bos
        if self.eos is not None:
            of_text[made.offsets[1:] - 1] = False
            made.values[made.offsets[1:] - 1] = self.eos
        made.values[of_text] = tokens.values[tokens.offsets[0] : tokens.offsets[-1]]
        return block.with_columns({self.column: made})


def open_ends(source: Source, opening: Opening, state: State | None, *, ends: Ends) -> Flow:
    """`add_bos_eos` and `ensure_bos_eos`."""
    asked = opening.columns
    below = opening.asking(None if asked is None else asked | {ends.column})
    return BlockMap(source.open(below, state), ends)
