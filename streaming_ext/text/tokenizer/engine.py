"""Engines that turn documents into ids, the reference and faster ones, and checks of the ids."""

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.errors import EngineMismatchError, TokenizerError
from streaming_ext.text.documents.text_array import text_buffers
from streaming_ext.text.token_words import TokenWords
from streaming_ext.text.tokenizer.fast_tokenizer import (
    FastModel,
    fast_model,
    save_fast_model,
    saved_fast_model,
)
from streaming_ext.text.tokenizer.json_file import JsonTokenizer
from streaming_ext.text.tokenizer.rank_file import RankTokenizer
from streaming_ext.text.tokenizer.tokenizer import Tokenizer, panics_as_errors, without_collecting
from streaming_ext.text.tokenizer.unsafe_texts import UnsafeTexts, unsafe_ranges
from streaming_ext.text.tokenizer.word_ids import WordIds, splits_at_spaces

EngineName = Literal["auto", "reference"]

# gigatoken 0.10 never forgets a word that it has seen, at 100 to 150 bytes each: about a million
# words in 1 GB of English, a hundred million in 1 GB of junk. Once the process has grown by this
# much, a new tokenizer replaces the old one; it is slower until its caches are full.
MAX_GROWTH_BYTES = 512 << 20
NUM_CHECKED_TOKENS = 5_000
_JOINED: Final = 100  # words in one text
_LONGEST_RUN: Final = 100  # of spaces; no token has more
_BY_REQUEST = "it was asked for"
_AUDIT_DOCUMENT_BYTES = 2**17  # longer documents are left out of the audit
# White space at the end of a text, from its last line end on.
_LAST_SPACES: Final = (
    r"[\r\n][\t\v\f \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}"
    r"\x{3000}]+\z"
)


@dataclass(frozen=True, slots=True)
class Encoded:
    """The ids of a batch, without end-of-text: document i has `ids[offsets[i]:offsets[i + 1]]`."""

    ids: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.int64]


