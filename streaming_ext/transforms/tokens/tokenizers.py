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
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from platformdirs import user_cache_path

from streaming_ext.errors import EngineMismatchError, ShardmillError, UsageError
from streaming_ext.sampler.orders.order import Ints
from streaming_ext.text.documents.text_array import text_buffers
from streaming_ext.text.tokenizer.code_points import find_unsafe_code_points
from streaming_ext.text.tokenizer.engine import Encoded, Engine, audit_sample, choose_engine, splice
from streaming_ext.text.tokenizer.fast_tokenizer import fast_source
from streaming_ext.text.tokenizer.tokenizer import Tokenizer, load_tokenizer, tokenizer_of_json
from streaming_ext.transforms.block import Column, Ragged

AnyTokenizer = Any  # a name or path, a `Tokenizer`, or a tokenizer of transformers
_PROBES: Final = ("Hello world!", " 1,234 näive  words\n\n\tand\u00a0more: 你好 🙂", "")
_AUDITED: Final = 2**16  # bytes of a text that is compared with the reference, at most


class ChainTokenizer(Protocol):
    """A tokenizer as steps of a chain use it."""

    @property
    def described(self) -> str:
        """What a state knows it by."""
        ...

    def columns(
        self, texts: pa.LargeStringArray, wanted: frozenset[str] | None
    ) -> Mapping[str, Column]:
        """The columns that it adds to samples, at least those that are wanted (None: all)."""
        ...

    def prepare(self, wanted: frozenset[str] | None) -> None:
        """Make what this thread needs for `columns`, before there are texts."""
        ...

    def missing_ends(self) -> tuple[int | None, int | None]:
        """The first and the last token of a document that it does not add itself."""
        ...


@cache
def _named(name: str, pattern: str | None) -> "OwnTokenizer":
    return OwnTokenizer(load_tokenizer(name, pattern=pattern), (name, pattern))


