"""Megatron-LM's `PREFIX.bin` with `PREFIX.idx`, which says where each document begins."""

import struct
from functools import lru_cache
from typing import Final

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.spec import IdOptions
from streaming_ext.text.token_sets.set_file import IdsOfFile, SetFile, raw_ids
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
        """See `TokenSetFormat.called`: Megatron-LM names both files of a pair by their prefix."""
        prefix = pattern.removesuffix(".idx")
        return (f"{prefix}.bin",) if prefix != pattern else (pattern, f"{pattern}.bin")

    def companions(self, key: str) -> tuple[str, ...]:
        """See `TokenSetFormat.companions`: the index."""
        return (key.rpartition(".")[0] + ".idx",)

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """See `TokenSetFormat.open`."""
        index = file.companion(*self.companions(file.key))
        dtype, starts, expected = _read_index(index)
        if expected != file.size:
            raise SourceError(
                f"{file.name}: {file.size:,} bytes, but {index.key} points to {expected:,}. One of "
                "both is cut short, or another file's; copy both again."
            )
        return raw_ids(file, dtype, starts=starts)


@lru_cache(1)  # for one span of a file after another
def _read_index(index: SetFile) -> tuple[str, Ints, int]:
    """Type of the ids, where documents begin among them, and the bytes of all of them."""
    data, where = index.read(), index.name
    if data[: len(_MAGIC)] != _MAGIC or len(data) < _HEAD:
        raise UsageError(f"{where}: no index of Megatron: it does not begin with MMIDIDX.")
    version, code, sequences, documents = struct.unpack_from("<QBQQ", data, len(_MAGIC))
    if version != 1 or code not in _TYPES:
        known = ", ".join(f"{number} ({kind})" for number, kind in _TYPES.items())
        raise UsageError(
            f"{where}: version {version} with ids of type {code}; version 1 with type {known} is "
            "read."
        )
    if len(data) != (expected := _HEAD + 12 * sequences + 8 * documents):
        raise SourceError(
            f"{where}: {len(data):,} bytes, but {sequences:,} sequences and {documents:,} "
            f"boundaries of documents make {expected:,}. It is cut short."
        )
    itemsize = np.dtype(_TYPES[code]).itemsize
    lengths = np.frombuffer(data, "<i4", sequences, _HEAD).astype(np.int64)
    offsets = np.frombuffer(data, "<i8", sequences, _HEAD + 4 * sequences)
    numbers = np.frombuffer(data, "<i8", documents, _HEAD + 12 * sequences)
    # bounds: (sequences + 1,), in ids
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    if (lengths < 0).any() or (offsets != bounds[:-1] * itemsize).any():
        raise SourceError(f"{where}: its sequences do not follow each other in the .bin.")
    steps = np.diff(numbers, prepend=0, append=sequences)
    if not documents or (steps < 0).any() or steps[[0, -1]].any():
        raise SourceError(
            f"{where}: its documents do not go from sequence 0 to {sequences:,} in order."
        )
    return _TYPES[code], np.unique(bounds[numbers[:-1]]), int(bounds[-1]) * itemsize
