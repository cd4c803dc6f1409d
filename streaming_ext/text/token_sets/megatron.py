"""Megatron-LM's `PREFIX.bin` with `PREFIX.idx`, which says where each document stands."""

from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.spec import IdOptions
from streaming_ext.text.token_sets.files.ids_of_file import IdsOfFile, raw_ids
from streaming_ext.text.token_sets.files.set_file import SetFile, pin_of
from streaming_ext.text.token_sets.token_set import TokenSetFormat

_MAGIC: Final = b"MMIDIDX\0\0"
_HEAD: Final = 34
_TYPES: Final = {1: "uint8", 4: "int32", 5: "int64", 8: "uint16"}


class MegatronSet(TokenSetFormat):
    """See `TokenSetFormat`; the source is the `.bin`."""

    name = "megatron"
    suffixes = (".bin",)
    is_cut = True

    def called(self, pattern: str) -> tuple[str, ...]:
        """Megatron-LM calls both files of a pair by their prefix."""
        prefix = pattern.removesuffix(".idx")
        return (f"{prefix}.bin",) if prefix != pattern else (pattern, f"{pattern}.bin")

    def beside(self, path: Path) -> tuple[Path, ...]:
        """The index."""
        return (path.with_suffix(".idx"),)

    def pin(self, file: SetFile, options: IdOptions) -> str:
        """Of the index."""
        return pin_of(file.folder, (_index(file),))

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """The ids, and where documents begin, as the index tells.

        Raises:
            SourceError: the index points outside of the file, or contradicts itself.
            UsageError: there is none.
        """
        name, index = file.name, file.beside(_index(file))
        if index is None:
            raise UsageError(
                f"{name}: there is no {_index(file)} beside it. Files of bare ids are of the "
                "format nanogpt."
            )
        kind, starts, told = _read(index)
        size = file.size
        if told != size:
            raise SourceError(
                f"{name}: {size:,} bytes, but {index.key} points to {told:,}. One of both is cut "
                "short, or another file's; copy both again."
            )
        return raw_ids(file, kind, starts=starts)


def _index(file: SetFile) -> str:
    return file.key.rpartition(".")[0] + ".idx"


@lru_cache(1)  # for one piece of a file after another
def _read(index: SetFile) -> tuple[str, Ints, int]:
    return _read_index(index.whole(), index.name)


def _read_index(data: bytes, where: str) -> tuple[str, Ints, int]:
    """Type of the ids, where documents begin among them, and the bytes of all of them."""
    if data[: len(_MAGIC)] != _MAGIC or len(data) < _HEAD:
        raise UsageError(f"{where}: no index of Megatron: it does not begin with MMIDIDX.")
    version, sequences, documents = (
        int.from_bytes(data[at : at + 8], "little") for at in (9, 18, 26)
    )
    code = data[17]
    if version != 1 or code not in _TYPES:
        known = ", ".join(f"{number} ({kind})" for number, kind in _TYPES.items())
        raise UsageError(
            f"{where}: version {version} with ids of type {code}; version 1 with type {known} is "
            "read."
        )
    if len(data) != _HEAD + 12 * sequences + 8 * documents:
        raise SourceError(
            f"{where}: {len(data):,} bytes, but {sequences:,} sequences and {documents:,} places "
            f"of documents make {_HEAD + 12 * sequences + 8 * documents:,}. It is cut short."
        )
    itemsize = np.dtype(_TYPES[code]).itemsize
    lengths = np.frombuffer(data, "<i4", sequences, _HEAD).astype(np.int64)
    offsets = np.frombuffer(data, "<i8", sequences, _HEAD + 4 * sequences)
    numbers = np.frombuffer(data, "<i8", documents, _HEAD + 12 * sequences)
    ends = np.cumsum(lengths)
    if (lengths < 0).any() or (offsets != (ends - lengths) * itemsize).any():
        raise SourceError(
            f"{where}: its sequences do not lie one behind the other in the .bin, from the first "
            "byte to the last."
        )
    if (
        not documents
        or numbers[0] != 0
        or numbers[-1] != sequences
        or (numbers[1:] < numbers[:-1]).any()
    ):
        raise SourceError(
            f"{where}: its documents do not go from sequence 0 to {sequences:,} in their order."
        )
    places = np.concatenate([[0], ends])
    total = int(places[-1])
    return _TYPES[code], np.unique(places[numbers[:-1]]), total * itemsize
