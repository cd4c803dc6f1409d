"""Texts on which tiktoken's regular expression overflows its stack: a million spaces in a row."""

from __future__ import annotations

import re
from typing import Any

from streaming_ext.errors import EngineMismatchError
from streaming_ext.text.tokenizer.rank_file import CL100K_PATTERN, GPT2_PATTERN, O200K_PATTERN

_PATTERNS = (GPT2_PATTERN, CL100K_PATTERN, O200K_PATTERN)
_LONG_RUN = re.compile(r"(\s{1000})\s{1000,}(\s{1000})")


def encode_without_stack(encoding: Any, pattern: str, text: str) -> list[int]:
    """The ids of `text`, split by the module `regex` and merged by tiktoken, piece by piece.

    Only splitting overflows, and only on long runs of white space. That the two split alike is
    checked on this very text with its runs cut down to a length that tiktoken can do.
    """
    if pattern not in _PATTERNS:
        raise EngineMismatchError(
            f"tiktoken's stack overflows on a document of {len(text)} characters, and the pattern "
            f"{pattern!r} is none that can be split otherwise. Leave the document out."
        )
    shorter = _LONG_RUN.sub(r"\1\2", text)
    if _encode(encoding, pattern, shorter) != encoding.encode_ordinary(shorter):
        raise EngineMismatchError(
            f"tiktoken's stack overflows on a document of {len(text)} characters, and `regex` "
            "splits the rest of it differently. Leave the document out."
        )
    return _encode(encoding, pattern, text)


def _encode(encoding: Any, pattern: str, text: str) -> list[int]:
    import regex  # type: ignore[import-untyped]

    # To Python `$` also matches before a newline that ends the text, to Rust it does not.
    pieces = regex.finditer(pattern.replace("$", r"\Z"), text)
    encode = encoding._core_bpe.encode_single_piece
    return [id_ for piece in pieces for id_ in encode(piece.group().encode())]