def tokenizer_of(
    tokenizer: AnyTokenizer,
    *,
    pattern: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> ChainTokenizer:
    """What a user handed over, as chains use it.

    Raises:
        UsageError: it is no tokenizer, or takes no such settings.
    """
    if isinstance(tokenizer, OwnTokenizer | HubTokenizer):
        return tokenizer
    if isinstance(tokenizer, str | Path | Tokenizer):
        if settings:
            raise UsageError("`tokenizer_kwargs` go with a tokenizer of transformers only.")
        if isinstance(tokenizer, Tokenizer):
            return OwnTokenizer(tokenizer, None)
        return _named(str(tokenizer), pattern)
    if callable(tokenizer) and hasattr(tokenizer, "encode"):
        return HubTokenizer(tokenizer, dict(settings or {}))
    raise UsageError(
        f"`tokenizer` must be a name, a file, or a tokenizer of transformers, got "
        f"{type(tokenizer).__name__}."
    )


class Engines:
    """An engine for each thread; none is inherited by a fork, nor sent to another process."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._own = threading.local()

    def __getstate__(self) -> dict[str, object]:
        """The tokenizer alone."""
        return {"tokenizer": self.tokenizer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Without an engine."""
        self.__init__(state["tokenizer"])  # type: ignore[misc]

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
        process, engine = getattr(self._own, "engine", (None, None))
        if engine is None or process != os.getpid():
            engine = self._engine()
            self._own.engine = (os.getpid(), engine)
        made: Engine = engine
        return made

    def _engine(self) -> Engine:
        """A new one; what it must not be given is kept on disk."""
        unsafe = find_unsafe_code_points(self.tokenizer, user_cache_path("shardmill"))
        return choose_engine(self.tokenizer, engine="auto", unsafe=unsafe)


class OwnTokenizer:
    """One of Shardmill's own: special tokens in a text are text."""

    def __init__(self, tokenizer: Tokenizer, name: tuple[str, str | None] | None) -> None:
        """Take it over.

        Args:
            tokenizer: it.
            name: and pattern, to load it by in another process.
        """
        self._engines, self._name = Engines(tokenizer), name

    def __reduce__(self) -> Any:
        """By its name, where it has one: not all can be sent to another process."""
        if self._name is not None:
            return _named, self._name
        return OwnTokenizer, (self._engines.tokenizer, None)

    @property
    def described(self) -> str:
        """See `ChainTokenizer`."""
        return self._engines.tokenizer.fingerprint[:12]

    def columns(
        self, texts: pa.LargeStringArray, wanted: frozenset[str] | None
    ) -> Mapping[str, Column]:
        """See `ChainTokenizer`."""
        encoded = self._engines.encode(texts)
        return {"input_ids": Ragged(encoded.ids, encoded.offsets, listed=True)}

    def prepare(self, wanted: frozenset[str] | None) -> None:
        """See `ChainTokenizer`."""
        self._engines.own()

    def missing_ends(self) -> tuple[int | None, int | None]:
        """See `ChainTokenizer`: documents end in one end-of-text id, and begin with nothing."""
        return None, self._engines.tokenizer.eot_id


class HubTokenizer:
    """One of transformers: the ids of its own call, whatever engine finds them."""

    def __init__(self, tokenizer: Any, settings: Mapping[str, Any]) -> None:
        """Take it over.

        Args:
            tokenizer: it.
            settings: of each call.
        """
        self._tokenizer, self._settings = tokenizer, dict(settings)
        self._fast = None if settings else FastHub.of(tokenizer)

    @property
    def described(self) -> str:
        """See `ChainTokenizer`."""
        return hub_described(self._tokenizer, self._settings)

    def columns(
        self, texts: pa.LargeStringArray, wanted: frozenset[str] | None
    ) -> Mapping[str, Column]:
        """See `ChainTokenizer`."""
        if (fast := self._fast_for(wanted)) is not None:
            return {"input_ids": fast.ids(texts)}
        if not len(texts):
            return {"input_ids": []}
        found = self._tokenizer(texts.to_pylist(), **self._settings)
        return {name: list(values) for name, values in found.items()}

    def prepare(self, wanted: frozenset[str] | None) -> None:
        """See `ChainTokenizer`."""
        if (fast := self._fast_for(wanted)) is not None:
            fast.engines.own()

    def _fast_for(self, wanted: frozenset[str] | None) -> "FastHub | None":
        """The fast engine, where it makes all that is wanted."""
        return self._fast if wanted is not None and wanted <= {"input_ids"} else None

    def missing_ends(self) -> tuple[int | None, int | None]:
        """See `ChainTokenizer`; one token that is both is put at the end, and only once."""
        known = self._tokenizer
        ids = list(known(_PROBES[0])["input_ids"])
        bos, eos = known.bos_token_id, known.eos_token_id
        begins = bool(ids) and ids[0] == bos
        ends = bool(ids) and ids[-1] == eos
        if bos == eos:
            return None, None if begins or ends else eos
        return None if begins else bos, None if ends else eos


def hub_described(tokenizer: Any, settings: Mapping[str, Any]) -> str:
    """What a state knows a tokenizer of transformers by: what it makes of some texts."""
    ids = [tokenizer(probe)["input_ids"] for probe in _PROBES]
    told = repr((len(tokenizer), ids, sorted(settings.items(), key=str)))
    return hashlib.sha256(told.encode()).hexdigest()[:12]


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
        end = tokenizer.eos_token or next(iter(sorted(added)), None)
        try:
            own = tokenizer_of_json(backend.to_str().encode(), name="tokenizer", eot_token=end)
        except ShardmillError:  # it needs no end of text here
            return None
        if isinstance(fast_source(own), str):
            return None
        plain = tuple(tokenizer(_PROBES[0], add_special_tokens=False)["input_ids"])
        whole = tuple(tokenizer(_PROBES[0])["input_ids"])
        at = next((n for n in range(len(whole)) if whole[n : n + len(plain)] == plain), None)
        if at is None:
            return None
        made = cls(tokenizer, Engines(own), tuple(added), whole[:at], whole[at + len(plain) :])
        probes = pa.array(_PROBES, pa.large_string())
        try:
            found = made.ids(probes).shown()
        except EngineMismatchError:
            return None
        return made if found == [tokenizer(probe)["input_ids"] for probe in _PROBES] else None

    def ids(self, texts: pa.LargeStringArray) -> Ragged:
        """The ids of some texts."""
        encoded = self.engines.encode(texts)
        if self.before or self.behind:
            encoded = self._around(encoded)
        rows = self._rows_with_special(texts)
        if len(rows):
            own = [self.tokenizer(texts[row].as_py())["input_ids"] for row in rows.tolist()]
            made = Ragged.of_lengths(
                np.concatenate([np.asarray(one, np.uint32) for one in own]),
                [len(one) for one in own],
            )
            encoded = splice(encoded, rows, Encoded(made.values, made.offsets))
        return Ragged(encoded.ids, encoded.offsets, listed=True)

    def _around(self, encoded: Encoded) -> Encoded:
        """The same ids with those that are put around them."""
        before, behind = len(self.before), len(self.behind)
        made = Ragged.of_lengths(
            np.empty(len(encoded.ids) + (before + behind) * (len(encoded.offsets) - 1), np.uint32),
            np.diff(encoded.offsets) + before + behind,
        )
        of_text = np.ones(len(made.values), bool)
        starts, ends = made.offsets[:-1], made.offsets[1:]
        places = [(starts + n, token) for n, token in enumerate(self.before)]
        places += [(ends - behind + n, token) for n, token in enumerate(self.behind)]
        for at, token in places:
            made.values[at], of_text[at] = token, False
        made.values[of_text] = encoded.ids
        return Encoded(made.values, made.offsets)

    def _rows_with_special(self, texts: pa.LargeStringArray) -> Ints:
        found = np.zeros(len(texts), bool)
        for token in self.special:
            matches = pc.match_substring(texts, token)
            found |= matches.to_numpy(zero_copy_only=False)
        return np.flatnonzero(found)
