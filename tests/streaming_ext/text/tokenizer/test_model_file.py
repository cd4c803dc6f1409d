"""A SentencePiece model gives the library's ids, survives saving, and is refused if broken."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sentencepiece

from streaming_ext.base.errors import TokenizerError
from streaming_ext.text.tokenizer.engine import choose_engine
from streaming_ext.text.tokenizer.load import load_tokenizer, open_saved
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tests.streaming_ext.text.tokenizer.trial import PLAIN_MODEL, hard_texts
from tests.tokenizers import train_model

KINDS: dict[str, dict[str, Any]] = {
    "unigram": {"model_type": "unigram", "vocab_size": 400, "byte_fallback": True},
    "bpe": {"model_type": "bpe", "vocab_size": 400, "byte_fallback": True},
    "plain": PLAIN_MODEL,
    "no_bytes": {"model_type": "bpe", "vocab_size": 150},
    "own_symbols": {
        "model_type": "unigram",
        "vocab_size": 400,
        "byte_fallback": True,
        "user_defined_symbols": ["<tool>"],
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
}


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return train_model(tmp_path_factory.mktemp("model") / "small.model", **KINDS[request.param])


@pytest.fixture(scope="module")
def both(model: str) -> tuple[Tokenizer, Any]:
    """The tokenizer, and the library's own processor of the same file."""
    return load_tokenizer(model), sentencepiece.SentencePieceProcessor(model_file=model)


def test_ids_are_those_of_the_library(
    both: tuple[Tokenizer, Any], request: pytest.FixtureRequest
) -> None:
    tokenizer, library = both
    rng = random.Random(5)
    points = [p for p in rng.sample(range(0x110000), 20_000) if not 0xD800 <= p < 0xE000]
    texts = ["".join(map(chr, points[start : start + 20])) for start in range(0, len(points), 20)]
    odd = [*"a \n\t\u00a0\u2581é漢😀\x00", "</s>", "<unk>", "<s>", "<tool>", "<0x41>"]
    texts += ["".join(rng.choices(odd, k=rng.randrange(12))) for _ in range(1000)]
    texts += ["", " ", "\n" * 5000, "ab " * 100_000, "é" * 50_000, "x" * 50_000]
    texts += [" " * size + end for size in range(200) for end in ("", "a")]
    texts += hard_texts(rng, 300, ["</s>", "<unk>", "<0x41>"])
    engine = choose_engine(tokenizer, engine="auto")
    follows = "plain" in request.node.name
    assert engine.name.startswith("gigatoken " if follows else "sentencepiece "), engine.reason
    encoded = engine.encode(pa.array(texts, pa.large_string()))
    assert tokenizer.eot_id not in encoded.ids
    for row, text in enumerate(texts):
        ids = encoded.ids[encoded.offsets[row] : encoded.offsets[row + 1]].tolist()
        assert ids == library.EncodeAsIds(text)


def test_special_tokens_are_text_and_end_of_text_is_the_models(
    both: tuple[Tokenizer, Any],
) -> None:
    tokenizer, library = both
    assert (tokenizer.eot_id, tokenizer.eot_token) == (library.eos_id(), "</s>")
    assert tokenizer.vocab_size == library.GetPieceSize()
    assert tokenizer.eot_id not in tokenizer.encode("a</s>b </s><s>")
    ids = tokenizer.encode("the lazy dogs")
    assert tokenizer.decode_bytes([*ids, tokenizer.eot_id]) == b"the lazy dogs</s>"
    assert tokenizer.decode_bytes([]) == b""


def test_what_is_saved_is_the_model(model: str, tmp_path: Path) -> None:
    load_tokenizer(model).save(tmp_path)
    saved, content = tmp_path / "tokenizer.model", Path(model).read_bytes()
    assert saved.read_bytes() == content
    saved.write_bytes(content[:-40])
    with pytest.raises(TokenizerError, match=r"tokenizer\.model|damaged"):
        open_saved(tmp_path)


@pytest.mark.parametrize("data", [b"", b"junk", b"\x00" * 1000, None])
def test_a_broken_model_is_one_line(data: bytes | None, model: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.model"
    path.write_bytes(Path(model).read_bytes()[:500] if data is None else data)
    with pytest.raises(TokenizerError, match=r"broken\.model") as raised:
        load_tokenizer(str(path))
    assert "\n" not in str(raised.value)
    with pytest.raises(TokenizerError, match="No such file"):
        load_tokenizer(str(tmp_path / "none.model"))


def test_a_model_without_an_end_of_text_needs_its_name(tmp_path: Path) -> None:
    options = {**KINDS["bpe"], "eos_id": -1, "control_symbols": ["<doc_end>", "<pad>"]}
    path = train_model(tmp_path / "no_eos.model", **options)
    with pytest.raises(TokenizerError, match=r"no known end-of-text.*'<doc_end>'.*--eot-token"):
        load_tokenizer(path)
    with pytest.raises(TokenizerError, match="no special token 'the'"):
        load_tokenizer(path, eot_token="the")
    named, other = (load_tokenizer(path, eot_token=name) for name in ("<doc_end>", "<pad>"))
    assert named.decode_bytes([named.eot_id]) == b"<doc_end>"
    assert named.eot_id not in named.encode("<doc_end>")
    assert named.fingerprint != other.fingerprint
