"""A condition on the columns of a row: `language == 'en' and language_score >= 0.65`.

It has the syntax of Python. Python's own parser reads it, and each allowed expression becomes an
Arrow expression. Nothing of it is ever run as Python.
"""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.arrays import Flags
from streaming_ext.base.errors import UsageError

# The kind of a column's values: `value` for any of the first three, `any` if only nulls matter.
Kind = Literal["text", "number", "boolean", "any", "value"]
Value = str | int | float | bool
_ColumnOf = Callable[[str, Kind], Any]  # returns a column by its name and the kind of its values

MAX_LENGTH: Final = 10_000  # characters
# A name in backticks, a word that is not ASCII (Python would normalize it), or a Python string, in
# which backticks are ordinary characters.
_QUOTED = re.compile(
    r"""`([^`]+)`|(\b\w*[^\x00-\x7f](?:\w|[^\x00-\x7f])*)"""
    r"""|\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""",
    re.DOTALL,
)
# Each comparison: Arrow's function, and the comparison with its sides exchanged.
_COMPARE: Final[Mapping[type[ast.cmpop], tuple[Any, type[ast.cmpop]]]] = {
    ast.Eq: (pc.equal, ast.Eq),
    ast.NotEq: (pc.not_equal, ast.NotEq),
    ast.Lt: (pc.less, ast.Gt),
    ast.LtE: (pc.less_equal, ast.GtE),
    ast.Gt: (pc.greater, ast.Lt),
    ast.GtE: (pc.greater_equal, ast.LtE),
}
_PREFIX = "_in_backticks_"  # stands before a name in hexadecimal digits
_EXAMPLE = "language == 'en' and language_score >= 0.65"


