"""Rank files (.tiktoken) and what they do not hold: the known patterns and special tokens."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from streaming_ext.errors import TokenizerError

MAX_TOKEN_ID = 1 << 31
ENDOFTEXT = "<|endoftext|>"

# The public patterns, written out here rather than read from the installed tiktoken: the text of a
# pattern enters the fingerprint, and tiktoken rewrites its own from release to release.
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
_FIM = {"<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260}
# encoding -> (pattern, special tokens)
KNOWN_ENCODINGS: dict[str, tuple[str, dict[str, int]]] = {
    "gpt2": (GPT2_PATTERN, {ENDOFTEXT: 50256}),
    "r50k_base": (GPT2_PATTERN, {ENDOFTEXT: 50256}),
    "p50k_base": (GPT2_PATTERN, {ENDOFTEXT: 50256}),
    "cl100k_base": (CL100K_PATTERN, {ENDOFTEXT: 100257, **_FIM, "<|endofprompt|>": 100276}),
    "o200k_base": (O200K_PATTERN, {ENDOFTEXT: 199999, "<|endofprompt|>": 200018}),
}


def parse_rank_file(data: bytes, where: str) -> dict[bytes, int]:
    """The ranks of a .tiktoken file, checked: base64, unique tokens and ranks, all 256 bytes."""
    ranks: dict[bytes, int] = {}
    seen: dict[int, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        try:
            text, rank_text = line.split()
            token, rank = base64.b64decode(text, validate=True), int(rank_text)
        except (ValueError, binascii.Error):
            raise TokenizerError(
                f"{where}, line {number}: expected a base64 token, a space and a rank, "
                f"got {line[:80]!r}."
            ) from None
        if not token or not 0 <= rank < MAX_TOKEN_ID:
            raise TokenizerError(f"{where}, line {number}: empty token or bad rank: {line[:80]!r}.")
        if token in ranks or rank in seen:
            earlier = f"rank {rank} of line {seen[rank]}" if rank in seen else f"token {token!r}"
            raise TokenizerError(f"{where}, line {number} repeats {earlier}.")
        ranks[token] = rank
        seen[rank] = number
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise TokenizerError(
            f"{where} has no rank for {len(missing)} of the 256 single bytes, the first 0x"
            f"{missing[0]:02x}, so some text could not be encoded. Is it a complete rank file?"
        )
    return ranks


def rank_file_bytes(ranks: Mapping[bytes, int]) -> bytes:
    """A .tiktoken file in rank order."""
    ordered = sorted(ranks.items(), key=lambda item: item[1])
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ordered)
