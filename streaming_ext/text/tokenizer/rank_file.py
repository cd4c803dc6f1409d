"""Tokenizers of tiktoken: rank files (.tiktoken) and encodings by name.

A rank file holds neither the pattern that splits text nor the special tokens; this module has both
for the public encodings.
"""

import base64
import hashlib
import json
import re
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

from streaming_ext.base.errors import EngineMismatchError, TokenizerError, nearest
from streaming_ext.text.tokenizer.tokenizer import (
    ENDOFTEXT,
    Marks,
    Tokenizer,
    canonical_json,
    fingerprint_of,
    panics_as_errors,
    read_file,
)

MAX_TOKEN_ID = 1 << 31

# The public patterns are written out here rather than read from the installed tiktoken: the text of
# a pattern enters the fingerprint, and tiktoken rewrites its patterns from release to release.
GPT2_PATTERN = (
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
)
CL100K_PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"""
    r"""| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
O200K_PATTERN = "|".join(
    (
        rf"""[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?""",
        rf"""[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    )
)
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?"
_REST = r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = rf"{_WORDS}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+{_REST}"
QWEN2_PATTERN = rf"{_WORDS}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+{_REST}"
QWEN35_PATTERN = rf"{_WORDS}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+{_REST}"
TEKKEN_PATTERN = O200K_PATTERN.replace(f"{_CONTRACTION}?", "").replace("{1,3}", "")
_TEKKEN = ("<unk>", "<s>", "</s>")
_BEGINNINGS = ("<|begin_of_text|>", "<s>")  # tokens that begin texts, in families that have one
_FIM = {"<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260}
# encoding -> (pattern, special tokens)
KNOWN_ENCODINGS: dict[str, tuple[str, dict[str, int]]] = {
    "gpt2": (GPT2_PATTERN, {ENDOFTEXT: 50256}),
    "r50k_base": (GPT2_PATTERN, {ENDOFTEXT: 50256}),
    "p50k_base": (GPT2_PATTERN, {ENDOFTEXT: 50256}),
    "cl100k_base": (CL100K_PATTERN, {ENDOFTEXT: 100257, **_FIM, "<|endofprompt|>": 100276}),
    "o200k_base": (O200K_PATTERN, {ENDOFTEXT: 199999, "<|endofprompt|>": 200018}),
}
# family of rank files -> (pattern, special tokens from the first id above all ranks on, number of
# ids of all special tokens)
_LLAMA = "<|begin_of_text|> <|end_of_text|>"
_TURN = "<|start_header_id|> <|end_header_id|> <|eom_id|> <|eot_id|> <|python_tag|> <|image|>"
_FIM_NAMES = " ".join(_FIM)
_QWEN = f"{ENDOFTEXT} <|im_start|> <|im_end|>"
_FAMILIES: dict[str, tuple[str, str, int]] = {
    "llama3": (
        LLAMA3_PATTERN,
        f"{_LLAMA} <|reserved_0|> <|reserved_1|> <|finetune_right_pad_id|> <|step_id|> {_TURN}",
        256,
    ),
    "llama4": (
        O200K_PATTERN,
        f"{_LLAMA} {_FIM_NAMES} <|header_start|> <|header_end|> <|eom|> <|eot|>",
        2048,
    ),
    "qwen2": (QWEN2_PATTERN, _QWEN, 208),
    "qwen35": (QWEN35_PATTERN, _QWEN, 33),
}
# SHA-256 of known rank files, in rank order -> family
_CONTENTS = {
    "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55": "llama3",
    "d0bdbaf59b0762c8c807617e2d8ea51420eb1b1de266df2495be755c8e0ed6ed": "llama4",
    "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186": "qwen2",
    "8dde380a6405e935f5de16a99eb61c824f3f814dd1ed298784c72babb7a03cdd": "qwen35",
}
# Patterns that split text, by the names that a user may pass.
PATTERNS: dict[str, str] = {
    **{name: pattern for name, (pattern, _) in KNOWN_ENCODINGS.items()},
    **{name: pattern for name, (pattern, *_) in _FAMILIES.items()},
}
_SAMPLE = "".join(map(chr, range(0x380)))  # letters, marks, digits, signs and spaces
_LONG_RUN = re.compile(r"(\s{1000})\s{1000,}(\s{1000})")


@dataclass(frozen=True, kw_only=True)
class RankTokenizer(Tokenizer):
    """A tokenizer of tiktoken; the fingerprint covers ranks, pattern and special tokens."""

    kind: ClassVar = "tiktoken"
    package: ClassVar = "tiktoken"
    file_name: ClassVar = "ranks.tiktoken"

    @cached_property
    def ranks(self) -> dict[bytes, int]:
        """The rank of each token."""
        return parse_rank_file(self.data, self.name)

    @cached_property
    def encoding(self) -> Any:
        """The `Encoding` of the library."""
        import tiktoken

        return tiktoken.Encoding(
            self.name,
            pat_str=str(self.pattern),
            mergeable_ranks=self.ranks,
            special_tokens=self.special_tokens or {},
        )

    @classmethod
    def of(
        cls,
        name: str,
        ranks: dict[bytes, int],
        pattern: str,
        special_tokens: dict[str, int],
        *,
        eot_token: str | None,
        bos_token: str | None,
    ) -> "RankTokenizer":
        """Make a tokenizer from everything that decides the ids."""
        marks = Marks(where=name, special=special_tokens).choose(eot_token, bos_token)
        taken = set(ranks.values())
        if clash := sorted(token for token, id_ in special_tokens.items() if id_ in taken):
            raise TokenizerError(
                f"{name}: the special tokens {clash} have ids that are ranks of ordinary tokens: "
                "text would produce them. Is this the rank file of another encoding?"
            )
        data = rank_file_bytes(ranks)
        decisive = canonical_json([pattern, special_tokens, marks["eot_token"]]) + b"\n"
        made = cls(
            name=name,
            vocab_size=max([*taken, *special_tokens.values()]) + 1,
            **marks,
            usual_bos=next((name for name in _BEGINNINGS if name in special_tokens), None),
            fingerprint=fingerprint_of(cls.kind, decisive, data, bos_token=bos_token),
            pattern=pattern,
            data=data,
            special_tokens=special_tokens,
        )
        vars(made).update(ranks=ranks)
        try:
            with panics_as_errors():
                sample = made.encoding.encode_ordinary(_SAMPLE)
        except ImportError:  # an extra is not installed
            raise
        except Exception as error:  # noqa: BLE001 - a bad pattern raises ValueError or a Rust error
            raise TokenizerError(f"tiktoken refuses {name}, pattern {pattern!r}: {error}") from None
        if made.decode(sample) != _SAMPLE:
            raise TokenizerError(
                f"{name}: tiktoken drops the characters that the pattern {pattern!r} does not "
                "match. Pass an expression that matches every character, or one of "
                f"{', '.join(PATTERNS)}.{nearest(pattern, PATTERNS)}"
            )
        return made

    @classmethod
    def saved(cls, data: bytes, where: str, spec: Mapping[str, Any]) -> "RankTokenizer":
        """Open what `save` wrote."""
        ranks, special_tokens = parse_rank_file(data, where), dict(spec["special_tokens"])
        tokens = {name: spec.get(name) for name in ("eot_token", "bos_token")}
        return cls.of(spec["name"], ranks, spec["pattern"], special_tokens, **tokens)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `encode_ordinary`."""
        try:
            with panics_as_errors():
                ids: list[int] = self.encoding.encode_ordinary(text)
        except TokenizerError:
            return self._encode_long_runs(text)
        return ids

    def _encode_long_runs(self, text: str) -> list[int]:
        """Encode a text on which tiktoken's stack overflows: a million spaces in a row.

        Only splitting overflows, so the module `regex` splits the text and tiktoken merges each
        word. Both must split the same text alike once its runs of spaces are shortened.
        """
        shorter = _LONG_RUN.sub(r"\1\2", text)
        if (
            self.pattern not in PATTERNS.values()
            or shorter == text
            or self._encode_words(shorter) != self.encoding.encode_ordinary(shorter)
        ):
            raise EngineMismatchError(
                f"tiktoken's stack overflows on a document of {len(text)} characters, and `regex` "
                f"does not split it as tiktoken would with {self.pattern!r}. Leave it out."
            )
        return self._encode_words(text)

    def _encode_words(self, text: str) -> list[int]:
        import regex  # type: ignore[import-untyped]

        # In Python `$` also matches before a newline at the end of the text; in Rust it does not.
        words = regex.finditer((self.pattern or "").replace("$", r"\Z"), text)
        encode = self.encoding._core_bpe.encode_single_piece
        return [id_ for word in words for id_ in encode(word.group().encode())]

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """Return the bytes of the tokens."""
        with panics_as_errors():
            return bytes(self.encoding.decode_bytes(list(ids)))


def is_rank_file(data: bytes) -> bool:
    """Return whether content begins as a rank file does, whatever its name."""
    return re.match(rb"[A-Za-z0-9+/]+=* \d+\r?\n", data) is not None


def of_rank_file(
    path: Path, pattern: str | None, eot_token: str | None, bos_token: str | None
) -> RankTokenizer:
    """Load a rank file; its pattern is given, or known from its name or its content."""
    ranks = parse_rank_file(read_file(path), str(path))
    first = max(ranks.values()) + 1
    known = KNOWN_ENCODINGS.get(path.name.removesuffix(".tiktoken"))
    family = pattern or _CONTENTS.get(hashlib.sha256(rank_file_bytes(ranks)).hexdigest())
    if family is not None and family in _FAMILIES:
        of_family, names, size = _FAMILIES[family]
        tokens = names.split()
        tokens += [f"<|reserved_{number}|>" for number in range(len(tokens), size)]
        known = of_family, {name: id_ for id_, name in enumerate(tokens, first)}
    elif pattern is not None:
        marks = dict.fromkeys(filter(None, (eot_token or ENDOFTEXT, bos_token)))
        known = (
            PATTERNS.get(pattern, pattern),
            {name: id_ for id_, name in enumerate(marks, first)},
        )
    if known is None:
        raise TokenizerError(
            f"{path} holds ranks only, and neither its name nor its content is known: which "
            f"pattern splits the text? Pass `pattern` as one of {', '.join(PATTERNS)}, or as a "
            "regular expression."
        )
    return RankTokenizer.of(path.name, ranks, *known, eot_token=eot_token, bos_token=bos_token)


def of_tekken(path: Path, eot_token: str | None, bos_token: str | None) -> RankTokenizer:
    """Load Mistral's own file, in which special tokens have the first ids."""
    try:
        content = json.loads(read_file(path))
        config, named = content["config"], content.get("special_tokens") or ()
        first, size = config["default_num_special_tokens"], config["default_vocab_size"]
        special = {name: id_ for id_, name in enumerate(_TEKKEN)}
        special |= {token["token_str"]: token["rank"] for token in named}
        ranks = {
            base64.b64decode(token["token_bytes"]): first + token["rank"]
            for token in content["vocab"]
            if token["rank"] < size - first
        }
        pattern = config["pattern"]
    except (ValueError, KeyError, TypeError) as error:
        raise TokenizerError(f"{path} is not a tekken.json: {error!r}") from None
    checked = parse_rank_file(rank_file_bytes(ranks), str(path))
    return RankTokenizer.of(
        path.name, checked, pattern, special, eot_token=eot_token, bos_token=bos_token
    )


def of_encoding(name: str, eot_token: str | None, bos_token: str | None) -> RankTokenizer:
    """Load an encoding that tiktoken knows by name; tiktoken downloads it on first use."""
    import tiktoken

    if name not in (encodings := tiktoken.list_encoding_names()):
        raise TokenizerError(
            f"`tokenizer` {name!r} is no encoding of tiktoken ({', '.join(encodings)})."
            f"{nearest(name, encodings)} The name of a file ends in .tiktoken, .json or .model; a "
            "repository of the Hub is named org/name."
        )
    try:
        encoding = tiktoken.get_encoding(name)
    except Exception as error:  # noqa: BLE001 - tiktoken lets every kind of failure through
        raise TokenizerError(
            f"tiktoken cannot provide the encoding {name!r}: {type(error).__name__}: {error}. "
            f"It is one of {', '.join(KNOWN_ENCODINGS)}, downloaded on first use. Without a "
            "network: (1) pass the path of a rank file, such as r50k_base.tiktoken, or (2) point "
            "TIKTOKEN_CACHE_DIR at a folder that tiktoken filled before."
        ) from None
    # A pattern of this module takes precedence: see GPT2_PATTERN.
    pattern = KNOWN_ENCODINGS[name][0] if name in KNOWN_ENCODINGS else encoding._pat_str
    special_tokens = dict(encoding._special_tokens)
    ranks = dict(encoding._mergeable_ranks)
    tokens = {"eot_token": eot_token, "bos_token": bos_token}
    return RankTokenizer.of(name, ranks, pattern, special_tokens, **tokens)


def parse_rank_file(data: bytes, where: str) -> dict[bytes, int]:
    """Parse a .tiktoken file, and check it: base64, unique tokens and ranks, all 256 bytes."""
    lines = [line.split() for line in data.splitlines() if line]
    try:
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except ValueError as error:
        raise TokenizerError(
            f"{where} is no rank file, a base64 token, a space and a rank a line: {error}."
        ) from None
    if len({*ranks.values()}) < len(lines):
        raise TokenizerError(f"{where} repeats a token or a rank.")
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing or not all(0 <= rank < MAX_TOKEN_ID for rank in ranks.values()):
        raise TokenizerError(
            f"{where} has no rank for {len(missing)} of the 256 single bytes, or ranks that are no "
            "ids. Is it a complete rank file?"
        )
    return ranks


def rank_file_bytes(ranks: Mapping[bytes, int]) -> bytes:
    """Return the content of a .tiktoken file, in rank order."""
    ordered = sorted(ranks.items(), key=itemgetter(1))
    return b"".join(
        [b"%s %d\n" % (b2a_base64(token, newline=False), rank) for token, rank in ordered]
    )
