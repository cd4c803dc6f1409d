"""The tokenizers that `tokenize` takes: a name, one of Shardmill's own, one of transformers.

One of transformers keeps its meaning: special tokens in a text are special, and its post-processor
adds tokens around a text. The fast engine does the work if it gives the same ids; a text that holds
a special token is left to the tokenizer itself.
"""

import hashlib
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.errors import EngineMismatchError, ShardmillError, UsageError
from streaming_ext.text.tokenizer.engine import Encoded, audit_sample, choose_engine, splice
from streaming_ext.text.tokenizer.fast_tokenizer import fast_loader
from streaming_ext.text.tokenizer.json_file import JsonTokenizer
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.transforms.block import Block, Column, tokens_of
from streaming_ext.transforms.steps import around

AnyTokenizer: TypeAlias = Any  # a name or path, a `Tokenizer`, or a tokenizer of transformers
_PROBES: Final = ("Hello world!", " 1,234 näive  words\n\n\tand\u00a0more: 你好 🙂", "")
# What the call of a tokenizer of transformers returns for each token of a text without padding.
_VALUES: Final = {"attention_mask": 1, "token_type_ids": 0}
_AUDITED: Final = 2**16  # bytes of a text that is compared with the reference, at most


_ENGINES = threading.local()  # by process and tokenizer


def encode(tokenizer: Tokenizer, texts: pa.LargeStringArray) -> Encoded:
    """The ids of some texts.

    Raises:
        EngineMismatchError: the first text has other ids by the reference.
    """
    engines, key = vars(_ENGINES), f"{os.getpid()} {tokenizer.fingerprint}"
    if key not in engines:
        engines[key] = choose_engine(tokenizer, engine="auto")
    found: Encoded = engines[key].encode(texts)
    if len(texts) and texts[0].as_buffer().size <= _AUDITED:
        audit_sample(tokenizer, texts, found, [0])
    return found


@cache
def _named(name: str, pattern: str | None) -> "OwnTokenizer":
    return OwnTokenizer(load_tokenizer(name, pattern=pattern), (name, pattern))


