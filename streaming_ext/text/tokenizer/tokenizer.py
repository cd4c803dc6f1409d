"""The interface of tokenizers, whatever kind of file holds them."""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from streaming_ext.base.errors import TokenizerError

SPEC_FILE: Final = "tokenizer_spec.json"
SPEC_VERSION: Final = 1
ENDOFTEXT: Final = "<|endoftext|>"
# A rank file is about 3.5 MB at 200,000 tokens and the largest tokenizer.json are about 40 MB.
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
        kind: as the manifest names it.
        package: the library that gives the reference ids.
        file_name: of the file that holds the vocabulary in a saved tokenizer.
        fingerprint: of what decides the ids and of the end-of-text id. The name is left out: two
            names of one vocabulary are one tokenizer.
        pattern: the regular expression that splits text, if the kind keeps it apart.
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
    special_tokens: dict[str, int] | None = field(default=None, repr=False, compare=False)

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The reference ids of `text`, without an end-of-text id."""

    @abstractmethod
    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The text of `ids`; an end-of-text id gives its token."""

    @abstractmethod
    def file_bytes(self) -> bytes:
        """The content of the file `file_name`."""

    def __reduce__(self) -> Any:
        return self.saved, (self.file_bytes(), self.name, self._spec())

    @classmethod
    @abstractmethod
    def saved(cls, data: bytes, where: str, spec: Mapping[str, Any]) -> "Tokenizer":
        """The tokenizer of a saved file and its description."""

    def save(self, folder: Path) -> None:
        """Write the vocabulary and a description; the same tokenizer gives the same bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.file_name).write_bytes(self.file_bytes())
        (folder / SPEC_FILE).write_bytes(canonical_json(self._spec()) + b"\n")

    def _spec(self) -> dict[str, Any]:
        spec = {"version": SPEC_VERSION, **self.description()}
        if self.special_tokens is not None:
            spec["special_tokens"] = self.special_tokens
        return spec

    def description(self) -> dict[str, Any]:
        """The entry of the tokenizer in a manifest."""
        names = ("kind", "name", "vocab_size", "eot_id", "eot_token", "fingerprint", "pattern")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


def choose_eot(
    where: str, special_tokens: Collection[str], eot_token: str | None, named: str | None
) -> str:
    """The end-of-text token: the user's, the one that the tokenizer names, or a usual one.

    Raises:
        TokenizerError: none of these is among the special tokens.
    """
    for token in (eot_token,) if eot_token is not None else (named, *_EOT_NAMES):
        if token is not None and token in special_tokens:
            return token
    reason = (
        f"has no special token {eot_token!r}" if eot_token else "has no known end-of-text token"
    )
    shown = ", ".join(map(repr, list(special_tokens)[:40])) or "none"
    more = f" and {len(special_tokens) - 40} more" if len(special_tokens) > 40 else ""
    raise TokenizerError(
        f"{where} {reason}. Its special tokens: {shown}{more}. Pass one of them as `eot_token`."
    )


def read_file(path: Path) -> bytes:
    """The content of a tokenizer's file.

    Raises:
        TokenizerError: it cannot be read, or its size is that of no tokenizer.
    """
    try:
        size = path.stat().st_size
        if not 0 < size <= MAX_FILE_BYTES:
            raise TokenizerError(
                f"{path} has {size} bytes; a tokenizer file has between 1 and {MAX_FILE_BYTES}."
            )
        return path.read_bytes()
    except OSError as error:
        raise TokenizerError(
            f"Cannot read the tokenizer file {path}: {os.strerror(error.errno or 0)}."
        ) from None


def fingerprint_of(kind: str, *chunks: bytes) -> str:
    """SHA-256 of all that decides the ids, as hex."""
    digest = hashlib.sha256(f"shardmill tokenizer 1: {kind}\n".encode())
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def canonical_json(value: Any) -> bytes:
    """The JSON of a value, always the same bytes."""
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise TokenizerError for a panic of a Rust extension, which is no Exception."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # the type cannot be imported
            raise
        raise TokenizerError(f"PanicException: {error}") from None
