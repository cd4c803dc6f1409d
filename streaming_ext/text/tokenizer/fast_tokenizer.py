"""Which tokenizers gigatoken is known to follow to the letter, and what it is loaded from."""

from __future__ import annotations

import copy
import importlib.util
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from streaming_ext.text.tokenizer.rank_file import (
    CL100K_PATTERN,
    GPT2_PATTERN,
    O200K_PATTERN,
    rank_file_bytes,
)
from streaming_ext.text.tokenizer.tokenizer import Tokenizer

# gigatoken splits text with code of its own, one scheme a pattern.
_SCHEMES = {GPT2_PATTERN: "gpt2", CL100K_PATTERN: "cl100k", O200K_PATTERN: "o200k"}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False}


def _byte_names() -> list[str]:
    """The characters that stand for the 256 bytes in a byte-level vocabulary."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in shown]
    return [chr(byte if byte in shown else 256 + others.index(byte)) for byte in range(256)]


BYTE_NAMES = _byte_names()


@dataclass(frozen=True, slots=True)
class FastSource:
    """A rank file with the name of a scheme, or a tokenizer.json without special tokens."""

    data: bytes
    scheme: str | None

    def load(self) -> Any:
        """A new gigatoken tokenizer, with empty caches, that takes special tokens for text."""
        import gigatoken

        if self.scheme is None:
            return gigatoken.Tokenizer.from_json(self.data)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "ranks.tiktoken")
            path.write_bytes(self.data)
            return gigatoken.Tokenizer.from_tiktoken(
                path, pretokenizer=self.scheme, special_tokens={}
            )


@dataclass(frozen=True, slots=True)
class Probe:
    """Both engines over one made-up vocabulary, split as a tokenizer splits."""

    reference: Callable[[str], Sequence[int]]
    fast: FastSource


def fast_source(tokenizer: Tokenizer) -> FastSource | str:
    """What gigatoken is to be loaded from, or the reason why it is not to be used."""
    if importlib.util.find_spec("gigatoken") is None:
        return "gigatoken is not installed"
    if tokenizer.kind == "huggingface":
        return _json_source(tokenizer.config)
    reason = _why_no_scheme(tokenizer)
    return reason or FastSource(rank_file_bytes(tokenizer.ranks), _SCHEMES[tokenizer.pattern or ""])


def _why_no_scheme(tokenizer: Tokenizer) -> str | None:
    if tokenizer.pattern not in _SCHEMES:
        return "gigatoken has no scheme for this pattern"
    if sorted(tokenizer.ranks.values()) != list(range(len(tokenizer.ranks))):
        return "gigatoken needs ranks without a gap"
    return None


def splitters(tokenizer: Tokenizer) -> str | None:
    """What decides how both engines split text; None where gigatoken is not to be used."""
    if importlib.util.find_spec("gigatoken") is None:
        return None
    if tokenizer.kind == "tiktoken":
        if _why_no_scheme(tokenizer) is not None:
            return None
        return _key("tiktoken", tokenizer.pattern or "")
    if isinstance(_json_source(tokenizer.config), str):
        return None
    return _key("tokenizers", json.dumps(tokenizer.config["pre_tokenizer"], sort_keys=True))


def probe_for(tokenizer: Tokenizer, pairs: Sequence[bytes]) -> Probe:
    """Both engines with `pairs` as the only merges, where there are `splitters`."""
    tokens = [*(bytes([byte]) for byte in range(256)), *pairs]
    if tokenizer.kind == "tiktoken":
        import tiktoken

        assert tokenizer.pattern is not None  # noqa: S101 - for the type checker
        ranks = {token: rank for rank, token in enumerate(tokens)}
        encoding = tiktoken.Encoding(
            "probe", pat_str=tokenizer.pattern, mergeable_ranks=ranks, special_tokens={}
        )
        source = FastSource(rank_file_bytes(ranks), _SCHEMES[tokenizer.pattern])
        return Probe(encoding.encode_ordinary, source)

    import tokenizers

    names = ["".join(BYTE_NAMES[byte] for byte in token) for token in tokens]
    config = copy.deepcopy({**tokenizer.config, "added_tokens": [], "model": None})
    config["model"] = {
        "type": "BPE",
        "vocab": {name: id_ for id_, name in enumerate(names)},
        "merges": [list(name) for name in names[256:]],
    }
    data = json.dumps(config)
    model = tokenizers.Tokenizer.from_str(data)

    def reference(text: str) -> Sequence[int]:
        ids: list[int] = model.encode(text, add_special_tokens=False).ids
        return ids

    return Probe(reference, FastSource(data.encode(), None))


def _key(package: str, splitter: str) -> str:
    return f"gigatoken {version('gigatoken')}\n{package} {version(package)}\n{splitter}"


def _json_source(config: Mapping[str, Any]) -> FastSource | str:
    model = config["model"]
    plain = (
        model.get("type") == "BPE"
        and not model.get("byte_fallback")
        and not model.get("unk_token")
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
        and all(name in model["vocab"] for name in BYTE_NAMES)
    )
    if not plain:
        return "not a plain byte-level BPE model"
    if config.get("normalizer") is not None:
        return "the tokenizer normalizes its text"
    if not _splits_plainly(config.get("pre_tokenizer") or {}):
        return "gigatoken has no scheme for this pre-tokenizer"
    if any(not token["special"] for token in config["added_tokens"]):
        return "the tokenizer has added tokens that are not special"
    # Left out, special tokens are text; their ids stay free or unreachable.
    return FastSource(json.dumps({**config, "added_tokens": []}).encode(), None)


def _splits_plainly(pre_tokenizer: Mapping[str, Any]) -> bool:
    """Whether it is GPT-2's own splitter, or one regular expression and then bytes.

    gigatoken knows the expressions by their text and refuses others, but it does not look at the
    settings beside them.
    """
    if pre_tokenizer.get("type") == "ByteLevel":
        return _is(pre_tokenizer, _BYTE_LEVEL) and pre_tokenizer.get("use_regex", True) is True
    steps = pre_tokenizer.get("pretokenizers")
    if pre_tokenizer.get("type") != "Sequence" or not isinstance(steps, list) or len(steps) != 2:
        return False
    split, to_bytes = steps
    return (
        _is(split, {"type": "Split", "behavior": "Isolated", "invert": False})
        and set(split.get("pattern", ())) == {"Regex"}
        and _is(to_bytes, {**_BYTE_LEVEL, "use_regex": False})
    )


def _is(value: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return all(value.get(key) == wanted for key, wanted in expected.items())