class Engine(Protocol):
    """An engine that turns documents into ids.

    Attributes:
        name: the name and version of its software.
        reason: the reason why it was chosen.
        rate: the MB of text per second to expect per core, if it is slow.
        words: the words of its tokens; None if they do not determine the words of a text.
    """

    name: str
    reason: str

    @property
    def rate(self) -> int | None: ...

    @property
    def words(self) -> TokenWords | None: ...

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the reference ids of each document, in order."""
        ...


# MB of text per second that one core encodes if the library does all of the work.
_REFERENCE_RATES: Final = {"tiktoken": 10, "tokenizers": 2, "sentencepiece": 4}


class ReferenceEngine:
    """The reference itself, which encodes one document after another."""

    words = None

    def __init__(self, tokenizer: Tokenizer, reason: str = _BY_REQUEST) -> None:
        self.name = f"{tokenizer.package} {version(tokenizer.package)}"
        self.reason = reason
        self.rate = _REFERENCE_RATES[tokenizer.package]
        self._tokenizer = tokenizer

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        return encode_rows(self._tokenizer.encode, texts, range(len(texts)))


class WordEngine:
    """The reference, which encodes each word once; see `word_ids`."""

    words = None
    rate = 4  # higher the fewer words are new

    def __init__(self, tokenizer: JsonTokenizer, reason: str) -> None:
        self.name = f"{tokenizer.package} {version(tokenizer.package)}, word by word"
        self.reason = reason
        self._ids = WordIds(tokenizer)

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        rows = self._ids.encode(texts.to_pylist())
        sizes = [len(row) // np.dtype(np.uint32).itemsize for row in rows]
        return Encoded(np.frombuffer(b"".join(rows), np.uint32), _offsets(sizes))


def in_words(engine: Engine) -> str:
    """Name the software that tokenizes; if it is slow, add the reason and the expected rate."""
    if engine.rate is None:
        return engine.name
    return f"{engine.name}, because {engine.reason}: expect about {engine.rate} MB/s per worker"


class FastEngine:
    """gigatoken; documents that it may split differently go to the reference."""

    rate = None

    def __init__(self, tokenizer: Tokenizer, model: FastModel) -> None:
        versions = {package: version(package) for package in ("gigatoken", tokenizer.package)}
        self.name = f"gigatoken {versions['gigatoken']}"
        self.reason = "exact for this tokenizer"
        self._tokenizer = tokenizer
        self._model = model
        self._renew()
        self._unsafe = (
            UnsafeTexts(
                self._gigatoken.vocab,
                unsafe_ranges(versions) if model.by_class else (),
                model.reserved,
            )
            if model.by_class or model.reserved
            else None
        )

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        if len(texts) == 0:
            return Encoded(np.empty(0, np.uint32), np.zeros(1, np.int64))
        data, offsets = text_buffers(texts)
        if own_bytes() - self._own_bytes > MAX_GROWTH_BYTES:
            self._renew()
        encoded = self._encode_all(data, offsets)
        rows = self._uncertain(texts, encoded)
        if len(rows):
            replacement = encode_rows(self._tokenizer.encode, texts, rows.tolist())
            encoded = splice(encoded, rows, replacement)
        return encoded

    def check_vocabulary(self) -> None:
        """Encode the texts of the tokens themselves; this reveals a vocabulary that was misread.

        Raises:
            EngineMismatchError: the ids of a text differ.
        """
        words = token_texts(self._tokenizer, most=NUM_CHECKED_TOKENS)
        joined = ["".join(words[at : at + _JOINED]) for at in range(0, len(words), _JOINED)]
        runs = [char * size for char in " \n" for size in range(1, _LONGEST_RUN)]
        texts = pa.array([*words, *joined, *runs], pa.large_string())
        encoded = self._encode_all(*text_buffers(texts))
        certain = np.setdiff1d(np.arange(len(texts)), self._uncertain(texts, encoded))
        audit_sample(self._tokenizer, texts, encoded, certain.tolist())

    def _uncertain(self, texts: pa.LargeStringArray, encoded: Encoded) -> npt.NDArray[np.int64]:
        """Return the documents that the reference may split in another way, ascending."""
        rows = np.empty(0, np.int64)
        if self._unsafe is not None:
            rows = self._unsafe.rows(encoded.ids, encoded.offsets)
        if self._model.at_ends:
            rows = np.union1d(rows, np.flatnonzero(pc.match_substring_regex(texts, _LAST_SPACES)))
        return rows

    @cached_property
    def words(self) -> TokenWords:
        """Words of the tokens, whose bytes are the bytes of the text."""
        return TokenWords(self._gigatoken.vocab, composes=self._model.composes)

    def _renew(self) -> None:
        self._gigatoken: Any = None  # free the old one first
        self._gigatoken = self._model.load()
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
            with panics_as_errors():
                layout = self._gigatoken.encode_batch(ak.Array(documents), parallel=False).layout
        except TokenizerError as error:
            raise EngineMismatchError(
                f"{self.name} failed where the reference may not: {error}."
            ) from None
        return Encoded(np.asarray(layout.content.data), np.asarray(layout.offsets.data))


@without_collecting()
def choose_engine(tokenizer: Tokenizer, *, engine: EngineName, saved: Path | None = None) -> Engine:
    """Choose the fast engine if it is proven to give the reference's ids, otherwise the reference.

    Args:
        tokenizer: the reference.
        engine: "reference" to choose the reference in any case.
        saved: a folder of this run, in which the first process leaves its fast model for others.
    """
    if engine == "reference":
        return ReferenceEngine(tokenizer)
    model = saved_fast_model(saved) if saved is not None else None
    if model is None:
        model = fast_model(tokenizer)
        if saved is not None:
            save_fast_model(model, saved)
    if isinstance(model, str):
        return _without_gigatoken(tokenizer, model)
    try:
        with panics_as_errors():
            fast = FastEngine(tokenizer, model)
        fast.check_vocabulary()
    except Exception as error:  # noqa: BLE001 - gigatoken raises what it likes on a vocabulary
        return _without_gigatoken(tokenizer, f"gigatoken refuses it: {error}")
    return fast


def _without_gigatoken(tokenizer: Tokenizer, reason: str) -> Engine:
    if isinstance(tokenizer, JsonTokenizer) and splits_at_spaces(tokenizer.config):
        return WordEngine(tokenizer, reason)
    return ReferenceEngine(tokenizer, reason)


def token_texts(tokenizer: Tokenizer, *, most: int | None = None) -> list[str]:
    """Return the texts of all tokens, or of about `most` of them."""
    ids: Sequence[int] = range(tokenizer.vocab_size)
    if isinstance(tokenizer, RankTokenizer):  # some numbers are not ids
        ids = [*tokenizer.ranks.values()]
    ids = ids[:: len(ids) // most + 1 if most else 1]
    return [tokenizer.decode_bytes([id_]).decode(errors="ignore") for id_ in ids]


def own_bytes() -> int:
    """Return the memory of this process without mapped files, in bytes."""
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return (resident - shared) * mmap.PAGESIZE


def splice(encoded: Encoded, rows: npt.NDArray[np.int64], replacement: Encoded) -> Encoded:
    """Replace the documents in `rows` (ascending) with the documents of `replacement`."""
    lengths = np.diff(encoded.offsets)
    is_replaced = np.zeros(len(lengths), bool)
    is_replaced[rows] = True
    kept = encoded.ids[np.repeat(~is_replaced, lengths)]
    lengths[rows] = np.diff(replacement.offsets)
    of_replaced = np.repeat(is_replaced, lengths)
    ids = np.empty(len(of_replaced), np.uint32)
    ids[of_replaced], ids[~of_replaced] = replacement.ids, kept
    return Encoded(ids, _offsets(lengths))


def audit_sample(
    tokenizer: Tokenizer, texts: pa.LargeStringArray, encoded: Encoded, rows: Sequence[int]
) -> None:
    """Compare the ids of the chosen documents with the reference's."""
    for row in rows:
        ids = encoded.ids[encoded.offsets[row] : encoded.offsets[row + 1]].tolist()
        expected = tokenizer.encode(texts[row].as_py())
        if ids != expected:
            raise EngineMismatchError(
                f"Document {row}: the engine and the reference differ: {len(ids)} and "
                f"{len(expected)} ids, which begin with {ids[:5]} and {expected[:5]}."
            )


