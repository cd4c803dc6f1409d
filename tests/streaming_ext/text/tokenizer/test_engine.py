"""Every engine gives the ids of the reference."""

import json
import mmap
import random
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import EngineMismatchError
from streaming_ext.text.tokenizer import engine
from streaming_ext.text.tokenizer.engine import (
    Encoded,
    Engine,
    FastEngine,
    ReferenceEngine,
    audit_sample,
    choose_engine,
)
from streaming_ext.text.tokenizer.fast_tokenizer import (
    SPACES,
    fast_model,
    saved_fast_model,
)
from streaming_ext.text.tokenizer.load import load_tokenizer, open_saved
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.text.tokenizer.unsafe_texts import unsafe_ranges
from tests.streaming_ext.text.tokenizer.trial import (
    PLAIN_MODEL,
    PROBES,
    TEMPLATES,
    hard_texts,
    json_probe,
    rank_probe,
    spaces_probe,
)
from tests.tokenizers import BYTES, load_json, load_ranks, train_model


def arrow(texts: list[str]) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


def check_all(tokenizer: Tokenizer, fast: Engine, texts: pa.LargeStringArray) -> Encoded:
    """Encode texts, and compare every document with the reference."""
    encoded = fast.encode(texts)
    assert encoded.ids.dtype == np.uint32
    assert encoded.offsets.dtype == np.int64
    assert len(encoded.offsets) == len(texts) + 1
    assert encoded.offsets[0] == 0
    assert encoded.offsets[-1] == len(encoded.ids)
    audit_sample(tokenizer, texts, encoded, range(len(texts)))
    assert tokenizer.eot_id not in encoded.ids
    return encoded


def fast_of(tokenizer: Tokenizer) -> FastEngine:
    chosen = choose_engine(tokenizer, engine="auto")
    assert isinstance(chosen, FastEngine), chosen.reason
    return chosen


@pytest.fixture(scope="session")
def fast(tokenizer: Tokenizer) -> FastEngine:
    return fast_of(tokenizer)


@pytest.fixture(
    scope="session",
    params=PROBES,
    ids=lambda of: f"{of[0].__name__}-{of[1]}",
)
def sharp(request: pytest.FixtureRequest) -> tuple[Tokenizer, FastEngine]:
    """A tokenizer of each known pattern that shows every split, and its engine."""
    probe, name = request.param
    made = probe(name)
    return made, fast_of(made)


UNSAFE = [
    chr(point)
    for start, end in unsafe_ranges()
    for point in (start, end)
    if not 0xD800 <= point < 0xE000
]


# Fragments around contractions, digits, spaces and marks.
HARD = [
    *("'s", "'S", "'re", "'", "\u017f", "'\u017f", "12", "1234", " ", "  ", "\n", "\r\n", "\t"),
    *("\u00a0", "\u3000", "\u0085", "\x00", "/", "!", "a", "1", "A", "Ab", "<|endoftext|>"),
    *("\u0301", "\u0903", "\u200d", "ǅ", "ʰ", "\U0001f600"),
]


def test_ids_are_those_of_the_reference(sharp: tuple[Tokenizer, FastEngine]) -> None:
    tokenizer, chosen = sharp
    rng = random.Random(7)
    texts = []
    for _ in range(1500):
        points = [rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x20000)))]
        points += [rng.randrange(0x3000) for _ in range(3)]
        fragments = [*map(chr, points), *rng.choices(HARD, k=8)]
        if rng.random() < 0.2:
            fragments.append(rng.choice(UNSAFE))
        rng.shuffle(fragments)
        texts.append("".join(fragments[: rng.randrange(14)]))
    check_all(tokenizer, chosen, arrow(texts))


def test_an_unsafe_code_point_would_be_wrong_without_the_reference() -> None:
    tokenizer = rank_probe("o200k_base")
    careless, careful = fast_of(tokenizer), fast_of(tokenizer)
    careless._unsafe = None
    for point in (0x295, 0x88F, 0x10940, 0x323B0):
        texts = arrow([template.replace("{c}", chr(point)) for template in TEMPLATES])
        with pytest.raises(EngineMismatchError):
            audit_sample(tokenizer, texts, careless.encode(texts), range(len(texts)))
        check_all(tokenizer, careful, texts)


