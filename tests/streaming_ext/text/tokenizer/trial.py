"""Every code point on both engines, to find those on which they split text differently.

The probes have a vocabulary of their own, in which every byte pair across an ASCII neighbour is a
token, so that each place where a text is split shows in the ids.

`python -m tests.streaming_ext.text.tokenizer.trial` writes the table of the package: what Unicode
14.0 left unassigned, by a Python 3.11, and what changed its class later.
"""

import json
import tempfile
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import decoders, pre_tokenizers

from streaming_ext.text.tokenizer import engine, fast_tokenizer
from streaming_ext.text.tokenizer.fast_tokenizer import BYTE_NAMES, fast_loader
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.text.tokenizer.rank_file import rank_file_bytes
from streaming_ext.text.tokenizer.tokenizer import Tokenizer

Encode = Callable[[str], Sequence[int] | npt.NDArray[np.uint32]]

NUM_CODE_POINTS = 0x110000
CHANGED_CLASS = [0x295]  # a lower-case letter until Unicode 16.0
BLOCK = 1024  # code points a text

# {c} is the code point. The lines tell apart the classes that a pattern can name: letter, number,
# space, anything else; upper case, lower case, mark; newline; contractions that ignore case; groups
# of three digits; what may stand before letters.
TEMPLATES = (
    *("a{c}a", "A{c}A", "{c}Aa", "1{c}1", "12{c}45", "!{c}!", "!!{c}a", "  {c}a", "{c}'s"),
    *("'{c}", "a'{c}e", "'r{c}A", "\n{c}\n"),
)
# The patterns of .tiktoken files that gigatoken knows.
RANK_PATTERNS = ("gpt2", "cl100k_base", "o200k_base")
# Those of a tokenizer.json; "" is GPT-2's own.
JSON_PATTERNS = {"byte_level": "", **fast_tokenizer.JSON_PATTERNS}


def edge_pairs() -> list[bytes]:
    """All byte pairs across a character's edge with ASCII on one side; ASCII on both comes last."""
    ascii_bytes, tails, leads = range(0x80), range(0x80, 0xC0), range(0xC2, 0xF5)
    pairs = [bytes((tail, a)) for tail in tails for a in ascii_bytes]
    pairs += [bytes((a, lead)) for a in ascii_bytes for lead in leads]
    return pairs + [bytes((a, b)) for a in ascii_bytes for b in ascii_bytes]


TOKENS = [*(bytes([byte]) for byte in range(256)), *edge_pairs()]


def rank_probe(pattern: str) -> Tokenizer:
    """A tokenizer of tiktoken that shows each split; others have no merges for rare letters."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "probe.tiktoken")
        path.write_bytes(rank_file_bytes({token: rank for rank, token in enumerate(TOKENS)}))
        return load_tokenizer(str(path), pattern=pattern)


def json_probe(pattern: str) -> Tokenizer:
    """A tokenizer.json that does."""
    names = ["".join(BYTE_NAMES[byte] for byte in token) for token in TOKENS]
    vocabulary = {name: id_ for id_, name in enumerate(names)}
    merges = [(name[0], name[1]) for name in names[256:]]
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    of_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)
    split = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")] if pattern else []
    model.pre_tokenizer = pre_tokenizers.Sequence([*split, of_bytes]) if split else of_bytes
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens(["<|endoftext|>"])
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/tokenizer.json")
        return load_tokenizer(f"{folder}/tokenizer.json")


def try_code_points(tokenizer: Tokenizer, *, end: int = NUM_CODE_POINTS) -> set[int]:
    """The code points below `end` on which gigatoken differs from a probe."""
    load = fast_loader(tokenizer)
    assert not isinstance(load, str), load
    return differing_code_points(tokenizer.encode, load().encode, end=end)


def differing_code_points(
    reference: Encode, fast: Encode, *, end: int = NUM_CODE_POINTS
) -> set[int]:
    """The code points below `end` on which two functions from texts to ids of probes differ."""
    full = "\n".join(TEMPLATES) + "\n"
    with_ascii = full + "".join(f"{chr(other)}{{c}}\n" for other in range(0x80))

    def differing(points: range, template: str) -> list[int]:
        text = "".join(template.replace("{c}", chr(point)) for point in points)
        if np.array_equal(fast(text), np.asarray(reference(text), np.uint32)):
            return []
        if len(points) == 1:
            return list(points)
        size = -(-len(points) // 8)
        chunks = [points[start : start + size] for start in range(0, len(points), size)]
        return [point for chunk in chunks for point in differing(chunk, template)]

    found = {
        point
        for start in range(0, 0x80, 16)
        for point in differing(range(start, start + 16), with_ascii)
    }
    for start in range(0, end, BLOCK):
        if not 0xD800 <= start < 0xE000:
            found |= {*differing(range(max(start, 0x80), start + BLOCK), full)}
    return found


def write_table() -> None:
    assert unicodedata.unidata_version == "14.0.0", "run it with Python 3.11"
    late = (p for p in range(NUM_CODE_POINTS) if unicodedata.category(chr(p)) == "Cn")
    ranges: list[list[int]] = []
    for point in sorted({*late, *CHANGED_CLASS}):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    engine.TABLE.write_text(json.dumps(ranges, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    write_table()
