"""The tokenizers that `tokenize` takes: a name, one of Shardmill's own, one of transformers.

One of transformers keeps its meaning: special tokens that stand in a text are special, and what its
post-processor puts around a text is there. Where the fast engine gives the same ids, it does the
work; a text that holds a special token is left to the tokenizer itself.
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
from streaming_ext.text.documents.text_array import text_buffers
from streaming_ext.text.tokenizer.engine import Encoded, Engine, audit_sample, choose_engine, splice
from streaming_ext.text.tokenizer.fast_tokenizer import fast_loader
from streaming_ext.text.tokenizer.json_file import JsonTokenizer
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.transforms.block import Block, Column, State, shown, tokens_of
from streaming_ext.transforms.flow import Flow, Input, Opening
from streaming_ext.transforms.functions import Crew, parallel
from streaming_ext.transforms.steps import around

AnyTokenizer: TypeAlias = Any  # a name or path, a `Tokenizer`, or a tokenizer of transformers
_PROBES: Final = ("Hello world!", " 1,234 näive  words\n\n\tand\u00a0more: 你好 🙂", "")
_AUDITED: Final = 2**16  # bytes of a text that is compared with the reference, at most


@cache
def _named(name: str, pattern: str | None) -> "OwnTokenizer":
    return OwnTokenizer(load_tokenizer(name, pattern=pattern), (name, pattern))


def tokenizer_of(
    tokenizer: AnyTokenizer,
    *,
    pattern: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> "ChainTokenizer":
    """What a user handed over, as chains use it.

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
        return HubTokenizer(tokenizer, settings or {})
    raise UsageError(
        f"`tokenizer` must be a name, a file, or a tokenizer of transformers, got "
        f"{type(tokenizer).__name__}."
    )


class Engines(threading.local):
    """An engine for each thread; none is inherited by a fork, nor sent to another process."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Make none yet; each thread begins with this."""
        self.tokenizer, self._process = tokenizer, 0
        self._engine: Engine | None = None

    def __reduce__(self) -> Any:
        return Engines, (self.tokenizer,)

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """The ids of some texts.

        Raises:
            EngineMismatchError: one is not that of the reference.
        """
        found = self.own().encode(texts)
        if len(texts) and np.diff(text_buffers(texts)[1][:2])[0] <= _AUDITED:
            audit_sample(self.tokenizer, texts, found, [0])
        return found

    def own(self) -> Engine:
        """That of this thread, made when it is first asked for."""
        if self._engine is None or self._process != os.getpid():
            self._engine = choose_engine(self.tokenizer, engine="auto")
            self._process = os.getpid()
        return self._engine


class OwnTokenizer:
    """One of Shardmill's own: special tokens in a text are text."""

    def __init__(self, tokenizer: Tokenizer, name: tuple[str, str | None] | None = None) -> None:
        """Take it over; a name and a pattern load it in another process."""
        self._engines, self._name = Engines(tokenizer), name

    def __reduce__(self) -> Any:
        """By its name, where it has one: not all can be sent to another process."""
        return (_named, self._name) if self._name else (OwnTokenizer, (self._engines.tokenizer,))

    @property
    def described(self) -> str:
        """What a state knows it by."""
        return self._engines.tokenizer.fingerprint[:12]

    def columns(self, texts: pa.LargeStringArray, *, only_ids: bool) -> Mapping[str, Column]:
        """The columns that it adds to samples, or the ids alone."""
        return {"input_ids": _column(self._engines.encode(texts))}

    def prepare(self, *, only_ids: bool) -> None:
        """Make what this thread needs for `columns`, before there are texts."""
        self._engines.own()

    def missing_ends(self) -> tuple[int | None, int | None]:
        """The first and the last token of a document that it does not add itself."""
        return None, self._engines.tokenizer.eot_id


class HubTokenizer:
    """One of transformers: the ids of its own call, whatever engine finds them."""

    def __init__(self, tokenizer: Any, settings: Mapping[str, Any]) -> None:
        """Take it over, with the settings of each call."""
        self._tokenizer, self._settings = tokenizer, dict(settings)
        self._fast = None if settings else FastHub.of(tokenizer)

    @property
    def described(self) -> str:
        """See `OwnTokenizer`."""
        return hub_described(self._tokenizer, self._settings)

    def columns(self, texts: pa.LargeStringArray, *, only_ids: bool) -> Mapping[str, Column]:
        """See `OwnTokenizer`."""
        if only_ids and self._fast is not None:
            return {"input_ids": self._fast.ids(texts)}
        found = self._tokenizer(texts.to_pylist(), **self._settings)
        return {name: list(found[name]) for name in (["input_ids"] if only_ids else found)}

    def prepare(self, *, only_ids: bool) -> None:
        """See `OwnTokenizer`."""
        if only_ids and self._fast is not None:
            self._fast.engines.own()

    def missing_ends(self) -> tuple[int | None, int | None]:
        """See `OwnTokenizer`; one token that is both is put at the end, and only once."""
        ids = list(self._tokenizer(_PROBES[0])["input_ids"])
        bos, eos = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        begins, ends = ids[:1] == [bos], ids[-1:] == [eos]
        if bos == eos:
            return None, None if begins or ends else eos
        return None if begins else bos, None if ends else eos


