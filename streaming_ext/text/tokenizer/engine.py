"""Engines that turn a batch of documents into ids: the reference, and one that is far faster."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.errors import EngineMismatchError, SourceError
from streaming_ext.text.documents.text_array import text_buffers
from streaming_ext.text.tokenizer.code_points import UnsafeCodePoints
from streaming_ext.text.tokenizer.fast_tokenizer import FastSource, fast_source
from streaming_ext.text.tokenizer.tokenizer import Tokenizer, is_panic

# gigatoken 0.10 never forgets a word that it has seen, at 100 to 150 bytes each: about a million
# words in 1 GB of English, a hundred million in as much junk. A new one, slower until its caches
# fill, begins after so much text, or earlier where the process has grown by so much.
MAX_CACHED_BYTES = 1 << 30
MAX_GROWTH_BYTES = 512 << 20
# More than a new release of Unicode explains: something else is different.
MAX_UNSAFE = 20_000
NUM_CHECKED_TOKENS = 5_000


@dataclass(frozen=True, slots=True)
class Encoded:
    """The ids of a batch, `ids[offsets[i]:offsets[i + 1]]` document i's, without end-of-text."""

    ids: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.int64]


class Engine(Protocol):
    """Turns documents into ids. `name` says which software does, `reason` why it was chosen."""

    name: str
    reason: str

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """The reference ids of every document, in order."""
        ...


class ReferenceEngine:
    """The reference itself, one document after another."""

    def __init__(self, tokenizer: Tokenizer, reason: str = "asked for") -> None:
        package = "tiktoken" if tokenizer.kind == "tiktoken" else "tokenizers"
        self.name = f"{package} {version(package)}"
        self.reason = reason
        self._tokenizer = tokenizer

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        check_texts(texts)
        return _encode_rows(self._tokenizer, texts, range(len(texts)))


class FastEngine:
    """gigatoken, with the documents that it may split differently left to the reference."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        source: FastSource,
        unsafe: UnsafeCodePoints,
        reason: str = "asked for",
    ) -> None:
        self.name = f"gigatoken {version('gigatoken')}"
        self.reason = reason
        self._tokenizer = tokenizer
        self._source = source
        self._unsafe = unsafe
        self._renew()

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        check_texts(texts)
        if len(texts) == 0:
            return Encoded(np.empty(0, np.uint32), np.zeros(1, np.int64))
        data, offsets = text_buffers(texts)
        rows = self._unsafe.rows_with_any(data, offsets)
        num_bytes = int(offsets[-1] - offsets[0])
        grown = own_bytes() - self._own_bytes
        if self._cached_bytes > MAX_CACHED_BYTES or grown > MAX_GROWTH_BYTES:
            self._renew()
        self._cached_bytes += num_bytes
        encoded = self._encode_all(data, offsets)
        if len(rows):
            encoded = splice(encoded, rows, _encode_rows(self._tokenizer, texts, rows.tolist()))
        return encoded

    def _renew(self) -> None:
        self._gigatoken: Any = None  # free the old one first
        self._gigatoken = self._source.load()
        self._cached_bytes = 0
        self._own_bytes = own_bytes()

    def _encode_all(self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> Encoded:
        import awkward as ak
        from awkward.contents import ListOffsetArray, NumpyArray
        from awkward.index import Index64

        characters = NumpyArray(data, parameters={"__array__": "char"})
        documents = ListOffsetArray(
            Index64(offsets), characters, parameters={"__array__": "string"}
        )
        try:
            layout = self._gigatoken.encode_batch(ak.Array(documents), parallel=False).layout
        except BaseException as error:
            if not is_panic(error):
                raise
            raise EngineMismatchError(
                f"{self.name} failed where the reference may not: {error}."
            ) from None
        return Encoded(np.asarray(layout.content.data), np.asarray(layout.offsets.data))


def choose_engine(
    tokenizer: Tokenizer,
    *,
    engine: Literal["auto", "reference"],
    unsafe: UnsafeCodePoints | None,
) -> Engine:
    """The fast engine where it is proven to give the reference's ids, otherwise the reference."""
    source: FastSource | str = "asked for"
    if engine == "auto":
        source = "code points to avoid are not known" if unsafe is None else fast_source(tokenizer)
    if isinstance(source, str) or unsafe is None:
        return ReferenceEngine(tokenizer, str(source))
    if len(unsafe) > MAX_UNSAFE or any(start < 0x80 for start, _ in unsafe.ranges):
        return ReferenceEngine(tokenizer, f"the engines differ on {len(unsafe)} code points")
    try:
        fast = FastEngine(tokenizer, source, unsafe, "exact for this tokenizer")
        _check_vocabulary(tokenizer, fast)
    except EngineMismatchError as error:
        return ReferenceEngine(tokenizer, f"gigatoken differs: {error}")
    except BaseException as error:
        # A Rust panic is no Exception. gigatoken panics on ranks that cannot be merged up to.
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        return ReferenceEngine(tokenizer, f"gigatoken refuses it: {error}")
    return fast


