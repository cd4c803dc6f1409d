"""The texts of a block of JSON objects, each with a place of its own in the block.

Arrow's parser reads a block at once, and takes only what it is sure of: where a block holds
anything unusual, its objects are read one by one, and the bad ones are named.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.json.depth import is_too_deep, may_be_deep
from streaming_ext.text.documents.json.lines import LineBlock
from streaming_ext.text.documents.json.values import (
    TOO_LONG,
    TYPES,
    BadValueError,
    Texts,
    columns_of,
    nothing_of,
    object_of,
    texts_of,
    value_at,
)
from streaming_ext.text.documents.kept_values import joined
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import BadDocument
from streaming_ext.text.filters.condition import Kind

_OPEN, _CLOSE, _RETURN = b"{}\r"
_LARGE = 2**20  # bytes of a line that is tried alone
_SMALL = 2**15  # bytes of a block: Arrow's parser takes half a millisecond before it begins

Columns = tuple[list[pa.LargeStringArray], list[pa.Array]]  # of texts, and what is compared
Place = Callable[[int, int], str]  # of a byte of a line of a block, for people


def texts_of_block(
    block: LineBlock, rows: DocumentRows, place: Place
) -> tuple[Columns, list[BadDocument]]:
    """The texts of each line in each column, what is compared, and the lines that are bad.

    Raises:
        SourceError: one is bad, and such are not to be left out.
    """
    columns = _texts_at_once(block, rows.options) if len(block.data) > _SMALL else None
    return (columns, []) if columns is not None else _texts_one_by_one(block, rows, place)


def _texts_at_once(block: LineBlock, options: ReadOptions) -> Columns | None:
    """The texts of each line, null where there is none; None where that is not as sure as it is."""
    schema = _schema(options, _kinds(block, options))
    data = np.frombuffer(block.data, np.uint8)
    lasts = block.ends - 1
    if schema is None or (lasts < block.starts).any():
        return None
    returns = data[lasts] == _RETURN
    lasts = lasts - returns
    if not ((data[block.starts] == _OPEN) & (data[lasts] == _CLOSE)).all():
        return None  # else no line could hold two objects, and none could go on in the next
    if _any_too_deep(block):
        return None
    buffer = pa.py_buffer(block.data)
    whole = pa.py_buffer(np.array([0, len(data)], np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, whole, buffer).validate(full=True)
        table = pa.json.read_json(
            pa.BufferReader(buffer),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pa.json.ParseOptions(
                explicit_schema=schema,
                unexpected_field_behavior="ignore",
            ),
        )
    except pa.ArrowInvalid:
        return None
    if len(table) != len(block):
        return None
    return (
        [_column(table, column).cast(pa.large_string()) for column in options.columns],
        [_column(table, column) for column in options.compared],
    )


def _any_too_deep(block: LineBlock) -> bool:
    """Whether a line is nested too deep to be read."""
    data = np.frombuffer(block.data, np.uint8)
    return any(
        is_too_deep(block.data[block.starts[line] : block.ends[line]])
        for line in may_be_deep(data, block.starts, block.ends)
    )


def _column(table: pa.Table, column: str) -> pa.Array:
    """What stands under this name or, where nothing does, at the end of the path."""
    texts = table.column(column)
    head, *path = column.split(".")
    if path:
        nested = table.column(head)
        for step in path:
            nested = pc.struct_field(nested, step)
        texts = pc.coalesce(texts, nested)
    return texts.combine_chunks()


def _kinds(block: LineBlock, options: ReadOptions) -> dict[str, Kind]:
    """What each further column holds; of one that is kept, as the first line has it."""
    kinds = dict(options.compared)
    if "value" not in kinds.values() or not len(block):
        return kinds
    try:
        first = object_of(bytes(block.data[block.starts[0] : block.ends[0]]))
    except BadValueError:
        return kinds
    for column, kind in kinds.items():
        if kind == "value":
            found = value_at(first, column)
            kinds[column] = (
                "boolean" if isinstance(found, bool) else "number" if isinstance(found, float)
                else "text"
            )  # fmt: skip
    return kinds


def _schema(options: ReadOptions, kinds: Mapping[str, Kind]) -> pa.Schema | None:
    """A field of each name and, where it is a path, the one at its end; None for contradictions."""
    types = {column: TYPES[kind] for column, kind in kinds.items()}
    if {"any", "value"} & set(kinds.values()) or types.keys() & options.columns:
        return None
    types |= dict.fromkeys(options.columns, pa.string())
    columns = [*types]
    fields: dict[str, Any] = {}
    for column in columns:
        fields[column] = types[column]
    for column in columns:
        *path, last = column.split(".")
        inside = fields
        for step in path:
            inside = inside.setdefault(step, {})
            if isinstance(inside, pa.DataType):
                return None  # a value, and a path that leads through it
        if path and inside.setdefault(last, types[column]) != types[column]:
            return None
    return pa.schema(_fields(fields))


def _fields(fields: dict[str, Any]) -> list[pa.Field]:
    return [
        pa.field(name, pa.struct(_fields(inside)) if isinstance(inside, dict) else inside)
        for name, inside in fields.items()
    ]


def _texts_one_by_one(
    block: LineBlock, rows: DocumentRows, place: Place
) -> tuple[Columns, list[BadDocument]]:
    """The texts of each line, and the lines that are bad."""
    options = rows.options
    pieces: list[Columns] = []
    found: list[Texts] = []
    bad: list[BadDocument] = []
    nothing = nothing_of(options)
    for line, (start, end) in enumerate(
        zip(block.starts.tolist(), block.ends.tolist(), strict=True)
    ):
        if end - start > _LARGE and (alone := _alone(block, start, end, options)):
            pieces += [columns_of(found, options), alone]
            found = []
            continue
        data = bytes(block.data[start:end])
        try:
            if line in block.too_long:
                raise BadValueError(TOO_LONG)  # noqa: TRY301
            found.append(texts_of(object_of(data), options) if data.strip() else nothing)
        except BadValueError as error:
            one = BadDocument(rows.row + line, place(line, error.byte), str(error))
            rows.refuse(one)
            bad.append(one)
            found.append(nothing)
    pieces.append(columns_of(found, options))
    texts = [
        pa.concat_arrays(columns) for columns in zip(*(each[0] for each in pieces), strict=True)
    ]
    compared = [
        joined(name, columns)
        for name, columns in zip(
            options.compared, zip(*(each[1] for each in pieces), strict=True), strict=True
        )
    ]
    return (texts, compared), bad


def _alone(block: LineBlock, start: int, end: int, options: ReadOptions) -> Columns | None:
    """The texts of one long line by the way that takes less memory, if that is sure."""
    bounds = np.array([0, end - start])
    line = LineBlock(block.data[start:end], bounds[:1], bounds[1:], 0, 0)
    return _texts_at_once(line, options)
