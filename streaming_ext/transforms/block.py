"""Some consecutive samples of a chain, as Arrow columns where they have the same ones.

A column holds texts, numbers, or tokens. Samples show tokens of a `list` as a list, as tokenizers
give them, and those of a `large_list` as a tensor.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from streaming_ext.base.errors import UsageError

Sample: TypeAlias = dict[str, Any]
State: TypeAlias = Mapping[str, Any]
Numbers: TypeAlias = npt.NDArray[np.int64]
Column: TypeAlias = Any  # an array of Arrow, or a list with a value for each sample
# What cannot be changed, and is most of what samples hold.
_FIXED = frozenset({str, int, float, bool, bytes, complex, type(None)})


class Block:
    """Some consecutive samples, never changed.

    Attributes:
        place: where the samples behind these begin; None where nobody can begin there.
        passes: of a source that repeats for ever, how many passes ended before these samples.
    """

    def __init__(
        self,
        of: Sequence[Sample] | Mapping[str, Column] = (),
        place: Any = None,
        passes: int = 0,
    ) -> None:
        """Take over samples, or columns of one length."""
        self._of, self.place, self.passes = of, place, passes
        self._length = len(next(iter(of.values()), ()) if isinstance(of, Mapping) else of)

    def __len__(self) -> int:
        return self._length

    def at(self, place: Any, passes: int = 0) -> "Block":
        """The same samples, with another place behind them."""
        return Block(self._of, place, passes)

    @property
    def columns(self) -> Mapping[str, Column] | None:
        """The columns, None where there are only samples."""
        return self._of if isinstance(self._of, Mapping) else None

    @cached_property
    def samples(self) -> Sequence[Sample]:
        """As dictionaries."""
        if not isinstance(self._of, Mapping):
            return self._of
        rows = zip(*map(shown, self._of.values()), strict=True)
        return [dict(zip(self._of, row, strict=True)) for row in rows]

    def column(self, name: str) -> Column:
        """The values of a column.

        Raises:
            UsageError: a sample has none of this name.
        """
        lacking = [
            have for have in ([self._of] if self.columns else self.samples) if name not in have
        ]
        if lacking:
            has = ", ".join(map(repr, lacking[0]))
            raise UsageError(f"A sample has no column {name!r}; it has {has}.")
        return self.columns[name] if self.columns else [one[name] for one in self.samples]

    def tokens(self, name: str) -> Column:
        """A column of tokens.

        Raises:
            UsageError: there is none of this name, or it holds something else.
        """
        column = self.column(name)
        if isinstance(column, list):
            return lists([_integers(value, name) for value in column])
        if not pa.types.is_list(column.type) and not pa.types.is_large_list(column.type):
            raise UsageError(f"Column {name!r} holds {column.type}, where tokens are needed.")
        return column

    def texts(self, name: str) -> pa.LargeStringArray:
        """A column of texts.

        Raises:
            UsageError: there is none of this name, or it holds something else.
        """
        column = self.column(name)
        kinds = {type(one).__name__ for one in column} if isinstance(column, list) else {"str"}
        if kinds - {"str"} or getattr(column, "type", pa.large_string()) != pa.large_string():
            found = min(kinds - {"str"}, default="tokens")
            raise UsageError(f"Column {name!r} holds {found}, where a text is needed.")
        try:
            return pa.array(column, pa.large_string()) if isinstance(column, list) else column
        except UnicodeEncodeError as error:
            raise UsageError(f"Column {name!r} holds no valid text: {error}.") from error

    def with_columns(self, added: Mapping[str, Column]) -> "Block":
        """The same samples with further columns, or with others in their place."""
        if self.columns is not None and not any(isinstance(c, list) for c in added.values()):
            return Block({**self.columns, **added})
        rows = zip(*map(shown, added.values()), strict=True)
        return Block(
            [
                {**sample, **dict(zip(added, values, strict=True))}
                for sample, values in zip(self.samples, rows, strict=True)
            ]
        )

    def copied(self) -> "Block":
        """The same samples with values of their own; columns always show such."""
        return Block(self._of if self.columns else [copied(one) for one in self.samples])

    def slice(self, start: int, stop: int) -> "Block":
        """The samples [start, stop)."""
        if self.columns is None:
            return Block(self.samples[start:stop])
        size = max(stop - start, 0)
        return Block({name: column.slice(start, size) for name, column in self.columns.items()})

    def gather(self, numbers: Numbers) -> "Block":
        """Some samples, in this order."""
        if self.columns is None:
            return Block([self.samples[number] for number in numbers.tolist()])
        return Block({name: _gather(column, numbers) for name, column in self.columns.items()})


def concat(blocks: Iterable[Block]) -> Block:
    """One block of some."""
    filled = [block for block in blocks if len(block)]
    if len(filled) < 2:
        return filled[0] if filled else Block()
    names = list(filled[0].columns or {})
    kinds = [
        [(name, column.type) for name, column in (block.columns or {}).items()] for block in filled
    ]
    if not names or any(kind != kinds[0] for kind in kinds):
        return Block([*chain.from_iterable(block.samples for block in filled)])
    return Block(
        {
            name: pa.concat_arrays([(block.columns or {})[name] for block in filled])
            for name in names
        }
    )


def tokens_of(values: npt.NDArray[Any], lengths: npt.ArrayLike, *, listed: bool = False) -> Column:
    """A column of tokens: those of all samples in their order, and how many each has."""
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if listed:
        return pa.ListArray.from_arrays(offsets.astype(np.int32), values)
    return pa.LargeListArray.from_arrays(offsets, values)


def rows_of(rows: npt.NDArray[Any]) -> Column:
    """A column of tokens, as many in each sample: (samples, tokens)."""
    return tokens_of(rows.reshape(-1), np.full(len(rows), rows.shape[1]))


def lists(values: Sequence[npt.NDArray[Any]]) -> Column:
    """A column of tokens out of those of each sample."""
    return tokens_of(np.concatenate([np.empty(0, np.int64), *values]), [len(v) for v in values])


def flat(column: Column) -> npt.NDArray[Any]:
    """The tokens of all samples of a column, one behind the other."""
    values: npt.NDArray[Any] = column.flatten().to_numpy()
    return values


def lengths_of(column: Column) -> Numbers:
    """The tokens of each sample of a column."""
    lengths: Numbers = column.value_lengths().to_numpy().astype(np.int64)
    return lengths


def regular(column: Column) -> npt.NDArray[Any] | None:
    """The rows of tokens that have one length, (samples, tokens); None where they have others."""
    lengths = lengths_of(column)
    same = len(lengths) > 0 and lengths[0] > 0 and (lengths == lengths[0]).all()
    return flat(column).reshape(len(lengths), -1) if same else None


def shown(column: Column) -> Sequence[Any]:
    """The values of a column as samples have them, each of its own memory."""
    if isinstance(column, list) or not pa.types.is_large_list(column.type):
        return column if isinstance(column, list) else column.to_pylist()
    values, ends = flat(column).astype(np.int64), np.cumsum(lengths_of(column)).tolist()
    return [torch.from_numpy(values[a:b].copy()) for a, b in pairwise([0, *ends])]


def _gather(column: Column, numbers: Numbers) -> Column:
    """Some values of a column; Arrow takes four times as long for rows of one length."""
    rows = regular(column) if pa.types.is_large_list(column.type) else None
    return column.take(pa.array(numbers)) if rows is None else rows_of(rows[numbers])


def _integers(value: Any, name: str) -> npt.NDArray[np.int64]:
    """Tokens as users hand them over: a list, array, tensor, a single number, None for none."""
    array: npt.NDArray[Any] = np.atleast_1d(np.asarray([] if value is None else value))
    array = array[0] if array.ndim == 2 and len(array) == 1 else array
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise UsageError(
            f"Column {name!r} holds {array.dtype} of shape {array.shape}, where a sample's tokens "
            "are needed: a list of integers."
        )
    return array.astype(np.int64)


def copied(value: Any) -> Any:
    """A sample with containers, arrays and tensors of its own, at any depth.

    Objects of other kinds, such as images, are shared: what copies of them cost, or whether they
    can be had, is not known here.
    """
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is dict:
        return {name: one if type(one) in _FIXED else copied(one) for name, one in value.items()}
    if kind is list and _FIXED.issuperset(map(type, value)):  # tokens: many
        return value.copy()
    if kind is list or kind is tuple:
        return kind(copied(one) for one in value)
    if isinstance(value, torch.Tensor):
        return value.clone()
    # numpy's arrays, and what others made of containers
    known = isinstance(value, np.ndarray | dict | list | tuple | set | bytearray)
    return copy.deepcopy(value) if known else value
