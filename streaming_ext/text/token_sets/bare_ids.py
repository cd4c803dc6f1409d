"""Files of ids back to back: nanoGPT, OLMo-core, dolma, nanotron, datatrove, llm.c, Megatron-LM."""

import re
import struct
from functools import lru_cache

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.shard import token_dtype
from streaming_ext.format.spec import IdOptions
from streaming_ext.text.token_sets.set_file import IdsOfFile, SetFile, raw_ids
from streaming_ext.text.token_sets.token_set import TokenSetFormat

_NUMPY_MAGIC = b"\x93NUMPY"
_LLMC_HEAD = 1024  # 256 numbers of 32 bits
_LLMC_TYPES = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
_MEGATRON_MAGIC = b"MMIDIDX\0\0"
_MEGATRON_HEAD = 34
_MEGATRON_TYPES = {1: "uint8", 4: "int32", 5: "int64", 8: "uint16"}


class NanogptSet(TokenSetFormat):
    """nanoGPT's `.bin`: bare ids, with an end-of-text id after each document."""

    name = "nanogpt"
    suffixes = (".bin",)
    is_cut = True
    ends_with_eot = True
    states_type = False

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """See `TokenSetFormat.open`."""
        return raw_ids(file, options.dtype or token_dtype(options.vocab_size))


class OlmoSet(NanogptSet):
    """OLMo-core's and dolma's `.npy`: the same in the smallest type, without NumPy's own head.

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


class NanotronSet(TokenSetFormat):
    """nanotron's and datatrove's `.ds`: bare ids, with the ends of documents in `.ds.index`."""

    name = "nanotron"
    suffixes = (".ds",)
    is_cut = True
    states_type = False

    def companions(self, key: str) -> tuple[str, ...]:
        """See `TokenSetFormat.companions`: the ends of its documents."""
        return (f"{key}.index",)

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """See `TokenSetFormat.open`: the last document must end with the file."""
        index = file.companion(*self.companions(file.key))
        data = index.read()
        # ends: (documents,), in ids
        ends = np.frombuffer(data[: len(data) // 8 * 8], "<u8")
        if len(data) % 8 or (ends[1:] < ends[:-1]).any():
            raise SourceError(f"{index.name}: is not a list of ascending numbers of 64 bits.")
        # bounds: (documents + 1,), in ids
        bounds = np.concatenate([[0], ends]).astype(np.int64)
        dtype = options.dtype or token_dtype(options.vocab_size)
        return raw_ids(file, dtype, starts=np.unique(bounds[:-1]), count=int(bounds[-1]))


class LlmcSet(TokenSetFormat):
    """llm.c's and modded-nanogpt's `.bin`: a head that counts the ids, then the ids.

    An end-of-text id precedes each document. Documents continue from file to file of one name,
    `fineweb_train_000001.bin` and so on.
    """

    name = "llmc"
    suffixes = (".bin",)
    is_cut = True
    numbered = re.compile(r"(.*?)(\d+)(\.bin)")

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


class MegatronSet(TokenSetFormat):
    """Megatron-LM's `PREFIX.bin` with `PREFIX.idx`, which says where each document begins."""

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
        dtype, starts, count = _read_index(file.companion(*self.companions(file.key)))
        return raw_ids(file, dtype, starts=starts, count=count)


@lru_cache(1)  # for one span of a file after another
def _read_index(index: SetFile) -> tuple[str, Ints, int]:
    """Type of the ids, where documents begin among them, and their number."""
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
