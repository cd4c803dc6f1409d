"""Some consecutive samples of a chain, as columns where they have the same ones, else one by one.

A column of tokens is flat, with the place where each sample's begin:

    [[7, 8], [], [9]]    values 7 8 9    offsets 0 2 2 3
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from streaming_ext.errors import UsageError
from streaming_ext.sampler.orders.order import Ints
from streaming_ext.transforms.copies import copied

Sample = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Tokens of some samples.

    Attributes:
        values: of all, any kind of integer: (tokens,).
        offsets: where each sample's begin in them, and where the last one's end: (samples + 1,).
        listed: a sample shows them as a list, as tokenizers do; else as a tensor.
    """

    values: npt.NDArray[Any]
    offsets: Ints
    listed: bool = False

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        """Tokens of each sample."""
        return np.diff(self.offsets)

    @classmethod
    def of_lengths(cls, values: npt.NDArray[Any], lengths: npt.ArrayLike) -> "Ragged":
        """Of tokens in their order, and how many each sample has."""
        offsets = np.zeros(np.size(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(values, offsets)

    @classmethod
    def regular(cls, rows: npt.NDArray[Any]) -> "Ragged":
        """Of samples that have the same length: (samples, length)."""
        count, length = rows.shape
        return cls(rows.reshape(-1), np.arange(count + 1, dtype=np.int64) * length)

    def slice(self, start: int, stop: int) -> "Ragged":
        """The samples [start, stop), without a copy."""
        return Ragged(self.values, self.offsets[start : stop + 1], self.listed)

    def gather(self, chosen: Ints) -> "Ragged":
        """Some samples, in this order."""
        all_lengths = self.lengths
        if len(all_lengths) and (all_lengths == all_lengths[0]).all():
            # (samples, length)
            rows = self.values[self.offsets[0] : self.offsets[-1]].reshape(len(self), -1)
            made = Ragged.regular(rows[chosen])
            return Ragged(made.values, made.offsets, self.listed)
        starts, lengths = self.offsets[chosen], all_lengths[chosen]
        made = Ragged.of_lengths(self.values[ranges(starts, lengths)], lengths)
        return Ragged(made.values, made.offsets, self.listed)

    def shown(self) -> list[Any]:
        """Each sample's, of its own memory."""
        flat = np.array(self.values[self.offsets[0] : self.offsets[-1]], np.int64)
        cuts = (self.offsets[1:-1] - self.offsets[0]).tolist()
        if self.listed:
            whole, ends = flat.tolist(), [0, *cuts, len(flat)]
            return [whole[a:b] for a, b in pairwise(ends)]
        return list(torch.from_numpy(flat).tensor_split(cuts)) if len(self) else []


def ranges(starts: npt.ArrayLike, lengths: npt.ArrayLike) -> Ints:
    """start, start + 1, ... of each, one behind the other: 5, 9 of 2, 3 are 5 6 9 10 11."""
    lengths = np.asarray(lengths, np.int64)
    before = np.cumsum(lengths) - lengths
    steps = np.repeat(np.asarray(starts, np.int64) - before, lengths)
    made: Ints = steps + np.arange(len(steps))
    return made


Column: TypeAlias = Ragged | pa.LargeStringArray | list[Any]  # type: ignore[valid-type, unused-ignore]


class Block:
    """Some consecutive samples, never changed."""

    def __init__(
        self, columns: Mapping[str, Column] | None = None, samples: Sequence[Sample] | None = None
    ) -> None:
        """Take over columns of one length, or the samples themselves."""
        self.columns = None if columns is None else dict(columns)
        self._own = samples
        first = next(iter(self.columns.values()), ()) if self.columns is not None else samples or ()
        self._length = len(first)

    def __len__(self) -> int:
        return self._length

    @cached_property
    def samples(self) -> Sequence[Sample]:
        """As dictionaries."""
        if self.columns is None:
            return self._own or ()
        shown = [_shown(column) for column in self.columns.values()]
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*shown, strict=True)]

    def _column(self, name: str) -> Column:
        if self.columns is not None:
            if name in self.columns:
                return self.columns[name]
            raise _missing(name, self.columns)
        for sample in self.samples:
            if name not in sample:
                raise _missing(name, sample)
        return [sample[name] for sample in self.samples]

    def tokens(self, name: str) -> Ragged:
        """A column of tokens.

        Raises:
            UsageError: there is none of this name, or it holds something else.
        """
        column = self._column(name)
        if isinstance(column, Ragged):
            return column
        if not isinstance(column, list):
            raise UsageError(f"Column {name!r} holds texts, where tokens are needed.")
        return _ragged(column, name)

    def texts(self, name: str) -> pa.LargeStringArray:
        """A column of texts.

        Raises:
            UsageError: there is none of this name, or it holds something else.
        """
        column = self._column(name)
        if isinstance(column, pa.LargeStringArray):
            return column
        values = column if isinstance(column, list) else []
        wrong = [one for one in values if not isinstance(one, str)]
        if wrong or not isinstance(column, list):
            found = type(wrong[0]).__name__ if wrong else "tokens"
            raise UsageError(f"Column {name!r} holds {found}, where a text is needed.")
        try:
            return pa.array(values, pa.large_string())
        except UnicodeEncodeError as error:
            raise UsageError(f"Column {name!r} holds no valid text: {error}.") from error

    def with_columns(self, added: Mapping[str, Column]) -> "Block":
        """The same samples with further columns, or with others in their place."""
        if self.columns is not None:
            return Block(self.columns | dict(added))
        shown = [_shown(column) for column in added.values()]
        return Block(
            samples=[
                {**sample, **dict(zip(added, values, strict=True))}
                for sample, *values in zip(self.samples, *shown, strict=True)
            ]
        )

    def copied(self) -> "Block":
        """The same samples with values of their own; tokens and texts are always shown so."""
        if self.columns is None:
            return Block(samples=[copied(sample) for sample in self.samples])
        return self._each(lambda column: copied(column) if isinstance(column, list) else column)

    def slice(self, start: int, stop: int) -> "Block":
        """The samples [start, stop)."""
        if self.columns is None:
            return Block(samples=self.samples[start:stop])
        return self._each(lambda column: _slice(column, start, stop))

    def gather(self, chosen: Ints) -> "Block":
        """Some samples, in this order."""
        if self.columns is None:
            return Block(samples=[self.samples[n] for n in chosen.tolist()])
        return self._each(lambda column: _gather(column, chosen))

    def _each(self, change: Callable[[Column], Column]) -> "Block":
        columns = self.columns or {}
        return Block({name: change(column) for name, column in columns.items()})


