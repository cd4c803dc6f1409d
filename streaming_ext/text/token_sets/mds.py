"""Plain MDS sets of ids, such as llm-foundry's: an `index.json` lists shards of rows of one length.

Rows continue from shard to shard of an index, in its order.
"""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streaming_ext.base.errors import CorruptDatasetError, SourceError, UsageError
from streaming_ext.format.mds_index import read_table
from streaming_ext.format.shard import ShardTable, difference
from streaming_ext.format.spec import IdOptions, ReadOptions
from streaming_ext.text.documents.files import Span
from streaming_ext.text.token_sets.set_file import (
    IdsOfFile,
    SetFile,
    held_ids,
    holds,
    local_file,
    open_in,
    pin_of,
    require_all,
)
from streaming_ext.text.token_sets.token_set import TokenSetFormat, require_width

_PACKED = ("", ".zstd", ".gz", ".bz2")
_INDEX = "index.json"


class MdsSet(TokenSetFormat):
    """See `TokenSetFormat`; `--dtype` is for sets that store ids as bare bytes."""

    name = "mds"
    suffixes = tuple(f".mds{packed}" for packed in _PACKED)
    states_type = False

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """See `TokenSetFormat.open`: the index must describe the shard."""
        index, number = _entry_of(file, options.dtype)
        table, name, data = index.table, file.name, file.read()
        cause = difference(data, int(table.sizes[number]), table.hashes[number])
        try:
            if not cause:
                data = table.unpacked(number, data, where=name)
                cause = table.fault_of(number, np.frombuffer(data, np.uint8))
        except CorruptDatasetError as error:
            cause = str(error)
        if cause:
            raise SourceError(f"{name}: {cause}. Copy the shard and its index again.")
        first = int(table.headers[number])
        ids = np.frombuffer(data, np.dtype(table.dtype).newbyteorder("<"), offset=first)
        if options.dtype is not None:  # the index does not say it
            require_width(ids, where=name)
        return held_ids(ids)

    def pin(self, file: SetFile, options: IdOptions) -> str:
        """See `TokenSetFormat.pin`: of the index, and of all that it lists."""
        index, _ = _entry_of(file, options.dtype)
        return pin_of(index.folder, (_INDEX, *index.table.names))

    def glance(self, file: SetFile, options: IdOptions) -> None:
        """See `TokenSetFormat.glance`: the index alone."""
        _entry_of(file, options.dtype)

    def around(self, path: Path, options: ReadOptions, span: Span | None) -> bytes:
        """See `TokenSetFormat.around`; also the entry of the shard in the index."""
        dtype = None if options.ids is None else options.ids.dtype
        index, number = _entry_of(local_file(path), dtype)
        table = index.table
        entry = (table.dtype, table.sample_tokens, int(table.samples[number]), table.codecs[number])
        return repr(entry).encode() + super().around(path, options, span)

    def neighbour(self, file: SetFile, step: int, options: IdOptions) -> SetFile | None:
        """See `TokenSetFormat.neighbour`: in the order of the index."""
        index, number = _entry_of(file, options.dtype)
        names, number = index.table.names, number + step
        return open_in(index.folder, names[number]) if 0 <= number < len(names) else None


class _Index(NamedTuple):
    """An index: its folder, the shards that it lists, and their numbers."""

    folder: str
    table: ShardTable
    numbers: dict[str, int]


def _entry_of(file: SetFile, dtype: str | None) -> tuple[_Index, int]:
    """The index of a shard, in its folder or the nearest one above, and its number there."""
    for folder in file.folders():
        if holds(folder, _INDEX) and (index := open_in(folder, _INDEX)) is not None:
            found = _read(index, dtype)
            number = found.numbers.get(file.name[len(folder) :].lstrip("/"))
            if number is None:
                raise UsageError(f"{file.name}: {index.name} does not list it. Leave it out.")
            return found, number
    raise UsageError(
        f"{file.name}: there is no {_INDEX} next to it or above. Write it with the set."
    )


@lru_cache(4)
def _read(index: SetFile, dtype: str | None) -> _Index:
    def fetch(name: str, size: int) -> bytes:
        found = open_in(index.folder, name)
        if found is None:
            raise SourceError(f"{index.folder}/{name}: the file is missing.")
        return found.read()

    try:
        table = read_table(index.read(), where=index.name, fetch=fetch, token_dtype=dtype)
    except CorruptDatasetError as error:
        raise UsageError(str(error)) from error
    require_all(index, table.names)
    return _Index(index.folder, table, {name: number for number, name in enumerate(table.names)})
