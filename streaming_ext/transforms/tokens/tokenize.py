"""`tokenize`: texts to tokens, a block at once, in threads."""

from dataclasses import dataclass, field
from functools import partial

from streaming_ext.transforms.block import Block
from streaming_ext.transforms.flow import Flow, Opening, Source, State, inner
from streaming_ext.transforms.steps.functions import BlockMap
from streaming_ext.transforms.steps.parallel import Crew, ParallelFlow
from streaming_ext.transforms.tokens.tokenizers import ChainTokenizer

_UNIT = 64  # samples, at least, that a thread gets at once


@dataclass(frozen=True, slots=True)
class Tokenizing:
    """Columns of tokens, made of a column of texts.

    Attributes:
        tokenizer: that makes them.
        column: of the texts.
        wanted: columns that are asked for, None for all.
    """

    tokenizer: ChainTokenizer = field(repr=False)
    column: str
    wanted: frozenset[str] | None

    def prepare(self) -> None:
        """Make what this thread needs for its first block."""
        self.tokenizer.prepare(self.wanted)

    def __call__(self, block: Block) -> Block:
        """The samples with them."""
        if not len(block):
            return block
        added = self.tokenizer.columns(block.texts(self.column), self.wanted)
        return Block(added) if self.wanted is not None and self.wanted <= set(added) else (
            block.with_columns(added)
        )  # fmt: skip


def open_tokenized(
    source: Source,
    opening: Opening,
    state: State | None,
    *,
    tokenizer: ChainTokenizer,
    column: str,
    workers: int,
) -> Flow:
    """`tokenize`; in the background by so many threads, or here where there are none."""
    asked = opening.columns
    if asked is not None and asked <= {"input_ids"}:
        below = opening.asking_text(column)
    else:
        made = {"input_ids", "attention_mask", "token_type_ids"}
        below = opening.asking(None if asked is None else (asked - made) | {column})
    step = Tokenizing(tokenizer, column, asked)
    if not workers:
        return BlockMap(source.open(below, state), step)
    crew = Crew(executor_type="thread", workers=workers, unit=_UNIT, cut=False)
    return ParallelFlow(partial(source.open, below, inner(state)), step, crew, state)