def encode_rows(
    encode: Callable[[str], list[int]], texts: pa.LargeStringArray, rows: Sequence[int]
) -> Encoded:
    """Encode some documents, one after another."""
    chunks = [np.array(encode(texts[row].as_py()), np.uint32) for row in rows]
    ids = np.concatenate(chunks) if chunks else np.empty(0, np.uint32)
    return Encoded(ids, _offsets([len(chunk) for chunk in chunks]))


def _offsets(lengths: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.append(np.int64(0), np.cumsum(lengths, dtype=np.int64))


def stream_of(
    encoded: Encoded,
    kept: npt.NDArray[np.bool_],
    dtype: str,
    tokenizer: Tokenizer,
) -> npt.NDArray[Any]:
    """Return the ids of the documents that are kept, with the ids that begin and end each of them.

    Documents of 2 and 3 ids, each with a token that begins it:
    begins: 0, 4; ends: 3, 8: the stream is b 1 1 e b 2 2 2 e.
    """
    ids, lengths = encoded.ids, np.diff(encoded.offsets)
    if lengths[~kept].any():
        ids = ids[np.repeat(kept, lengths)]
    begins = tokenizer.bos_id is not None
    # ends: (documents,), the position of each end-of-text id
    ends = np.cumsum(lengths[kept] + begins + 1) - 1
    # This is np.insert without a copy of all ids in the other type; a document may be large.
    stream = np.empty(len(ids) + len(ends) * (begins + 1), dtype)
    of_text = np.ones(len(stream), bool)
    for id_, positions in (
        (tokenizer.eot_id, ends),
        (tokenizer.bos_id, np.append(0, ends[:-1] + 1)[: len(ends) * begins]),
    ):
        if id_ is not None:
            of_text[positions] = False
            stream[positions] = id_
    stream[of_text] = ids
    return stream


def check_ids(
    encoded: Encoded,
    tokenizer: Tokenizer,
    *,
    locate: Callable[[int], tuple[str, str]],
    where: str,
) -> None:
    """Refuse ids outside the vocabulary, and texts that give the ids around documents.

    Args:
        encoded: the ids of some documents.
        tokenizer: the tokenizer that gave them.
        locate: a function that returns the file and row of a document, for display.
        where: the name of the part in messages.

    Raises:
        TokenizerError: an id is refused; the message names the part or the document.
    """
    largest = int(encoded.ids.max(initial=0))
    if largest >= tokenizer.vocab_size:
        raise TokenizerError(
            f"{where}: id {largest} is outside the vocabulary of "
            f"{tokenizer.vocab_size} ids of {tokenizer.name}."
        )
    for name, token, id_ in tokenizer.marks:
        found = np.flatnonzero(encoded.ids == id_)
        if len(found):
            document = int(np.searchsorted(encoded.offsets, found[0], side="right")) - 1
            url, row = locate(document)
            raise TokenizerError(
                f"{url}: the text of {row} gives the {name} id {id_} ({token}), so documents could "
                "not be told apart. Pass another --eot-token or --bos-token."
            )


def rows_to_audit(
    hashes: npt.NDArray[np.uint64], texts: pa.LargeStringArray, *, num_bytes: int
) -> list[int]:
    """Choose documents of `num_bytes` in all, by the smallest hashes: the same in every run."""
    sizes = np.diff(text_buffers(texts)[1])
    candidates = np.flatnonzero(sizes <= _AUDIT_DOCUMENT_BYTES)
    ordered = candidates[np.argsort(hashes[candidates], kind="stable")]
    taken = int(np.searchsorted(np.cumsum(sizes[ordered]), num_bytes)) + 1
    return [int(row) for row in ordered[:taken]]
