"""Run every code point on both engines, to find those on which they split text differently.

The vocabulary of the probes has every byte pair across an ASCII neighbour as a token, so each
split of a text shows in the ids.

The table of the package holds the code points that Unicode 14.0 left unassigned, those whose class
changed later, and marks that not all tables of NFC know. `python -m
tests.streaming_ext.text.tokenizer.trial` writes it again after a new version of Unicode, as the
package `regex` knows it: code points that it assigns are no longer listed as unassigned.
"""

import json
import random
import tempfile
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import regex
import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers

from streaming_ext.base.arrays import ceil_div
from streaming_ext.text.tokenizer.fast_tokenizer import BYTE_NAMES, JSON_SPLITS, SPACES, fast_model
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.text.tokenizer.model_json import json_of_model
from streaming_ext.text.tokenizer.rank_file import PATTERNS, rank_file_bytes
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.text.tokenizer.unsafe_texts import TABLE, unsafe_ranges
from tests.tokenizers import train_model

NUM_CODE_POINTS = 0x110000
FIRST_PLANE = 0x10000  # code points; most texts hold no others
# A SentencePiece model whose ids gigatoken reproduces.
PLAIN_MODEL = {
    "model_type": "bpe",
    "vocab_size": 600,
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,
}
BLOCK = 1024  # code points per text

# {c} is the code point. The lines tell apart the classes that a pattern can name: letter, number,
# space, anything else; upper case, lower case, mark; newline; contractions that ignore case; groups
# of three digits; what may stand before letters.
TEMPLATES = (
    *("a{c}a", "A{c}A", "{c}Aa", "1{c}1", "12{c}45", "!{c}!", "!!{c}a", "  {c}a", "{c}'s"),
    *("'{c}", "a'{c}e", "'r{c}A", "\n{c}\n"),
)
# NFC may reorder or join these, next to marks and parts of syllables; {d} is decomposed.
JOINED = (
    *(
        "{d}",
        "e{c}",
        "e\u0345{c}",
        "e{c}\u0334",
        "{c}\u0301",
        "{c}\u3099",
        "\uac00{c}",
        "\u1100{c}",
    ),
    *("{c}\u1161", "{c}\u11a8", "e\u0301{c}\u0323", "\u09c7{c}", "\u0dd9{c}"),
)


# Texts around the code points and tokens that are split, joined, reordered or looked for.
_PHRASES = (
    *("It's 12345.67, isn't it?", "Ünïcode naïve façade", "Привет, мир", "हिन्दी में लिखें", "ภาษาไทย"),
    *(
        "漢字かな交じり文",
        "한국어 문장",
        "Tiếng Việt",
        "مرحبا بالعالم",
        "Ελληνικά",
        "<table><tr>",
        "</div>\n",
    ),
)
_ODD = (
    *"\u00a0\u1680\u2009\u2028\u3000\u0085\t\v\x00\u200b\u200c\u200d\ufe0f\u2581\ufeff\u0338\u0345",
    *"\u0301\u0323\u094d\u09be\u1161\u11a8\ue000\U000f0000\U0010fffd\u212a\u037e\u2126\u0344\U0001d15e",
    *("\n\n", "\r\n", "   ", " ", "\n ", "1", "1234", "'S", "a", "K", "<", ">"),
)


def hard_texts(rng: random.Random, count: int, written: Sequence[str]) -> Iterator[str]:
    """Yield texts that engines may read differently.

    They are composed and decomposed, and hold odd spaces, joiners, private and unassigned code
    points, and tokens that are written out, whole or in part.
    """
    points = [point for start, end in unsafe_ranges() for point in (start, end)]
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 16)):
            phrase = rng.choice(_PHRASES)
            token = rng.choice(written)
            cut = rng.randrange(len(token) + 1)
            point = rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x20000)))
            parts += rng.choice(
                (
                    [phrase[rng.randrange(len(phrase)) :]],
                    [unicodedata.normalize(rng.choice(("NFC", "NFD")), phrase)],
                    rng.choices(_ODD, k=3),
                    [rng.choice((token, token[:cut], token[cut:]))],
                    [chr(point)],
                    [chr(rng.choice(points))] if rng.random() < 0.05 else [],
                    [rng.choice(_ODD) * rng.randrange(40)],
                )
            )
        yield "".join(parts)


def edge_pairs() -> list[bytes]:
    """Return the byte pairs across a character's edge with ASCII on one side, then on both."""
    ascii_bytes, tails, leads = range(0x80), range(0x80, 0xC0), range(0xC2, 0xF5)
    pairs = [bytes((tail, a)) for tail in tails for a in ascii_bytes]
    pairs += [bytes((a, lead)) for a in ascii_bytes for lead in leads]
    return pairs + [bytes((a, b)) for a in ascii_bytes for b in ascii_bytes]