def _check_vocabulary(tokenizer: Tokenizer, fast: FastEngine) -> None:
    """Encode what the tokens themselves stand for: catches a vocabulary that was read wrongly."""
    num_ids = len(tokenizer.ranks) or tokenizer.vocab_size
    ids = range(0, num_ids, num_ids // NUM_CHECKED_TOKENS + 1)
    words = [tokenizer.decode_bytes([id_]).decode(errors="ignore") for id_ in ids]
    texts = pa.array([*words, "".join(words)], pa.large_string())
    audit_sample(tokenizer, texts, fast.encode(texts), range(len(texts)))


def check_texts(texts: pa.LargeStringArray) -> None:
    """Refuse what is not UTF-8; Arrow does not look at it when it reads a file."""
    if texts.null_count:
        raise ValueError(f"{texts.null_count} of {len(texts)} texts are null")
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SourceError(f"The text column does not hold UTF-8 text: {error}.") from None


def own_bytes() -> int:
    """Memory that this process holds for itself at the moment, mapped files left out, in bytes."""
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return (resident - shared) * mmap.PAGESIZE


def splice(encoded: Encoded, rows: npt.NDArray[np.int64], replacement: Encoded) -> Encoded:
    """`encoded` with the documents in `rows` (ascending) replaced by those of `replacement`."""
    lengths = np.diff(encoded.offsets)
    lengths[rows] = np.diff(replacement.offsets)
    offsets = np.zeros_like(encoded.offsets)
    np.cumsum(lengths, out=offsets[1:])
    ids = np.empty(offsets[-1], np.uint32)
    start = 0
    for index, row in enumerate([*rows.tolist(), len(lengths)]):
        ids[offsets[start] : offsets[row]] = encoded.ids[
            encoded.offsets[start] : encoded.offsets[row]
        ]
        if row < len(lengths):
            ids[offsets[row] : offsets[row + 1]] = replacement.ids[
                replacement.offsets[index] : replacement.offsets[index + 1]
            ]
        start = row + 1
    return Encoded(ids, offsets)


def audit_sample(
    tokenizer: Tokenizer, texts: pa.LargeStringArray, encoded: Encoded, rows: Sequence[int]
) -> None:
    """Compare the ids of the chosen documents with the reference."""
    for row in rows:
        ids = encoded.ids[encoded.offsets[row] : encoded.offsets[row + 1]]
        expected = np.array(tokenizer.encode(texts[row].as_py()), np.uint32)
        if np.array_equal(ids, expected):
            continue
        common = min(len(ids), len(expected))
        different = np.flatnonzero(ids[:common] != expected[:common])
        position = int(different[0]) if len(different) else common
        raise EngineMismatchError(
            f"Document {row}: the engine and the reference differ from id {position} on: "
            f"{ids[position : position + 5].tolist()} against "
            f"{expected[position : position + 5].tolist()} (of {len(ids)} and {len(expected)} ids)."
        )


def _encode_rows(tokenizer: Tokenizer, texts: pa.LargeStringArray, rows: Sequence[int]) -> Encoded:
    parts = [np.array(tokenizer.encode(texts[row].as_py()), np.uint32) for row in rows]
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return Encoded(np.concatenate(parts) if parts else np.empty(0, np.uint32), offsets)