ChainTokenizer: TypeAlias = OwnTokenizer | HubTokenizer


def hub_described(tokenizer: Any, settings: Mapping[str, Any]) -> str:
    """What a state knows a tokenizer of transformers by: what it makes of some texts."""
    ids = [tokenizer(probe)["input_ids"] for probe in _PROBES]
    told = repr((len(tokenizer), ids, sorted(settings.items(), key=str)))
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _column(encoded: Encoded) -> Column:
    return tokens_of(encoded.ids, np.diff(encoded.offsets), listed=True)


@dataclass(frozen=True, slots=True)
class FastHub:
    """The fast engine in the place of a tokenizer of transformers.

    Attributes:
        tokenizer: of transformers.
        engines: that give the ids of a text without special tokens.
        special: texts that are special tokens.
        before, behind: ids that are put around those of every text.
    """

    tokenizer: Any
    engines: Engines
    special: tuple[str, ...]
    before: tuple[int, ...]
    behind: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Any) -> "FastHub | None":
        """It, where it gives the same ids; None where the tokenizer must do the work."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None or backend.truncation is not None or backend.padding is not None:
            return None
        added = {token.content for token in backend.get_added_tokens_decoder().values()}
        end = tokenizer.eos_token or min(added, default=None)
        try:
            own = JsonTokenizer.of(backend.to_str().encode(), "tokenizer", eot_token=end)
        except ShardmillError:  # it needs no end of text here
            return None
        plain = tuple(tokenizer(_PROBES[0], add_special_tokens=False)["input_ids"])
        whole = tuple(tokenizer(_PROBES[0])["input_ids"])
        at = next((n for n in range(len(whole)) if whole[n : n + len(plain)] == plain), None)
        if at is None or isinstance(fast_loader(own), str):
            return None
        made = cls(tokenizer, Engines(own), tuple(added), whole[:at], whole[at + len(plain) :])
        try:
            found = shown(made.ids(pa.array(_PROBES, pa.large_string())))
        except EngineMismatchError:
            return None
        return made if found == [tokenizer(probe)["input_ids"] for probe in _PROBES] else None

    def ids(self, texts: pa.LargeStringArray) -> Column:
        """The ids of some texts."""
        found = self.engines.encode(texts)
        values, lengths = around(found.ids, np.diff(found.offsets), self.before, self.behind)
        special = np.zeros(len(texts), bool)
        for token in self.special:
            special |= pc.match_substring(texts, token).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(special)
        encoded = Encoded(values, np.append(0, np.cumsum(lengths)))
        if len(rows):
            own = [
                np.asarray(self.tokenizer(texts[row].as_py())["input_ids"], np.uint32)
                for row in rows.tolist()
            ]
            offsets = np.append(0, np.cumsum([len(one) for one in own]))
            encoded = splice(encoded, rows, Encoded(np.concatenate(own), offsets))
        return _column(encoded)


@dataclass(frozen=True, slots=True)
class Tokenizing:
    """Columns of tokens, made of a column of texts.

    Attributes:
        tokenizer: that makes them.
        column: of the texts.
        only_ids: whether `input_ids` are all that is asked for.
    """

    tokenizer: ChainTokenizer
    column: str
    only_ids: bool

    def prepare(self) -> None:
        """Make what this thread needs for its first block."""
        self.tokenizer.prepare(only_ids=self.only_ids)

    def __call__(self, block: Block) -> Block:
        """The samples with them."""
        if not len(block):
            return block
        added = self.tokenizer.columns(block.texts(self.column), only_ids=self.only_ids)
        return Block(added) if self.only_ids else block.with_columns(added)


def tokenized(
    given: Input, state: State | None, *, tokenizer: ChainTokenizer, column: str, crew: Crew
) -> Flow:
    """`tokenize`; texts alone are read where nothing but their ids is asked for."""
    function = Tokenizing(tokenizer, column, given.opening.text)
    return parallel(given, state, function=function, crew=crew)


def asks_text(opening: Opening, *, column: str) -> Opening:
    """What `tokenize` asks its source for."""
    ids = opening.column == "input_ids"
    return opening.asking(column if ids else None, text=ids)