TOKENS = [*(bytes([byte]) for byte in range(256)), *edge_pairs()]


def rank_probe(pattern: str) -> Tokenizer:
    """Return a tiktoken tokenizer that shows each split; others have no merges for rare letters."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "probe.tiktoken")
        path.write_bytes(rank_file_bytes({token: rank for rank, token in enumerate(TOKENS)}))
        return load_tokenizer(str(path), pattern=pattern)


def json_probe(name: str) -> Tokenizer:
    """Return a tokenizer.json that shows each split by a name, with NFC if "+nfc" follows it."""
    splits, _, normalizer = name.partition("+")
    names = ["".join(BYTE_NAMES[byte] for byte in token) for token in TOKENS]
    vocabulary = {name: id_ for id_, name in enumerate(names)}
    merges = [(name[0], name[1]) for name in names[256:]]
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    patterns = [tokenizers.Regex(pattern) for pattern in JSON_SPLITS[splits]]
    of_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not patterns)
    split = [pre_tokenizers.Split(pattern, "isolated") for pattern in patterns]
    model.pre_tokenizer = pre_tokenizers.Sequence([*split, of_bytes]) if split else of_bytes
    if normalizer:
        model.normalizer = normalizers.NFC()
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens(["<|endoftext|>"])
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/tokenizer.json")
        return load_tokenizer(f"{folder}/tokenizer.json")


# Probes of each pattern that gigatoken knows, in rank files and in a tokenizer.json.
PROBES = [
    *((rank_probe, name) for name in PATTERNS if name not in ("r50k_base", "p50k_base", "llama4")),
    *((json_probe, name) for name in (*JSON_SPLITS, "byte_level+nfc", "qwen2+nfc")),
]


def spaces_probe(name: str, folder: Path) -> Tokenizer:
    """Return a tokenizer.json with a small SentencePiece vocabulary and added tokens."""
    path = train_model(folder / "small.model", **PLAIN_MODEL)
    config = json_of_model(Path(path).read_bytes())
    assert not isinstance(config, str), config
    normalizers_, pre_tokenizer = SPACES[name]
    added = ["</s>", "<tool>", "\n\n", "<t", "a\u2581" if name == "gemma" else "\u00a0"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    config["model"]["vocab"] |= {"</s>": 5000}
    config |= {
        "version": "1.0",
        "normalizer": {"type": "Sequence", "normalizers": normalizers_},
        "pre_tokenizer": pre_tokenizer,
        "added_tokens": [
            {**flags, "id": 5000 + number, "content": content, "special": number == 0}
            for number, content in enumerate(added)
        ],
    }
    (folder / "tokenizer.json").write_text(json.dumps(config))
    return load_tokenizer(str(folder / "tokenizer.json"))


def try_code_points(tokenizer: Tokenizer, points: Sequence[int]) -> set[int]:
    """Return the code points among these on which gigatoken differs from a probe."""
    model = fast_model(tokenizer)
    assert not isinstance(model, str), model
    fast, reference = model.load().encode, tokenizer.encode
    full = "\n".join((*TEMPLATES, *JOINED)) + "\n"
    with_ascii = full + "".join(f"{chr(other)}{{c}}\n" for other in range(0x80))

    def differing(points: Sequence[int], template: str) -> list[int]:
        text = "".join(
            template.replace("{c}", char).replace("{d}", unicodedata.normalize("NFD", char))
            for char in map(chr, points)
        )
        if np.array_equal(fast(text), np.asarray(reference(text), np.uint32)):
            return []
        if len(points) == 1:
            return list(points)
        size = ceil_div(len(points), 8)
        chunks = [points[start : start + size] for start in range(0, len(points), size)]
        return [point for chunk in chunks for point in differing(chunk, template)]

    found = {
        point
        for start in range(0, 0x80, 16)
        for point in differing(range(start, start + 16), with_ascii)
    }
    for start in range(0, len(points), BLOCK):
        found |= {*differing(points[start : start + BLOCK], full)}
    return found


def write_table() -> None:
    table: dict[str, list[list[int]]] = {"changed": [], "unassigned": []}
    for point in [point for start, end in unsafe_ranges() for point in range(start, end + 1)]:
        is_unassigned = point < FIRST_PLANE and regex.match(r"\p{Cn}", chr(point))
        ranges = table["unassigned" if is_unassigned else "changed"]
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    TABLE.write_text(json.dumps(table, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    write_table()
