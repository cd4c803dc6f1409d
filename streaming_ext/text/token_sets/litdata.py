"""litData's chunks of ids, whose items are documents; `index.json` beside them tells the type."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from streaming_ext.base.errors import SourceError, UsageError, one_line
from streaming_ext.format.spec import IdOptions
from streaming_ext.text.token_sets.files.ids_of_file import IdsOfFile, held_ids
from streaming_ext.text.token_sets.files.set_file import SetFile, pin_of
from streaming_ext.text.token_sets.token_set import TokenSetFormat

_INDEX = "index.json"
_ARRAYS = {5: "uint16", 6: "uint32", 2: "int32", 3: "int64"}
_TENSORS = {15: "int32", 16: "int32", 17: "int64", 18: "int64"}  # of torch; what litGPT writes
_TYPES = {f"no_header_numpy:{code}": kind for code, kind in _ARRAYS.items()} | {
    f"no_header_tensor:{code}": kind for code, kind in _TENSORS.items()
}
_CODEC = "zstd"  # with a level behind a colon, perhaps


class LitdataSet(TokenSetFormat):
    """See `TokenSetFormat`; a chunk is held in memory."""

    name = "litdata"
    suffixes = (".bin",)

    def beside(self, path: Path) -> tuple[Path, ...]:
        """The index of all chunks."""
        return (path.with_name(_INDEX),)

    def pin(self, file: SetFile, options: IdOptions) -> str:
        """Of the index of all chunks."""
        return pin_of(file.folder, (_INDEX,))

    def glance(self, file: SetFile, options: IdOptions) -> None:
        """Read the index alone."""
        _described(file)

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """The items of a chunk, whose places must lie within it.

        Raises:
            UsageError: the index is missing, or of something else.
            SourceError: the chunk is cut short.
        """
        name, described = file.name, _described(file)
        kind = np.dtype(described.kind).newbyteorder("<")
        data = _unpacked(file.whole(), name) if described.packed else file.whole()
        items = int.from_bytes(data[:4], "little")
        head = 4 * (items + 2)
        places = (
            np.frombuffer(data, "<u4", items + 1, 4).astype(np.int64)
            if head <= len(data)
            else np.zeros(1, np.int64)
        )
        if (
            places[0] != head
            or places[-1] != len(data)
            or (places[1:] < places[:-1]).any()
            or ((places - head) % kind.itemsize).any()
        ):
            raise SourceError(
                f"{name}: {len(data):,} bytes, in which the places of its {items:,} items do not "
                f"lie as {kind.name} ids. It is cut short; copy it again."
            )
        starts = (places[:-1] - head) // kind.itemsize
        return held_ids(np.frombuffer(data, kind, offset=head), starts=np.unique(starts))


@dataclass(frozen=True, slots=True)
class _Described:
    """What an index tells of its chunks: the type of an id, whether they are packed, and which."""

    kind: str
    packed: bool
    names: frozenset[str]


def _described(file: SetFile) -> _Described:
    """What the index beside a chunk tells, which must list it."""
    index = file.beside(_INDEX)
    if index is None:
        raise UsageError(f"{file.name}: there is no {_INDEX} beside it, which tells types.")
    described = _read(index)
    if file.key not in described.names:
        raise UsageError(f"{file.name}: {index.name} does not list it. Leave it out.")
    return described


@lru_cache(4)
def _read(index: SetFile) -> _Described:
    try:
        told = json.loads(index.whole())
        (form,) = told["config"]["data_format"]
        codec = told["config"]["compression"]
        names = frozenset(chunk["filename"] for chunk in told["chunks"])
        counted = any(chunk["dim"] is not None for chunk in told["chunks"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{index.name}: no index of litData: {one_line(error)}.") from error
    packed = isinstance(codec, str) and codec.partition(":")[0] == _CODEC
    if not (packed or codec is None) or not isinstance(form, str) or form not in _TYPES:
        raise UsageError(
            f"{index.name}: chunks of {form!r}, compressed with {codec}; chunks of ids, "
            f"{', '.join(_TYPES)}, that are not compressed or with {_CODEC} are read."
        )
    if names and not counted:  # each item begins with its size there
        raise UsageError(
            f"{index.name}: its chunks do not tell how many ids they hold, so it was written for "
            "PyTreeLoader. Sets that were written with item_loader=TokensLoader() are read."
        )
    if lost := sorted(names - set(index.folder.names())):
        raise UsageError(
            f"{index.name}: lists {lost[0]}{' and more' if len(lost) > 1 else ''}, which is not "
            "there. Copy the set again."
        )
    return _Described(_TYPES[form], packed, names)


def _unpacked(data: bytes, where: str) -> bytes:
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), _CODEC) as stream:
            return bytes(stream.read())
    except OSError as error:
        raise SourceError(
            f"{where}: damaged {_CODEC} data: {one_line(error)}. Copy it again."
        ) from error