@dataclass(frozen=True)
class Condition:
    """A valid condition; its columns need not exist in any file.

    A row is kept if the condition is true. As in SQL, a comparison with null is neither true nor
    false; if the whole condition is neither, the row is dropped.

    Attributes:
        text: the condition as it was written.
    """

    text: str

    def __post_init__(self) -> None:
        """Check every part of the condition.

        Raises:
            UsageError: the condition is not understood; the message says what is allowed.
        """
        try:
            _ = self.columns
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self._refused(getattr(error, "msg", None) or str(error)) from error

    @cached_property
    def columns(self) -> dict[str, Kind]:
        """Names or paths of the columns, in order, with the kind of value that each must hold.

        Raises:
            UsageError: a column is compared with values of several kinds.
        """
        kinds: dict[str, Kind] = {}

        def seen(column: str, kind: Kind) -> pc.Expression:
            if kinds.setdefault(column, kind) == "any":
                kinds[column] = kind
            elif kind not in ("any", kinds[column]):
                raise self._refused(f"{column} is compared with a {kinds[column]} and a {kind}")
            return pc.field(column)

        self._build(self._tree, seen)
        return kinds

    def apply(self, column_of: Callable[[str], Any]) -> Any:
        """Apply the condition to the columns that `column_of` returns: arrays, or `pc.field`s.

        Returns:
            For arrays, booleans and nulls: (rows,). For fields, an expression.
        """
        return self._build(self._tree, lambda column, kind: column_of(column))

    def holds(self, columns: Mapping[str, pa.Array]) -> Flags:
        """Find the rows for which the condition is true: (rows,).

        Args:
            columns: the values of each column that the condition names: (rows,) each.
        """
        return np.asarray(self.apply(columns.__getitem__).fill_null(False))

    @cached_property
    def _tree(self) -> ast.expr:
        text = self.text
        if len(text) > MAX_LENGTH:
            raise UsageError(f"--where of {len(text)} characters, at most {MAX_LENGTH} are read.")
        return ast.parse(_QUOTED.sub(_stand_in, text).strip(), mode="eval").body

    def _column(self, node: ast.expr) -> str | None:
        """Return the column that a node names, or None if it names none."""
        if isinstance(node, ast.Attribute):
            before = self._column(node.value)
            return None if before is None else f"{before}.{_name(node.attr)}"
        return _name(node.id) if isinstance(node, ast.Name) else None

    def _build(self, node: ast.expr, column_of: _ColumnOf) -> Any:
        if isinstance(node, ast.BoolOp):
            joined = pc.and_kleene if isinstance(node.op, ast.And) else pc.or_kleene
            return reduce(joined, [self._build(value, column_of) for value in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return pc.invert(self._build(node.operand, column_of))
        if isinstance(node, ast.Compare):
            pairs = zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
            return reduce(
                pc.and_kleene,
                [self._compared(left, how, right, column_of) for left, how, right in pairs],
            )
        if (column := self._column(node)) is not None:
            return column_of(column, "boolean").cast(pa.bool_())  # the column may be of type null
        raise self._refused(f"{ast.unparse(node)!r} is no comparison")

    def _compared(
        self, left: ast.expr, how: ast.cmpop, right: ast.expr, column_of: _ColumnOf
    ) -> Any:
        if self._column(left) is None and self._column(right) is not None and type(how) in _COMPARE:
            left, how, right = right, _COMPARE[type(how)][1](), left
        column = self._column(left)
        if column is None or self._column(right) is not None:
            raise self._refused(
                f"{ast.unparse(left)!r} and {ast.unparse(right)!r}: "
                "a column is compared with a value"
            )
        if isinstance(how, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self._refused("`is` goes with None alone")
            values = column_of(column, "any")
            return pc.is_null(values) if isinstance(how, ast.Is) else pc.is_valid(values)
        if isinstance(how, ast.In | ast.NotIn):
            items = self._items(right)
            values = column_of(column, _kind(items[0]))
            found = reduce(pc.or_kleene, [_compare(values, ast.Eq, value) for value in items])
            return found if isinstance(how, ast.In) else pc.invert(found)
        value = self._value(right)
        return _compare(column_of(column, _kind(value)), type(how), value)

    def _items(self, node: ast.expr) -> list[Value]:
        if isinstance(node, ast.List | ast.Tuple | ast.Set) and node.elts:
            values = [self._value(item) for item in node.elts]
            if len(set(map(_kind, values))) == 1:
                return values
        raise self._refused(f"{ast.unparse(node)!r} is no list of values of one kind")

    def _value(self, node: ast.expr) -> Value:
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError, RecursionError):
            value = None
        if not isinstance(value, str | int | float):
            raise self._refused(f"{ast.unparse(node)!r} is no text, number, True or False")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise self._refused(f"{value} takes more than 64 bits")
        return value

    def _refused(self, problem: str) -> UsageError:
        problem = re.sub(rf"{_PREFIX}\w+", lambda word: _name(word[0]), problem)
        return UsageError(
            f"--where {self.text!r} is not understood: {problem}. Columns are compared with texts, "
            f"numbers, True and False by ==, !=, <, <=, >, >=, in [...], is None, joined by and, "
            f"or, not: {_EXAMPLE!r}."
        )


def understood(text: str | None) -> str | None:
    """Check the condition of a setting, if there is one.

    Raises:
        ValueError: the condition is not understood; the message says what is allowed.
    """
    try:
        if text is not None:
            Condition(text)
    except UsageError as error:
        raise ValueError(str(error).removeprefix("--where ")) from error
    return text


def _stand_in(match: re.Match[str]) -> str:
    """Replace a name by a Python name; leave a string, and what is no name, as it is."""
    name = match[1] or match[2] or ""
    is_name = match[1] or name.isidentifier()
    return f" {_PREFIX}{name.encode().hex()} " if is_name else match[0]


def _name(word: str) -> str:
    """Return the name in backticks that a word stands for, or the word itself."""
    digits = word.removeprefix(_PREFIX)
    return word if digits == word else bytes.fromhex(digits).decode()


def _kind(value: Value) -> Kind:
    if isinstance(value, bool):
        return "boolean"
    return "text" if isinstance(value, str) else "number"


def _compare(values: Any, how: type[ast.cmpop], value: Value) -> Any:
    compared = _COMPARE[how][0]
    if not isinstance(values, pc.Expression):
        if isinstance(value, float) and pa.types.is_integer(values.type):
            values = values.cast(pa.float64(), safe=False)  # else Arrow refuses large integers
        elif _kind(value) == "number" and pa.types.is_floating(values.type):
            value = float(value)  # else Arrow refuses numbers that no float32 or double holds
    return compared(values, pa.scalar(value))


def is_text(column: pa.DataType) -> bool:
    """Return whether a column of this type holds texts, in any memory layout."""
    types = pa.types
    if types.is_dictionary(column):
        return is_text(column.value_type)
    return bool(
        types.is_string(column) or types.is_large_string(column) or types.is_string_view(column)
    )


def fits(kind: Kind, column: pa.DataType) -> bool:
    """Return whether a column of this type can be compared with values of a kind."""
    types = pa.types
    if types.is_dictionary(column):
        return fits(kind, column.value_type)
    if kind == "any" or types.is_null(column):  # no row of the file has a value
        return True
    found = {
        "text": is_text(column),
        "number": types.is_integer(column) or types.is_floating(column),
        "boolean": types.is_boolean(column),
    }
    return any(found.values()) if kind == "value" else found[kind]


def comparable(column: pa.Array) -> pa.Array:
    """Convert a column of a type that `fits` to a type that Arrow can compare.

    Whole numbers are compared exactly if that is possible.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return comparable(column.dictionary).take(column.indices)
    if pa.types.is_uint64(kind) or pa.types.is_float16(kind):
        return column.cast(pa.float64(), safe=False)
    return column.cast(pa.large_string()) if is_text(kind) else column
