"""litData's chunks of ids, whose items are documents; `index.json` next to them holds the type."""

import json
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streaming_ext.base.errors import SourceError, UsageError, one_line
from streaming_ext.format.spec import IdOptions
from streaming_ext.text.token_sets.set_file import IdsOfFile, SetFile, held_ids, require_all
from streaming_ext.text.token_sets.token_set import TokenSetFormat

_INDEX = "index.json"
_ARRAYS = {5: "uint16", 6: "uint32", 2: "int32", 3: "int64"}
_TENSORS = {15: "int32", 16: "int32", 17: "int64", 18: "int64"}  # of torch; what litGPT writes
_TYPES = {f"no_header_numpy:{code}": kind for code, kind in _ARRAYS.items()} | {
    f"no_header_tensor:{code}": kind for code, kind in _TENSORS.items()
}
_CODEC = "zstd"  # perhaps followed by a colon and a level


class LitdataSet(TokenSetFormat):
    """See `TokenSetFormat`; a chunk is held in memory."""

    name = "litdata"
    suffixes = (".bin",)

    def companions(self, key: str) -> tuple[str, ...]:
        """See `TokenSetFormat.companions`: the index of all chunks."""
        return (_INDEX,)

    def glance(self, file: SetFile, options: IdOptions) -> None:
        """See `TokenSetFormat.glance`: the index alone."""
        _index_of(file)

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """See `TokenSetFormat.open`."""
        index, data = _index_of(file), file.read()
        kind = np.dtype(index.dtype).newbyteorder("<")
        if index.packed:
            try:
                with pa.CompressedInputStream(pa.BufferReader(data), _CODEC) as stream:
                    data = bytes(stream.read())
            except OSError as error:
                raise SourceError(
                    f"{file.name}: damaged {_CODEC} data: {one_line(error)}. Copy it again."
                ) from error
        items = int.from_bytes(data[:4], "little")
        head = 4 * (items + 2)
        # offsets: (items + 1,), in bytes
        offsets = np.frombuffer(data[4:head], "<u4", len(data[4:head]) // 4).astype(np.int64)
        lengths = np.diff(offsets, prepend=head, append=len(data))
        if (
            len(offsets) != items + 1
            or lengths[[0, -1]].any()
            or (lengths % kind.itemsize).any()
            or (lengths < 0).any()
        ):
            raise SourceError(
                f"{file.name}: {len(data):,} bytes, in which its {items:,} items do not follow "
                f"each other as {kind.name} ids. It is cut short; copy it again."
            )
        starts = (offsets[:-1] - head) // kind.itemsize
        return held_ids(np.frombuffer(data, kind, offset=head), starts=np.unique(starts))


class _Index(NamedTuple):
    """The type of the ids in the chunks of an index, whether they are packed, and their names."""

    dtype: str
    packed: bool
    names: frozenset[str]


def _index_of(file: SetFile) -> _Index:
    """The index next to a chunk, which must list it."""
    index = file.companion(_INDEX)
    found = _read(index)
    if file.key not in found.names:
        raise UsageError(f"{file.name}: {index.name} does not list it. Leave it out.")
    return found


@lru_cache(4)
def _read(index: SetFile) -> _Index:
    try:
        fields = json.loads(index.read())
        (form,) = fields["config"]["data_format"]
        codec = fields["config"]["compression"]
        names = frozenset(chunk["filename"] for chunk in fields["chunks"])
        counted = any(chunk["dim"] is not None for chunk in fields["chunks"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{index.name}: no index of litData: {one_line(error)}.") from error
    is_packed = str(codec).partition(":")[0] == _CODEC
    if str(form) not in _TYPES or not (is_packed or codec is None) or (names and not counted):
        raise UsageError(
            f"{index.name}: chunks of {form!r}, compressed with {codec}; only chunks of ids are "
            f"read ({', '.join(_TYPES)}), written with item_loader=TokensLoader(), not compressed "
            f"or with {_CODEC}."
        )
    require_all(index, sorted(names))
    return _Index(_TYPES[form], is_packed, names)