def concat(blocks: Sequence[Block]) -> Block:
    """One block of some."""
    if len(blocks) == 1:
        return blocks[0]
    filled = [block for block in blocks if len(block)]
    if not filled:
        return Block(samples=[])
    kinds = {_kinds(block) for block in filled}
    if None in kinds or len(kinds) > 1:
        return Block(samples=[*chain.from_iterable(block.samples for block in filled)])
    names = list(filled[0].columns or {})
    return Block({name: _joined([(block.columns or {})[name] for block in filled])
                  for name in names})  # fmt: skip


def _kinds(block: Block) -> tuple[Any, ...] | None:
    if block.columns is None:
        return None
    return tuple((name, type(column), getattr(column, "listed", None))
                 for name, column in block.columns.items())  # fmt: skip


def _joined(columns: Sequence[Any]) -> Column:
    if isinstance(columns[0], Ragged):
        values = np.concatenate([c.values[c.offsets[0] : c.offsets[-1]] for c in columns])
        made = Ragged.of_lengths(values, np.concatenate([c.lengths for c in columns]))
        return Ragged(made.values, made.offsets, columns[0].listed)
    if isinstance(columns[0], list):
        return [*chain.from_iterable(columns)]
    return pa.concat_arrays(columns)


def _slice(column: Column, start: int, stop: int) -> Column:
    if isinstance(column, pa.LargeStringArray):
        return column.slice(start, stop - start)
    return column.slice(start, stop) if isinstance(column, Ragged) else column[start:stop]


def _gather(column: Column, chosen: Ints) -> Column:
    if isinstance(column, pa.LargeStringArray):
        return column.take(pa.array(chosen))
    if isinstance(column, Ragged):
        return column.gather(chosen)
    return [column[n] for n in chosen.tolist()]


def _shown(column: Column) -> list[Any]:
    if isinstance(column, pa.LargeStringArray):
        texts: list[Any] = column.to_pylist()
        return texts
    return column.shown() if isinstance(column, Ragged) else column


def _ragged(values: Sequence[Any], name: str) -> Ragged:
    """Tokens as users hand them over: lists, arrays, tensors, a single number, None for none."""
    arrays = []
    for value in values:
        array = np.atleast_1d(np.asarray([] if value is None else value))
        if array.ndim == 2 and len(array) == 1:
            array = array[0]
        if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
            raise UsageError(
                f"Column {name!r} holds {array.dtype} of shape {array.shape}, where a sample's "
                "tokens are needed: a list of integers."
            )
        arrays.append(array.astype(np.int64))
    joined = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
    return Ragged.of_lengths(joined, [len(array) for array in arrays])


def _missing(name: str, there: Mapping[str, Any]) -> UsageError:
    return UsageError(f"A sample has no column {name!r}; it has {', '.join(map(repr, there))}.")
