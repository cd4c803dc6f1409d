"""A cache of the ids of words, for tokenizers of the library `tokenizers` that split at spaces.

A text is cut at each space between two plain characters. If a tokenizer splits there too, and
normalizes each side independently of the other, the ids of a text are the ids of its words, one
after another.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

from streaming_ext.text.tokenizer.json_file import JsonTokenizer, in_order

MAX_BYTES: Final = 2**28  # of the words in the cache, about
_WORD_BYTES: Final = 200  # that a word takes besides its characters
# Letters, digits and signs of ASCII, Latin, Greek and Cyrillic. No normalizer makes a space of one.
# Marks are not among them, because a mark would join the space before it.
_PLAIN: Final = "!-~\u00c0-\u024f\u0386-\u03ff\u0400-\u0481\u048a-\u052f"
_CUT: Final = re.compile(f" (?<=[{_PLAIN}] )(?=[{_PLAIN}])")
# Normalizers that look at one character and the marks on it, and pre-tokenizers that split at each
# space and keep it, if at all, at the beginning of what follows.
_LOCAL: Final = {
    *("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"),
    *("Nmt", "Precompiled"),
}
# Pre-tokenizers that split between two characters by what these are, so they may come before.
_BY_CHARACTER: Final = {"Digits", "Punctuation"}
_SPLITTING: Final = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Metaspace", "ByteLevel"}
_RUNS_OF_SPACES: Final = {"Regex": " {2,}"}


def splits_at_spaces(config: Mapping[str, Any]) -> bool:
    """Tell if the tokenizer of a tokenizer.json encodes the words of a text apart."""
    steps = in_order(config.get("pre_tokenizer"), "pretokenizers")
    others = [step for step in steps if step["type"] not in _BY_CHARACTER]
    return (
        all(map(_is_local, in_order(config.get("normalizer"), "normalizers")))
        and any(map(_splits, others[:1]))
        # Special tokens are text; others are found first, wherever they stand.
        and all(token["special"] for token in config["added_tokens"])
    )


def _is_local(normalizer: Mapping[str, Any]) -> bool:
    match normalizer:
        case {"type": "Replace", "pattern": {"String": str(text)}, "content": str(content)}:
            return " " not in text and re.fullmatch(f"[{_PLAIN}]+", content) is not None
        case {"type": "Replace", "pattern": pattern}:
            return bool(pattern == _RUNS_OF_SPACES)
        case {"type": "Strip", "strip_left": left}:
            return not left
    return normalizer["type"] in _LOCAL


def _splits(pre_tokenizer: Mapping[str, Any]) -> bool:
    options = ("split", "use_regex")  # of Metaspace and ByteLevel
    return pre_tokenizer["type"] in _SPLITTING and all(pre_tokenizer.get(o, True) for o in options)


class WordIds:
    """A cache of the ids of words, which encodes each word of texts once."""

    def __init__(self, tokenizer: JsonTokenizer) -> None:
        self._tokenizer = tokenizer
        self._known = dict[str, bytes]()  # by word, without the space before it
        self._num_bytes = 0

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        """Return the ids of each text, as bytes of uint32."""
        if self._num_bytes > MAX_BYTES:
            self._known.clear()
            self._num_bytes = 0
        cut = [_CUT.split(text) for text in texts]
        new = [*{*chain.from_iterable(words[1:] for words in cut)}.difference(self._known)]
        firsts = [words[0] for words in cut]
        found = [
            np.array(ids, np.uint32).tobytes()
            for ids in self._tokenizer.encode_all([*firsts, *[f" {word}" for word in new]])
        ]
        self._known.update(zip(new, found[len(texts) :], strict=True))
        self._num_bytes += sum(map(len, new)) + _WORD_BYTES * len(new)
        known = self._known.__getitem__
        return [
            b"".join((first, *map(known, words[1:])))
            for first, words in zip(found, cut, strict=False)
        ]
