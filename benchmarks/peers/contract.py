"""The input and output of every peer, so that all are measured alike.

A peer runs as a script in an environment of its own, with `--output`, `--tokenizer` (a rank file
or a tokenizer.json), `--workers` and Parquet files with a `text` column, or JSON Lines where it
reads them; what it prints last is one line of JSON: seconds of work, imports and loading of the
tokenizer apart, and its tokens, each document's end included.
"""

from __future__ import annotations

import argparse
import base64
import json
import time
from pathlib import Path
from typing import Any

PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
END = "<|endoftext|>"


def arguments() -> argparse.Namespace:
    """The command line of a peer; its output folder is made."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    args.output.mkdir(parents=True)
    return args


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def report(self, tokens: int, **more: int) -> None:
        """Print the result."""
        seconds = time.perf_counter() - self._began
        print("\n" + json.dumps({"seconds": seconds, "tokens": int(tokens), **more}), flush=True)


def load_tiktoken(path: Path) -> tuple[Any, int]:
    """A tiktoken encoding with GPT-2's pattern, and its end-of-text id."""
    import tiktoken

    lines = (line.split() for line in path.read_bytes().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    end = len(ranks)
    encoding = tiktoken.Encoding(
        path.stem, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={END: end}
    )
    return encoding, end


def load_tokenizers(path: Path) -> tuple[Any, int]:
    """A `tokenizers` tokenizer from a tokenizer.json, and its end-of-text id."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    return tokenizer, tokenizer.token_to_id(END)
