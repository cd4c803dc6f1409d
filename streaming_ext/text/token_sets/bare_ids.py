"""Files of ids back to back: nanoGPT, OLMo-core, dolma, llm.c, Megatron-LM."""

import re
import struct
from functools import lru_cache

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.shard import token_dtype
from streaming_ext.format.spec import IdOptions
from streaming_ext.text.token_sets.set_file import IdsOfFile, SetFile, names_in, open_in, raw_ids
from streaming_ext.text.token_sets.token_set import TokenSetFormat

_NUMPY_MAGIC = b"\x93NUMPY"
_LLMC_HEAD = 1024  # 256 numbers of 32 bits
_NUMBERED = re.compile(r"(.*?)(\d+)(\.bin)")  # text, number, text
_LLMC_TYPES = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
_MEGATRON_MAGIC = b"MMIDIDX\0\0"
_MEGATRON_HEAD = 34
_MEGATRON_TYPES = {1: "uint8", 4: "int32", 5: "int64", 8: "uint16"}


class NanogptSet(TokenSetFormat):
    """nanoGPT's `.bin`: bare ids, with an end-of-text id after each document."""

    name = "nanogpt"
    suffixes = (".bin",)
    ends_with_eot = True
    states_type = False

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """See `TokenSetFormat.open`."""
        return raw_ids(file, options.dtype or token_dtype(options.vocab_size))


class OlmoSet(NanogptSet):
    """OLMo-core's and dolma's `.npy`: bare ids in the smallest type, without NumPy's own head.

    Lists of documents next to the files are not needed.
    """

    name = "olmo"
    suffixes = (".npy",)

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """See `TokenSetFormat.open`."""
        ids = raw_ids(file, options.dtype or np.min_scalar_type(options.vocab_size - 1).name)
        if file.read(0, min(len(_NUMPY_MAGIC), file.size)) == _NUMPY_MAGIC:
            raise UsageError(
                f"{file.name}: made by numpy.save; files of OLMo-core have no head. Write the "
                "array with `array.tofile(...)` instead."
            )
        return ids


class LlmcSet(TokenSetFormat):
    """llm.c's and modded-nanogpt's `.bin`: a head that counts the ids, then the ids.

    An end-of-text id precedes each document. Documents continue from file to file of a
    numbered series, `fineweb_train_000001.bin` and so on.
    """

    name = "llmc"
    suffixes = (".bin",)

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """See `TokenSetFormat.open`."""
        head = np.frombuffer(file.read(0, min(_LLMC_HEAD, file.size) // 4 * 4), "<i4")
        dtype = _LLMC_TYPES.get((int(head[0]), int(head[1]))) if len(head) == 256 else None
        if dtype is None:
            raise UsageError(
                f"{file.name}: does not begin as files of llm.c do (20240520, 1 or 20240801, 7). "
                "Files of bare ids are of the format nanogpt."
            )
        return raw_ids(file, dtype, head=_LLMC_HEAD, count=int(head[2]))

    def beside(self, file: SetFile, options: IdOptions) -> tuple[str, tuple[str, ...]]:
        """See `TokenSetFormat.beside`: the files of the folder, not of folders below it."""
        names = (name for name in names_in(file.folder) if "/" not in name)
        return file.folder, tuple(sorted(name for name in names if name.endswith(self.suffixes)))

    def neighbour(self, file: SetFile, step: int, options: IdOptions) -> SetFile | None:
        """See `TokenSetFormat.neighbour`: the file with the next number between the same texts.

        Raises:
            SourceError: the folder cannot be read, or lacks the neighbour but holds a further file.
        """
        match = _NUMBERED.fullmatch(file.key)
        if match is None:
            return None
        before, number, after = match.groups()
        wanted = int(number) + step
        others = {
            int(other[2]): name
            for name in names_in(file.folder)
            if (other := _NUMBERED.fullmatch(name)) and (other[1], other[3]) == (before, after)
        }
        if wanted in others:
            return open_in(file.folder, others[wanted])
        if any((other - wanted) * step > 0 for other in others):
            raise SourceError(
                f"{file.folder}/{before}{wanted:0{len(number)}}{after}: the file is missing, and "
                "others of its set with numbers on either side exist: documents continue from "
                "file to file. Copy it again."
            )
        return None


class MegatronSet(TokenSetFormat):
    """Megatron-LM's `PREFIX.bin` with `PREFIX.idx`, which says where each document begins."""

    name = "megatron"
    suffixes = (".bin",)

    def called(self, pattern: str) -> tuple[str, ...]:
        """See `TokenSetFormat.called`: Megatron-LM names both files of a pair by their prefix."""
        prefix = pattern.removesuffix(".idx")
        return (f"{prefix}.bin",) if prefix != pattern else (pattern, f"{pattern}.bin")

    def beside(self, file: SetFile, options: IdOptions) -> tuple[str, tuple[str, ...]]:
        """See `TokenSetFormat.beside`: the index."""
        return file.folder, (_index_key(file),)

    def described(self, file: SetFile, options: IdOptions) -> bytes:
        """See `TokenSetFormat.described`: the content of the index."""
        return file.companion(_index_key(file)).read()

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """See `TokenSetFormat.open`."""
        dtype, starts, count = _read_index(file.companion(_index_key(file)))
        return raw_ids(file, dtype, starts=starts, count=count)


def _index_key(file: SetFile) -> str:
    return file.key.rpartition(".")[0] + ".idx"


@lru_cache(1)  # serves one span of a file after another
def _read_index(index: SetFile) -> tuple[str, Ints, int]:
    """Read the type of the ids, the positions at which documents begin, and the number of ids."""
    data, where = index.read(), index.name
    if data[: len(_MEGATRON_MAGIC)] != _MEGATRON_MAGIC or len(data) < _MEGATRON_HEAD:
        raise UsageError(f"{where}: no index of Megatron: it does not begin with MMIDIDX.")
    version, code, sequences, documents = struct.unpack_from("<QBQQ", data, len(_MEGATRON_MAGIC))
    if version != 1 or code not in _MEGATRON_TYPES:
        raise UsageError(
            f"{where}: version {version} with ids of type {code}; version 1 with types of "
            f"{_MEGATRON_TYPES} is read."
        )
    if len(data) != _MEGATRON_HEAD + 12 * sequences + 8 * documents:
        raise SourceError(
            f"{where}: {len(data):,} bytes do not hold {sequences:,} sequences and {documents:,} "
            "boundaries of documents. It is cut short."
        )
    itemsize = np.dtype(_MEGATRON_TYPES[code]).itemsize
    lengths = np.frombuffer(data, "<i4", sequences, _MEGATRON_HEAD).astype(np.int64)
    offsets = np.frombuffer(data, "<i8", sequences, _MEGATRON_HEAD + 4 * sequences)
    numbers = np.frombuffer(data, "<i8", documents, _MEGATRON_HEAD + 12 * sequences)
    # bounds: (sequences + 1,), in ids
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    steps = np.diff(numbers, prepend=0, append=sequences)
    if (
        (lengths < 0).any()
        or (offsets != bounds[:-1] * itemsize).any()
        or not documents
        or (steps < 0).any()
        or steps[[0, -1]].any()
    ):
        raise SourceError(f"{where}: its sequences or documents do not follow each other.")
    return _MEGATRON_TYPES[code], np.unique(bounds[numbers[:-1]]), int(bounds[-1])
