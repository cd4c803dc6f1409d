"""Some consecutive samples of a chain: dictionaries, Arrow columns, or both.

A column holds texts, numbers, or tokens. In samples, the tokens of a `list` are a list, as
tokenizers return them, and the tokens of a `large_list` are a tensor.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import UsageError

Sample: TypeAlias = dict[str, Any]
State: TypeAlias = Any  # plain values; None at the beginning
Column: TypeAlias = Any  # an Arrow array
# Immutable types; most values of samples have one of them.
_FIXED = frozenset({str, int, float, bool, bytes, type(None)})


@dataclass(frozen=True, eq=False)
class Block:
    """Some consecutive samples, which never change.

    Attributes:
        rows: a dictionary for each sample; None if the columns hold all values.
        columns: further values, which replace values of the same name in `rows`.
        state: the state at which the samples after these begin; None if a flow cannot be opened
            there.
        passes: the number of passes that ended before these samples, if the source repeats forever.
    """

    rows: Sequence[Sample] | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)
    state: State = None
    passes: int = 0

    def __reduce__(self) -> Any:
        return Block, (self.samples,)  # to and from a worker process

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()) if self.rows is None else self.rows)

    def at(self, state: State, passes: int = 0) -> "Block":
        """Return the same samples with another state."""
        return replace(self, state=state, passes=passes)

    @cached_property
    def samples(self) -> Sequence[Sample]:
        """Samples as dictionaries, with all values."""
        if not self.columns:
            return self.rows or ()
        values = zip(*map(values_of, self.columns.values()), strict=True)
        made = [dict(zip(self.columns, each, strict=True)) for each in values]
        if self.rows is None:
            return made
        return [{**row, **new} for row, new in zip(self.rows, made, strict=True)]

    def column(self, name: str) -> Column | list[Any]:
        """Return the values of a column: an Arrow array, or a list.

        Raises:
            UsageError: a sample lacks the column.
        """
        if name in self.columns:
            return self.columns[name]
        for sample in self.samples:
            if name not in sample:
                has = ", ".join(map(repr, sample))
                raise UsageError(f"A sample has no column {name!r}; it has {has}.")
        return [sample[name] for sample in self.samples]

    def tokens(self, name: str) -> Column:
        """Return a column of tokens.

        Raises:
            UsageError: a sample lacks the column, or the column holds something else.
        """
        column = self.column(name)
        if isinstance(column, pa.ListArray | pa.LargeListArray):
            return column
        values = [_integers(value, name) for value in values_of(column)]
        return tokens_of(np.concatenate([np.empty(0, np.int64), *values]), [*map(len, values)])

    def texts(self, name: str) -> pa.LargeStringArray:
        """Return a column of texts, with an empty text for None.

        Raises:
            UsageError: a sample lacks the column, or the column holds something else.
        """
        column = self.column(name)
        try:
            return pa.array(column, pa.large_string()).fill_null("")
        except (TypeError, ValueError, pa.ArrowException) as error:
            raise UsageError(f"Column {name!r} holds no text: {error}.") from error

    def with_columns(self, added: Mapping[str, Column]) -> "Block":
        """Add columns to the same samples, or replace them."""
        return Block(self.rows, {**self.columns, **added})

    def copied(self) -> "Block":
        """Copy the values of the samples; columns give new values each time."""
        return Block(self.rows and [copied(row) for row in self.rows], self.columns)

    def slice(self, start: int, stop: int) -> "Block":
        """Take the samples [start, stop)."""
        size = max(stop - start, 0)
        columns = {name: column.slice(start, size) for name, column in self.columns.items()}
        return Block(self.rows and self.rows[start:stop], columns)

    def take(self, numbers: Ints) -> "Block":
        """Take the samples with some numbers, in this order."""
        rows = self.rows and [self.rows[number] for number in numbers.tolist()]
        return Block(rows, {name: _take(each, numbers) for name, each in self.columns.items()})


def concat(blocks: Iterable[Block]) -> Block:
    """Join several blocks."""
    filled = [block for block in blocks if len(block)]
    if len(filled) < 2:
        return filled[0] if filled else Block()
    first, *others = [
        (block.rows is None, [(name, each.type) for name, each in block.columns.items()])
        for block in filled
    ]
    if any(kind != first for kind in others):
        return Block([sample for block in filled for sample in block.samples])
    columns = {
        name: pa.concat_arrays([block.columns[name] for block in filled])
        for name in filled[0].columns
    }
    rows = [row for block in filled for row in block.rows or ()]
    return Block(rows or None, columns)


def tokens_of(values: npt.NDArray[Any], lengths: npt.ArrayLike, *, listed: bool = False) -> Column:
    """Make a column of tokens.

    Args:
        values: the tokens of all samples, end to end: (tokens,).
        lengths: the number of tokens of each sample: (samples,).
        listed: true if samples have the tokens as a list.
    """
    offsets = np.append(0, np.cumsum(lengths, dtype=np.int64))
    if listed:
        return pa.ListArray.from_arrays(offsets.astype(np.int32), values)
    return pa.LargeListArray.from_arrays(offsets, values)


def rows_of(rows: npt.NDArray[Any]) -> Column:
    """Make a column of tokens from rows of one length: (samples, tokens)."""
    return tokens_of(rows.reshape(-1), np.full(len(rows), rows.shape[1]))


def flat(column: Column) -> npt.NDArray[Any]:
    """Return the tokens of all samples of a column, end to end: (tokens,)."""
    values: npt.NDArray[Any] = column.flatten().to_numpy()
    return values


def lengths_of(column: Column) -> Ints:
    """Count the tokens of each sample of a column: (samples,)."""
    lengths: Ints = column.value_lengths().to_numpy().astype(np.int64)
    return lengths


def as_matrix(column: Column) -> npt.NDArray[Any] | None:
    """Return tensors of one length as (samples, tokens); None for any other column."""
    if not pa.types.is_large_list(column.type):
        return None
    lengths = lengths_of(column)
    same = len(lengths) > 0 and 0 < lengths.min() == lengths.max()
    return flat(column).reshape(len(lengths), -1) if same else None


def values_of(column: Column | list[Any]) -> Sequence[Any]:
    """Return the values of a column as samples have them, each in its own memory."""
    if isinstance(column, list):
        return column
    if not pa.types.is_large_list(column.type):
        values: list[Any] = column.to_pylist()
        return values
    tokens = np.split(flat(column).astype(np.int64), np.cumsum(lengths_of(column)))
    return [torch.from_numpy(each.copy()) for each in tokens[:-1]]


def _take(column: Column, numbers: Ints) -> Column:
    """Take some values of a column; for rows of one length, Arrow would take four times as long."""
    rows = as_matrix(column)
    return column.take(pa.array(numbers)) if rows is None else rows_of(rows[numbers])


def _integers(value: Any, name: str) -> npt.NDArray[np.int64]:
    """Convert tokens of users: a list, array, tensor, a single number, or None for no tokens."""
    array: npt.NDArray[Any] = np.asarray([] if value is None else value)
    whole = array.size == 0 or np.issubdtype(array.dtype, np.integer)
    if not whole or array.size != max(array.shape, default=1):  # neither a row nor a single number
        raise UsageError(
            f"Column {name!r} holds {array.dtype} of shape {array.shape}, expected a list of "
            "integers."
        )
    return array.reshape(-1).astype(np.int64)


def copied(value: Any) -> Any:
    """Copy a value with its containers, arrays and tensors, at any depth.

    Objects of other kinds, such as images, are shared: the cost of copying them is not known.
    """
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is list and _FIXED.issuperset(map(type, value)):  # usually many tokens
        return value.copy()
    if kind is dict:
        return {name: copied(one) for name, one in value.items()}
    if kind is list or kind is tuple:
        return kind(map(copied, value))
    if isinstance(value, torch.Tensor):
        return value.clone()
    known = isinstance(value, np.ndarray | dict | list | tuple | set | bytearray)
    return copy.deepcopy(value) if known else value
