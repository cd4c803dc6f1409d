"""Files of ids back to back: nanoGPT, OLMo-core and dolma, nanotron and datatrove, llm.c."""

import re

import numpy as np

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.shard import token_dtype
from streaming_ext.format.spec import IdOptions
from streaming_ext.text.token_sets.set_file import IdsOfFile, SetFile, raw_ids
from streaming_ext.text.token_sets.token_set import TokenSetFormat

_NUMPY_MAGIC = b"\x93NUMPY"
_LLMC_HEAD = 1024  # 256 numbers of 32 bits
_LLMC_TYPES = {(20240520, 1): "uint16", (20240801, 7): "uint32"}


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
        dtype = options.dtype or token_dtype(options.vocab_size)
        index = file.companion(f"{file.key}.index")
        data = index.read()
        # ends: (documents,), in ids
        ends = np.frombuffer(data[: len(data) // 8 * 8], "<u8")
        count = int(ends[-1]) if len(ends) else 0
        expected = count * np.dtype(dtype).itemsize
        if len(data) % 8 or (ends[1:] < ends[:-1]).any() or expected != file.size:
            raise SourceError(
                f"{file.name}: {file.size:,} bytes, but the {len(data):,} bytes of {index.key} "
                f"list {count:,} ids, {expected:,} bytes as {dtype}. One of both is cut short, or "
                "its ids have another type (--dtype)."
            )
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        return raw_ids(file, dtype, starts=np.unique(starts))


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
        expected = _LLMC_HEAD + int(head[2]) * np.dtype(dtype).itemsize
        if expected != file.size:
            raise SourceError(
                f"{file.name}: {file.size:,} bytes, but its head counts {int(head[2]):,} ids, "
                f"which make {expected:,}. It is cut short; copy it again."
            )
        return raw_ids(file, dtype, head=_LLMC_HEAD)