def tokenizer_of(
    tokenizer: AnyTokenizer,
    *,
    pattern: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> "OwnTokenizer | HubTokenizer":
    """What a user passes, as chains use it.

    Raises:
        UsageError: it is no tokenizer, or takes no such settings.
    """
    if isinstance(tokenizer, str | Path | Tokenizer):
        if settings:
            raise UsageError("`tokenizer_kwargs` go with a tokenizer of transformers only.")
        if isinstance(tokenizer, Tokenizer):
            return OwnTokenizer(tokenizer)
        return _named(str(tokenizer), pattern)
    if callable(tokenizer) and hasattr(tokenizer, "encode"):
        fast = None if settings else FastHub.of(tokenizer)
        return fast or HubTokenizer(tokenizer, settings or {})
    raise UsageError(
        f"`tokenizer` must be a name, a file, or a tokenizer of transformers, got "
        f"{type(tokenizer).__name__}."
    )


class OwnTokenizer:
    """One of Shardmill's own: special tokens in a text are text."""

    def __init__(self, tokenizer: Tokenizer, name: tuple[str, str | None] | None = None) -> None:
        """Wrap it; a name and a pattern load it in another process."""
        self._tokenizer, self._name = tokenizer, name
        self.described = tokenizer.fingerprint[:12]  # for states

    def __reduce__(self) -> Any:
        """By its name, if it has one: not all can be pickled."""
        return (_named, self._name) if self._name else (OwnTokenizer, (self._tokenizer,))

    def columns(self, texts: pa.LargeStringArray) -> Mapping[str, Column | list[Any]]:
        """The columns that it adds to samples."""
        encoded = encode(self._tokenizer, texts)
        return {"input_ids": _column(encoded.ids, np.diff(encoded.offsets))}

    def missing_ends(self) -> tuple[int | None, int | None]:
        """The first and the last token of a document that it does not add itself."""
        return None, self._tokenizer.eot_id


@dataclass(frozen=True)
class HubTokenizer:
    """One of transformers: the ids of its own call, whatever engine finds them.

    Attributes:
        tokenizer: of transformers.
        settings: of each call.
    """

    tokenizer: Any
    settings: Mapping[str, Any]

    @property
    def described(self) -> str:
        """For states."""
        return hub_described(self.tokenizer, self.settings)

    def columns(self, texts: pa.LargeStringArray) -> Mapping[str, Column | list[Any]]:
        """See `OwnTokenizer`."""
        # transformers refuses an empty batch
        return dict(self.tokenizer(texts.to_pylist(), **self.settings)) if len(texts) else {}

    def missing_ends(self) -> tuple[int | None, int | None]:
        """See `OwnTokenizer`; one token that is both is added once, at the end."""
        ids = list(self.tokenizer(_PROBES[0])["input_ids"])
        bos, eos = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        begins, ends = ids[:1] == [bos], ids[-1:] == [eos]
        if bos == eos:
            return None, None if begins or ends else eos
        return None if begins else bos, None if ends else eos


def hub_described(tokenizer: Any, settings: Mapping[str, Any]) -> str:
    """By what a state recognizes a tokenizer of transformers: the ids of some texts."""
    ids = [tokenizer(probe)["input_ids"] for probe in _PROBES]
    known = repr((len(tokenizer), ids, sorted(settings.items(), key=str)))
    return hashlib.sha256(known.encode()).hexdigest()[:12]


def _column(ids: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> Column:
    return tokens_of(ids, lengths, listed=True)


@dataclass(frozen=True)
class FastHub(HubTokenizer):
    """The fast engine in place of a tokenizer of transformers.

    Attributes:
        own: the same one, for the engine, which gives the ids of texts without special tokens.
        names: of the columns that its call returns.
        special: texts that are special tokens.
        before, after: ids that are added around those of every text.
    """

    own: Tokenizer
    names: tuple[str, ...]
    special: tuple[str, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Any) -> "FastHub | None":
        """The engine, if it gives the same ids; None if the tokenizer must do the work."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None or backend.truncation is not None or backend.padding is not None:
            return None
        special = {token.content for token in backend.get_added_tokens_decoder().values()}
        end = tokenizer.eos_token or min(special, default=None)
        try:
            own = JsonTokenizer.of(backend.to_str().encode(), "tokenizer", eot_token=end)
        except ShardmillError:
            return None
        expected = [tokenizer(probe) for probe in _PROBES]
        plain = tokenizer(_PROBES[0], add_special_tokens=False)["input_ids"]
        ids, names = expected[0]["input_ids"], tuple(expected[0])
        at = next((n for n in range(len(ids)) if ids[n : n + len(plain)] == plain), None)
        known = names[0] == "input_ids" and _VALUES.keys() >= {*names[1:]}
        if at is None or not known or isinstance(fast_loader(own), str):
            return None
        before, after = tuple(ids[:at]), tuple(ids[at + len(plain) :])
        made = cls(tokenizer, {}, own, names, tuple(special), before, after)
        try:
            found = made.columns(pa.array(_PROBES, pa.large_string()))
        except EngineMismatchError:
            return None
        same = all(found[name].to_pylist() == [one[name] for one in expected] for name in names)
        return made if same else None

    def columns(self, texts: pa.LargeStringArray) -> dict[str, Column]:
        """What its call returns of some texts."""
        found = encode(self.own, texts)
        ids, lengths = around(found.ids, np.diff(found.offsets), self.before, self.after)
        special = np.zeros(len(texts), bool)
        for token in self.special:
            special |= pc.match_substring(texts, token).to_numpy(zero_copy_only=False)
        if special.any():
            rows = np.flatnonzero(special)
            own = [self.tokenizer(texts[row].as_py())["input_ids"] for row in rows.tolist()]
            offsets = np.append(0, np.cumsum([*map(len, own)]))
            replacement = Encoded(np.concatenate(own).astype(np.uint32), offsets)
            encoded = splice(Encoded(ids, np.append(0, np.cumsum(lengths))), rows, replacement)
            ids, lengths = encoded.ids, np.diff(encoded.offsets)
        columns = {"input_ids": _column(ids, lengths)}
        for name in self.names[1:]:
            columns[name] = _column(np.full(len(ids), _VALUES[name], np.int8), lengths)
        return columns


def tokenized(block: Block, *, tokenizer: OwnTokenizer | HubTokenizer, column: str) -> Block:
    """The samples with the columns of a tokenizer."""
    added = tokenizer.columns(block.texts(column))
    columns = {name: each for name, each in added.items() if isinstance(each, pa.Array)}
    if len(columns) == len(added):
        return block.with_columns(columns)
    rows = zip(*added.values(), strict=True)
    return Block(
        [
            {**sample, **dict(zip(added, row, strict=True))}
            for sample, row in zip(block.samples, rows, strict=True)
        ]
    )
