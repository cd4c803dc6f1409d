"""The interface of tokenizers, whatever kind of file holds them."""

import gc
import hashlib
import json
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from streaming_ext.base.errors import MissingTokenError, TokenizerError
from streaming_ext.base.git_lfs import not_a_pointer

SPEC_FILE: Final = "tokenizer_spec.json"
SPEC_VERSION: Final = 1
ENDOFTEXT: Final = "<|endoftext|>"
# A rank file of 200,000 tokens has about 3.5 MB, the largest tokenizer.json about 40 MB.
MAX_FILE_BYTES: Final = 256 << 20
# Tried in this order if neither the user nor the tokenizer names its end-of-text token.
_EOT_NAMES: Final = (
    ENDOFTEXT,
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|im_end|>",
    "<EOS>",
    "[EOS]",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001 - DeepSeek writes it with these characters
    "[SEP]",
)


@dataclass(frozen=True, kw_only=True)
class Tokenizer(ABC):
    """A tokenizer that treats special tokens in a text as text and adds none of its own.

    Attributes:
        kind: the kind that the manifest names.
        package: the library that gives the reference ids.
        file_name: the name of the file that holds the vocabulary in a saved tokenizer.
        eot_id, eot_token: the token that ends each document.
        fingerprint: a hash of what decides the ids and of the ids around a document. It leaves out
            the name: a vocabulary under two names is one tokenizer.
        pattern: the regular expression that splits text, if the kind keeps it apart.
        bos_id, bos_token: the token that begins each document, if there is one.
        data: the content of the file `file_name`.
        usual_bos: the token that the tokenizer's own configuration puts before a text.
        special_tokens: the ids of all special tokens, if the kind keeps them apart.
    """

    kind: ClassVar[str]
    package: ClassVar[str]
    file_name: ClassVar[str]

    name: str
    vocab_size: int
    eot_id: int
    eot_token: str
    fingerprint: str
    pattern: str | None = None
    bos_id: int | None = None
    bos_token: str | None = None
    data: bytes = field(repr=False, compare=False)
    usual_bos: str | None = field(default=None, compare=False)
    special_tokens: dict[str, int] | None = field(default=None, repr=False, compare=False)

    @property
    def marks(self) -> list[tuple[str, str, int]]:
        """Tokens around each document: what each marks, its text, its id."""
        marks = [("end-of-text", self.eot_token, self.eot_id)]
        if self.bos_token is not None and self.bos_id is not None:
            marks.append(("beginning-of-text", self.bos_token, self.bos_id))
        return marks

    @property
    def note(self) -> str:
        """Line that users of this tokenizer should know; empty if there is none."""
        if self.bos_id is not None or self.usual_bos in {None, self.eot_token}:
            return ""
        return (
            f"{self.name} begins a text with {self.usual_bos}: pass --bos-token "
            f"{shlex.quote(str(self.usual_bos))} if the model expects it."
        )

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the reference ids of `text`, without the ids around a document."""

    @abstractmethod
    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """Return the bytes of the text of `ids`; an end-of-text id gives its token."""

    def decode(self, ids: Iterable[int]) -> str:
        """Decode `ids`, a list, an array or a tensor; bytes that are not UTF-8 are replaced."""
        return self.decode_bytes([*map(int, ids)]).decode(errors="replace")

    def __reduce__(self) -> Any:
        return self.saved, (self.data, self.name, self._spec())

    @classmethod
    @abstractmethod
    def saved(cls, data: bytes, where: str, spec: Mapping[str, Any]) -> "Tokenizer":
        """Open the saved file of a tokenizer with its description."""

    @classmethod
    def trusted(cls, data: bytes, spec: Mapping[str, Any]) -> Self:
        """Open the tokenizer that this run saved, without a check; it is parsed when needed."""
        return cls(data=data, **{name: spec[name] for name in spec.keys() - {"kind", "version"}})

    def save(self, folder: Path) -> None:
        """Write the vocabulary and a description; the same tokenizer gives the same bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self.files().items():
            (folder / name).write_bytes(data)

    def files(self) -> dict[str, bytes]:
        """Return the files that `save` writes, by name."""
        return {self.file_name: self.data, SPEC_FILE: canonical_json(self._spec()) + b"\n"}

    def _spec(self) -> dict[str, Any]:
        spec = {"version": SPEC_VERSION, **self.description()}
        if self.special_tokens is not None:
            spec["special_tokens"] = self.special_tokens
        return spec

    def description(self) -> dict[str, Any]:
        """Return the entry of the tokenizer in a manifest."""
        names = "kind", "name", "vocab_size", "eot_id", "eot_token", "fingerprint", "pattern"
        values = {name: getattr(self, name) for name in (*names, "bos_id", "bos_token")}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """The candidates for the tokens around a document, and the facts to choose them by.

    Attributes:
        where: the name of the tokenizer in messages.
        special: the ids of tokens that no text gives.
        is_ordinary: a function that returns whether a token is in the vocabulary, but not special.
        how: the way to make such a token special.
    """

    where: str
    special: Mapping[str, int]
    is_ordinary: Callable[[str], bool] = lambda token: False
    how: str = ""

    def choose(self, eot_token: str | None, bos_token: str | None) -> dict[str, Any]:
        """Choose the fields of a tokenizer: the tokens that are named, else a usual end of text.

        Raises:
            MissingTokenError: no candidate is among the special tokens.
            TokenizerError: both tokens are the same.
        """
        ends = _EOT_NAMES if eot_token is None else (eot_token,)
        eot = self._find(ends, "end-of-text", "--eot-token", [*self.special])
        marks = {"eot_token": eot, "eot_id": self.special[eot]}
        if bos_token is None:
            return marks
        if bos_token == eot:
            raise TokenizerError(
                f"{bos_token!r} ends each document of {self.where}, so it cannot begin each too: "
                "two in a row mean padding. The end of one document is the beginning of the next: "
                "leave --bos-token out, or pass another one."
            )
        others = [token for token in self.special if token != eot]
        bos = self._find((bos_token,), "beginning-of-text", "--bos-token", others)
        return marks | {"bos_token": bos, "bos_id": self.special[bos]}

    def _find(self, tokens: Sequence[str], what: str, option: str, special: Sequence[str]) -> str:
        """Return the first of these tokens that is special."""
        for token in tokens:
            if token in special:
                return token
        lacks = f"special token {tokens[0]!r}" if len(tokens) == 1 else f"known {what} token"
        its = "Its" if len(special) == len(self.special) else "Its other"
        shown = ", ".join(map(repr, special[:40])) or "none"
        more = f" and {len(special) - 40} more" if len(special) > 40 else ""
        advice = f" Pass one of them as {option}." if special else ""
        if ordinary := [token for token in tokens if self.is_ordinary(token)]:
            advice = f" {ordinary[0]!r} is an ordinary token of it: {self.how}.{advice}"
        elif not self.special and self.how:
            advice = f" Add one and pass it as {option}: {self.how}."
        error = MissingTokenError(
            f"{self.where} has no {lacks}. {its} special tokens: {shown}{more}.{advice}"
        )
        error.token = tokens[0]
        raise error


