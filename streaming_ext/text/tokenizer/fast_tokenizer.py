"""Which tokenizers gigatoken is known to follow to the letter, and how it is loaded."""

import importlib.util
import json
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from streaming_ext.text.tokenizer.json_file import JsonTokenizer
from streaming_ext.text.tokenizer.rank_file import (
    CL100K_PATTERN,
    GPT2_PATTERN,
    O200K_PATTERN,
    RankTokenizer,
    rank_file_bytes,
)
from streaming_ext.text.tokenizer.tokenizer import Tokenizer

# gigatoken splits text with code of its own, one scheme a pattern. Tests try every code point with
# the patterns that stand here.
_SCHEMES: Final = {GPT2_PATTERN: "gpt2", CL100K_PATTERN: "cl100k", O200K_PATTERN: "o200k"}
_ENDS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_CASED: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
# Of a tokenizer.json, by models that have them. Those of cl100k and OLMo are missing: in a
# tokenizer.json, gigatoken takes their `{1,3}+` and `[\r\n]|` for something else.
JSON_PATTERNS: Final = {
    "llama3": rf"{_ENDS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_SIGNS}|{_BLANKS}",
    "qwen2": rf"{_ENDS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_SIGNS}|{_BLANKS}",
    "qwen35": rf"{_ENDS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}",
    "o200k": O200K_PATTERN,
    "nemotron": rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}",
}
# Makes a new gigatoken tokenizer, with empty caches, that takes special tokens for text.
Loader = Callable[[], Any]


def _byte_names() -> list[str]:
    """The characters that stand for the 256 bytes in a byte-level vocabulary."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in shown]
    return [chr(byte if byte in shown else 256 + others.index(byte)) for byte in range(256)]


BYTE_NAMES = _byte_names()


def fast_loader(tokenizer: Tokenizer) -> Loader | str:
    """What loads gigatoken for a tokenizer, or the reason why it is not used."""
    if importlib.util.find_spec("gigatoken") is None:
        return "gigatoken is not installed"
    if isinstance(tokenizer, RankTokenizer):
        if tokenizer.pattern not in _SCHEMES:
            return "gigatoken has no scheme for this pattern"
        if sorted(tokenizer.ranks.values()) != list(range(len(tokenizer.ranks))):
            return "gigatoken needs ranks without a gap"
        return _of_ranks(tokenizer.ranks, tokenizer.pattern)
    if isinstance(tokenizer, JsonTokenizer):
        return _why_not(tokenizer.config) or _of_config(tokenizer.config)
    return f"gigatoken is not used for {tokenizer.package}"


def _of_ranks(ranks: Mapping[bytes, int], pattern: str) -> Loader:
    data = rank_file_bytes(ranks)

    def load() -> Any:
        import gigatoken

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "ranks.tiktoken")
            path.write_bytes(data)
            return gigatoken.Tokenizer.from_tiktoken(
                path, pretokenizer=_SCHEMES[pattern], special_tokens={}
            )

    return load


def _of_config(config: Mapping[str, Any]) -> Loader:
    import gigatoken

    # Left out, special tokens are text; their ids stay free or unreachable.
    data = json.dumps({**config, "added_tokens": []}).encode()
    return partial(gigatoken.Tokenizer.from_json, data)


def _why_not(config: Mapping[str, Any]) -> str | None:
    """Why gigatoken is not used for a tokenizer.json."""
    model = config["model"]
    special = ("byte_fallback", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    if (
        model.get("type") != "BPE"
        or any(model.get(name) for name in special)
        or not all(name in model["vocab"] for name in BYTE_NAMES)
    ):
        return "not a plain byte-level BPE model"
    if config.get("normalizer") is not None:
        return "the tokenizer normalizes its text"
    if not _splits_plainly(config.get("pre_tokenizer") or {}):
        return "gigatoken has no scheme for this pre-tokenizer"
    if any(not token["special"] for token in config["added_tokens"]):
        return "the tokenizer has added tokens that are not special"
    return None


def _splits_plainly(pre_tokenizer: Mapping[str, Any]) -> bool:
    """Whether it is GPT-2's own splitter, or one regular expression and then bytes.

    gigatoken knows the expressions by their text, but does not look at the settings beside them.
    """
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, **others}:
            return others.get("use_regex", True) is True
        case {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "behavior": "Isolated",
                    "invert": False,
                    "pattern": {"Regex": pattern},
                },
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return pattern in JSON_PATTERNS.values()
    return False
