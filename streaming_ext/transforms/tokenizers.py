"""The tokenizers that `tokenize` takes: a name, one of Shardmill's own, or one of transformers.

A tokenizer of transformers keeps its meaning: special tokens in a text are special, and its
post-processor adds tokens around a text. The fast engine does the work if it gives the same ids; a
text that holds a special token is left to the tokenizer itself.
"""

import hashlib
import os
import re
import threading
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.errors import ShardmillError, UsageError
from streaming_ext.text.tokenizer.engine import (
    Encoded,
    audit_sample,
    choose_engine,
    encode_rows,
    splice,
)
from streaming_ext.text.tokenizer.fast_tokenizer import fast_model
from streaming_ext.text.tokenizer.json_file import JsonTokenizer
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.transforms.block import Block, tokens_of
from streaming_ext.transforms.processes import OfBlock
from streaming_ext.transforms.steps import insert_ends

_PROBES: Final = ("Hello world!", " 1,234 näive  words\n\n\tand\u00a0more: 你好 🙂", "")
# Values that a tokenizer of transformers returns for each token of a text without padding.
_VALUES: Final = {"attention_mask": 1, "token_type_ids": 0}
_AUDITED: Final = 2**16  # bytes, at most, of a text that is compared with the reference


_ENGINES = threading.local()  # by process and tokenizer


def encode(tokenizer: Tokenizer, texts: pa.LargeStringArray) -> Encoded:
    """Encode some texts.

    Raises:
        EngineMismatchError: the reference gives other ids for the first text.
    """
    engines, key = vars(_ENGINES), f"{os.getpid()} {tokenizer.fingerprint}"
    if key not in engines:
        engines[key] = choose_engine(tokenizer, engine="auto")
    found: Encoded = engines[key].encode(texts)
    if len(texts) and texts[0].as_buffer().size <= _AUDITED:
        audit_sample(tokenizer, texts, found, [0])
    return found


_load = cache(load_tokenizer)


def _own(tokenizer: Any, pattern: str | None) -> Tokenizer | None:
    """Load a tokenizer of Shardmill's own; return None for a tokenizer of transformers.

    Raises:
        UsageError: the object is not a tokenizer.
    """
    if isinstance(tokenizer, str | Path):
        return _load(str(tokenizer), pattern=pattern)
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if hasattr(tokenizer, "encode"):
        return None
    raise UsageError(
        f"`tokenizer` must be a name, a file, or a tokenizer of transformers, got "
        f"{type(tokenizer).__name__}."
    )


def tokenize_function(
    tokenizer: Any, pattern: str | None, settings: Mapping[str, Any], column: str
) -> tuple[OfBlock, str]:
    """Make a function that tokenizes the texts of a column, and its name in states.

    Raises:
        UsageError: the object is not a tokenizer, or takes no such settings.
    """
    own = _own(tokenizer, pattern)
    if own is not None and settings:
        raise UsageError("`tokenizer_kwargs` go with a tokenizer of transformers only.")
    if own is not None:
        return partial(FastTokenizer(own).tokenize, column=column), own.fingerprint[:12]
    known = hub_described(tokenizer, settings)
    engine = None if settings else FastTokenizer.of(tokenizer)
    if engine is not None:
        return partial(engine.tokenize, column=column), known
    return partial(by_call, tokenizer=tokenizer, settings=settings, column=column), known


def missing_ends(tokenizer: Any, pattern: str | None) -> tuple[int | None, int | None]:
    """Find the first and the last token of a document that a tokenizer does not add itself.

    A token that is both is added once, at the end.
    """
    own = _own(tokenizer, pattern)
    if own is not None:
        return own.bos_id, own.eot_id
    ids = tokenizer(_PROBES[0])["input_ids"]
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    begins, ends = ids[0] == bos, ids[-1] == eos
    if bos == eos:
        return None, None if begins or ends else eos
    return None if begins else bos, None if ends else eos


def hub_described(tokenizer: Any, settings: Mapping[str, Any]) -> str:
    """Hash the ids of some texts, by which a state recognizes a tokenizer of transformers."""
    ids = [tokenizer(probe)["input_ids"] for probe in _PROBES]
    known = repr((len(tokenizer), ids, sorted(settings.items(), key=str)))
    return hashlib.sha256(known.encode()).hexdigest()[:12]


class FastTokenizer(NamedTuple):
    """The fast engine, alone or in place of a tokenizer of transformers.

    Attributes:
        own: the tokenizer that treats special tokens in a text as text.
        hub: the tokenizer of transformers; it tokenizes texts with special tokens.
        special: the texts of the special tokens.
        before, after: the ids that are added around the ids of every text.
        values: further columns, with the value of every token.
    """

    own: Tokenizer
    hub: Any = None
    special: Sequence[str] = ()
    before: Sequence[int] = ()
    after: Sequence[int] = ()
    values: Sequence[tuple[str, int]] = ()

    @classmethod
    def of(cls, tokenizer: Any) -> "FastTokenizer | None":
        """Find the engine for a tokenizer of transformers; None if its ids are not the same."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None or backend.truncation is not None or backend.padding is not None:
            return None
        special = [token.content for token in backend.get_added_tokens_decoder().values()]
        end = tokenizer.eos_token or min(special, default=None)
        probes = [{"text": probe} for probe in _PROBES]
        expected = [{**probe, **tokenizer(probe["text"])} for probe in probes]
        ids, plain = expected[0]["input_ids"], without_ends(tokenizer, _PROBES[0])
        try:
            own = JsonTokenizer.of(backend.to_str().encode(), "tokenizer", eot_token=end)
            start = ids.index(plain[0])
            before, after = ids[:start], ids[start + len(plain) :]
            values = [(name, _VALUES[name]) for name in [*expected[0]][2:]]
            made = cls(own, tokenizer, special, before, after, values)
            exact = made.tokenize(Block(probes), column="text").samples == expected
        except (ShardmillError, LookupError, ValueError):
            return None
        return made if exact and not isinstance(fast_model(own), str) else None

    def tokenize(self, block: Block, *, column: str) -> Block:
        """Add the columns that tokenizing a column of texts gives."""
        texts = block.texts(column)
        found = encode(self.own, texts)
        if self.special:
            pattern = "|".join(map(re.escape, self.special))
            rows = np.flatnonzero(np.asarray(pc.match_substring_regex(texts, pattern)))
            if len(rows):
                encode_slowly = partial(without_ends, self.hub)
                found = splice(found, rows, encode_rows(encode_slowly, texts, rows.tolist()))
        ids, lengths = insert_ends(found.ids, np.diff(found.offsets), self.before, self.after)
        columns = {"input_ids": tokens_of(ids, lengths, listed=True)}
        for name, value in self.values:
            columns[name] = tokens_of(np.full(len(ids), value, np.int8), lengths, listed=True)
        return block.with_columns(columns)


def without_ends(tokenizer: Any, text: str) -> list[int]:
    """Encode a text with a tokenizer of transformers, without the ids that it puts around it."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def by_call(block: Block, *, tokenizer: Any, settings: Mapping[str, Any], column: str) -> Block:
    """Add the columns that a call of a tokenizer of transformers returns."""
    texts = block.texts(column).to_pylist()
    added = tokenizer(texts, **settings)
    rows = (dict(zip(added, row, strict=True)) for row in zip(*added.values(), strict=True))
    return Block([{**sample, **row} for sample, row in zip(block.samples, rows, strict=True)])