def test_unsafe_code_points_are_found_in_text_that_was_normalized() -> None:
    """NFC of another Unicode version may reorder code points, but never makes them disappear."""
    chosen = fast_of(json_probe("byte_level+nfc"))
    versions = {package: version(package) for package in ("gigatoken", "tokenizers")}
    ranges = unsafe_ranges(versions)
    points = [p for start, end in ranges for p in range(start, min(end, start + 2000) + 1)]
    texts = arrow([f"e\u0345{chr(point)}\u0301" for point in points])
    encoded = chosen._encode_all(*engine.text_buffers(texts))
    found = chosen._unsafe.rows(encoded.ids, encoded.offsets)
    assert found.tolist() == [*range(len(points))]


ODD = {
    "empty": "",
    "nul": "\x00",
    "mark": "\u0301",
    "end of text": "<|endoftext|>" * 100,
    "letter": "a" * 300_000,
    "mixed": "ab1'" * 50_000,
    "spaces": " " * 100_000 + "x",
    "newlines": "\n" * 100_000,
    "two bytes": "é" * 100_000,
    "no space": "".join(chr(97 + i * i % 26) for i in range(200_000)),
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_odd_documents_between_empty_ones(text: str, tokenizer: Tokenizer, fast: Engine) -> None:
    encoded = check_all(tokenizer, fast, arrow(["", text, "", "it's", ""]))
    assert np.diff(encoded.offsets).tolist()[::2] == [0, 0, 0]


def test_slices_and_empty_batches(tokenizer: Tokenizer, fast: Engine) -> None:
    odd = UNSAFE[0]
    texts = ["abc", f"x{odd}'s", "", "déjà vu", odd, "end", f"{odd}1"]
    array = arrow(texts)
    whole = check_all(tokenizer, fast, array)
    for start in range(len(texts) + 1):
        for end in range(start, len(texts) + 1):
            encoded = check_all(tokenizer, fast, array[start:end])
            expected = whole.ids[whole.offsets[start] : whole.offsets[end]]
            assert encoded.ids.tolist() == expected.tolist()
    check_all(tokenizer, fast, arrow([]))
    check_all(tokenizer, ReferenceEngine(tokenizer), arrow([]))


def test_the_audit_names_the_document(tokenizer: Tokenizer) -> None:
    texts = arrow(["one", "two words and more"])
    encoded = ReferenceEngine(tokenizer).encode(texts)
    audit_sample(tokenizer, texts, encoded, [0, 1])
    wrong = encoded.ids.copy()
    wrong[encoded.offsets[1] + 2] += 1
    changed = Encoded(wrong, encoded.offsets)
    audit_sample(tokenizer, texts, changed, [0])
    with pytest.raises(EngineMismatchError, match="Document 1: .* differ"):
        audit_sample(tokenizer, texts, changed, [1])
    shorter = Encoded(encoded.ids[:-1], encoded.offsets - np.array([0, 0, 1]))
    with pytest.raises(EngineMismatchError, match="differ"):
        audit_sample(tokenizer, texts, shorter, [1])


def test_a_fresh_tokenizer_begins_before_caches_grow_for_ever(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MAX_GROWTH_BYTES", -1)
    monkeypatch.setattr(engine, "own_bytes", lambda: 1)
    fast, seen = fast_of(tokenizer), []
    for number in range(5):
        check_all(tokenizer, fast, arrow([f"batch {number} " * 60]))
        seen.append(fast._gigatoken)
    assert len({id(each) for each in seen}) > 1


def test_a_mapped_file_is_no_growth(tmp_path: Path) -> None:
    """Training maps tokens beside the engine, which need not start again for them."""
    size = 64 << 20
    (tmp_path / "tokens").write_bytes(bytes(size))
    before = engine.own_bytes()
    with (tmp_path / "tokens").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
    assert sum(mapped[:: mmap.PAGESIZE]) == 0
    assert engine.own_bytes() - before < size // 4


def test_the_choice_has_a_name_and_a_reason(
    tokenizer: Tokenizer, fast: Engine, tmp_path: Path
) -> None:
    assert fast.name.startswith("gigatoken ")
    by_request = choose_engine(tokenizer, engine="reference")
    assert (by_request.name.split()[0], by_request.reason) == ("tiktoken", "it was asked for")

    other = load_ranks(tmp_path / "x.tiktoken", BYTES, pattern=r"\S+|\s+")
    assert "no scheme" in choose_engine(other, engine="auto").reason


GAPS = {**{token: 300 - rank for token, rank in BYTES.items()}, b"abc": 50257, b"de": 400}
WHOLE = {**BYTES, b"ab": 256, b"abcd": 257, b"de": 258}  # as in the rank file of Qwen 3.6


@pytest.mark.parametrize(
    ("name", "pattern", "ranks", "word"),
    [
        ("p50k_base", None, GAPS, "abc"),
        *(("x", pattern, WHOLE, "abcd") for pattern in ("gpt2", "o200k_base", "qwen35")),
    ],
)
def test_words_that_no_merges_make(
    name: str, pattern: str | None, ranks: dict[bytes, int], word: str, tmp_path: Path
) -> None:
    """tiktoken finds `word` as a whole; in `xword` it stays several tokens."""
    tokenizer = load_ranks(tmp_path / f"{name}.tiktoken", ranks, pattern=pattern)
    texts = [word, f"x{word}", f"{word}e", "dedededede", f"{word} d", "de ab"]
    encoded = check_all(tokenizer, fast_of(tokenizer), arrow(texts))
    assert encoded.ids[0] == ranks[word.encode()]
    assert (encoded.ids == ranks[word.encode()]).sum() == 2


ADDED = ["<|im_start|>", "<think>", "</think>", "   ", "\uff5cX\uff5c", "<|", "|>end"]


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("normalizer", [None, "NFC", []])
def test_added_tokens_are_found_wherever_they_stand(
    normalizer: Any, normalized: bool, tokenizer_json: str, tmp_path: Path
) -> None:
    """Special ones remain text, and hide what overlaps them."""
    config = json.loads(tokenizer_json)
    joins = re.compile(
        r"[^\x00-\x7f]" + r"|[a-z<>]\Z" * normalized if normalizer == "NFC" else r"(?!)"
    )
    added = [token for token in ADDED if not joins.search(token)]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    config["added_tokens"] += [
        {**flags, "id": 2000 + n, "content": text, "special": n == 0, "normalized": normalized}
        for n, text in enumerate(added)
    ]
    if normalizer is not None:
        config["normalizer"] = {
            "NFC": {"type": "NFC"},
            "[]": {"type": "Sequence", "normalizers": []},
        }[str(normalizer)]
    tokenizer = load_json(tmp_path / "tokenizer.json", json.dumps(config))
    texts = [
        *hard_texts(random.Random(3), 400, [*added, "<|endoftext|>", "<pad>"]),
        "<|im_start|>",
        "a<think>b   c</think>\u0338",
        "a<|endoftext|>b <pad>",
    ]
    encoded = check_all(tokenizer, fast_of(tokenizer), arrow(texts))
    special, *found = map(tokenizer.model.token_to_id, added)  # type: ignore[attr-defined]
    assert special not in encoded.ids
    assert {*found} <= {*encoded.ids}


@pytest.mark.parametrize("name", SPACES)
def test_vocabularies_of_sentencepiece(name: str, tmp_path: Path) -> None:
    tokenizer = spaces_probe(name, tmp_path)
    written = [token["content"] for token in tokenizer.config["added_tokens"]]  # type: ignore[attr-defined]
    texts = [*hard_texts(random.Random(4), 400, written), "", " ", "  a", "<tool> x", "x " * 20_000]
    texts += ["x" * 100_000, " " * 5_000 + "a"]
    encoded = check_all(tokenizer, fast_of(tokenizer), arrow(texts))
    assert tokenizer.model.token_to_id("<tool>") in encoded.ids  # type: ignore[attr-defined]


def test_white_space_at_the_end_with_the_pattern_of_olmo() -> None:
    tokenizer = json_probe("olmo")
    chosen = fast_of(tokenizer)
    ends = [
        text + end
        for text in ("", "a", "a \n")
        for end in ("\n ", " \n\u3000", "\n", " ", "\r\t\n ")
    ]
    texts = arrow(ends)
    check_all(tokenizer, chosen, texts)
    data, offsets = engine.text_buffers(texts)
    with pytest.raises(EngineMismatchError):  # without the search, ids differ
        audit_sample(tokenizer, texts, chosen._encode_all(data, offsets), range(len(texts)))


@pytest.mark.parametrize("kind", ["ranks", "json", "model"])
def test_the_first_worker_chooses_and_others_trust_what_it_saved(kind: str, tmp_path: Path) -> None:
    if kind == "model":
        tokenizer = load_tokenizer(train_model(tmp_path / "small.model", **PLAIN_MODEL))
    else:
        tokenizer = rank_probe("llama3") if kind == "ranks" else json_probe("deepseek")
    tokenizer.save(tmp_path)
    opened = open_saved(tmp_path, trusted=True)
    assert opened == tokenizer == open_saved(tmp_path)
    assert saved_fast_model(tmp_path) is None
    for _ in range(2):
        chosen = choose_engine(opened, engine="auto", saved=tmp_path)
        assert isinstance(chosen, FastEngine), chosen.reason
        check_all(opened, chosen, arrow([*hard_texts(random.Random(5), 50, ["</s>"])]))
        assert saved_fast_model(tmp_path) == fast_model(tokenizer)
    (tmp_path / "gigatoken.json").write_text('{"reason": "of a reason"}\n')
    assert choose_engine(opened, engine="auto", saved=tmp_path).reason == "of a reason"
    assert isinstance(choose_engine(opened, engine="reference", saved=tmp_path), ReferenceEngine)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"normalizer": {"type": "NFKC"}}, "another way than NFC"),
        (
            {
                "pre_tokenizer": {
                    "type": "ByteLevel",
                    "add_prefix_space": True,
                    "trim_offsets": True,
                    "use_regex": True,
                }
            },
            "pre-tokenizer",
        ),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre-tokenizer"),
        ({"special": False, "lstrip": True}, "strip spaces"),
        ({"special": False, "single_word": True}, "are words"),
        ({"special": False, "content": "é", "normalizer": {"type": "NFC"}}, "normalized text"),
    ],
)
def test_other_tokenizer_jsons_go_to_the_reference(
    changes: dict[str, Any], reason: str, tokenizer_json: str, tmp_path: Path
) -> None:
    config = json.loads(tokenizer_json)
    for name, value in changes.items():
        (config if name in config else config["added_tokens"][1])[name] = value
    tokenizer = load_json(tmp_path / "tokenizer.json", json.dumps(config))
    chosen = choose_engine(tokenizer, engine="auto")
    assert chosen.name.startswith("tokenizers ")
    assert reason in chosen.reason
    check_all(tokenizer, chosen, arrow(["Hello, it's 5", "", "<|endoftext|>"]))


def test_real_text(real_data: Path) -> None:
    tokenizer = load_tokenizer(str(real_data / "vocab/r50k_base.tiktoken"))
    fast = fast_of(tokenizer)
    paths = sorted((real_data / "parquet").glob("*.parquet"))
    assert paths
    for path in paths:
        table = pq.read_table(path, columns=["text"])
        texts = pa.concat_arrays(table["text"].cast(pa.large_string()).chunks)
        check_all(tokenizer, fast, texts[:200])