def read_file(path: Path) -> bytes:
    """Read the file of a tokenizer.

    Raises:
        TokenizerError: the file cannot be read, or no tokenizer has its size.
        UsageError: the file is a pointer of Git LFS.
    """
    try:
        size = path.stat().st_size
        if not 0 < size <= MAX_FILE_BYTES:
            raise TokenizerError(
                f"{path} has {size} bytes; a tokenizer file has between 1 and {MAX_FILE_BYTES}."
            )
        return not_a_pointer(path.read_bytes(), str(path))
    except OSError as error:
        raise TokenizerError(
            f"Cannot read the tokenizer file {path}: {os.strerror(error.errno or 0)}."
        ) from None


def fingerprint_of(kind: str, *chunks: bytes, bos_token: str | None) -> str:
    """Return the SHA-256 of everything that decides the ids, in hex."""
    digest = hashlib.sha256(f"shardmill tokenizer 1: {kind}\n".encode())
    for chunk in chunks:
        digest.update(chunk)
    if bos_token is not None:
        digest.update(f"\nbegins with {bos_token}".encode())
    return digest.hexdigest()


def canonical_json(value: Any) -> bytes:
    """Encode a value as JSON, always with the same bytes."""
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()


@contextmanager
def without_collecting() -> Iterator[None]:
    """Turn off garbage collection: a search through half a million merges takes long."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise TokenizerError for a panic of a Rust extension, which is not an Exception."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # the type cannot be imported
            raise
        raise TokenizerError(f"PanicException: {error}") from None
