"""MDS shards of token ids, Shardmill's and other tools', of which one is in memory at a time."""

from functools import lru_cache

import numpy as np

from streaming_ext.base.errors import CorruptDatasetError, SourceError, UsageError
from streaming_ext.format.mds_index import read_table
from streaming_ext.format.shard import ShardTable, difference
from streaming_ext.format.spec import IdOptions
from streaming_ext.text.token_sets.set_file import IdsOfFile, SetFile, holds, open_in
from streaming_ext.text.token_sets.token_set import TokenSetFormat, require_width

_INDEX = "index.json"
_PACKED = ("", ".zstd", ".gz", ".bz2")


class MdsSet(TokenSetFormat):
    """Plain MDS, such as llm-foundry's: an `index.json` lists shards of rows of one length.

    Rows continue from shard to shard of an index, in its order. `--dtype` is for sets that store
    ids as bare bytes.
    """

    name = "mds"
    suffixes = tuple(f".mds{packed}" for packed in _PACKED)
    is_cut = False
    states_type = False

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """See `TokenSetFormat.open`: the index must describe the shard."""
        _, table, number = _entry_of(file, options.dtype)
        name, data = file.name, file.read()
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
        if options.dtype is not None:  # the index does not name the type
            require_width(ids, where=name)
        return IdsOfFile(count=len(ids), read=lambda start, end: ids[start:end])

    def described(self, file: SetFile, options: IdOptions) -> bytes:
        """See `TokenSetFormat.described`: the entry of the shard in the index."""
        _, table, number = _entry_of(file, options.dtype)
        entry = (table.dtype, table.sample_tokens, int(table.samples[number]), table.codecs[number])
        return repr(entry).encode()

    def beside(self, file: SetFile, options: IdOptions) -> tuple[str, tuple[str, ...]]:
        """See `TokenSetFormat.beside`: the index, and all files that it lists."""
        folder, table, _ = _entry_of(file, options.dtype)
        return folder, (_INDEX, *table.names)

    def neighbour(self, file: SetFile, step: int, options: IdOptions) -> SetFile | None:
        """See `TokenSetFormat.neighbour`: the neighbour in the order of the index."""
        folder, table, number = _entry_of(file, options.dtype)
        number += step
        return open_in(folder, table.names[number]) if 0 <= number < len(table.names) else None


def _entry_of(file: SetFile, dtype: str | None) -> tuple[str, ShardTable, int]:
    """Find the nearest index above a shard; return its folder, its table and the shard's number."""
    for folder in file.folders():
        if holds(folder, _INDEX) and (index := open_in(folder, _INDEX)) is not None:
            table = _read_mds(index, dtype)
            key = file.name[len(folder) :].lstrip("/")
            if key not in table.names:
                raise UsageError(f"{file.name}: {index.name} does not list it. Leave it out.")
            return folder, table, table.names.index(key)
    raise UsageError(
        f"{file.name}: there is no {_INDEX} next to it or above. Write it with the set."
    )


@lru_cache(4)
def _read_mds(index: SetFile, dtype: str | None) -> ShardTable:
    def fetch(name: str, size: int) -> bytes:
        return index.companion(name).read()

    try:
        table = read_table(index.read(), where=index.name, fetch=fetch, token_dtype=dtype)
    except CorruptDatasetError as error:
        raise UsageError(str(error)) from error
    for name in table.names:
        index.companion(name)
    return table
