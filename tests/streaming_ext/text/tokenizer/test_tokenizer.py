"""A tokenizer gives the reference's ids, survives saving, and refuses what it cannot honour."""

import base64
import copy
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import processors

from streaming_ext.base.errors import EngineMismatchError, TokenizerError, UsageError
from streaming_ext.text.tokenizer import rank_file
from streaming_ext.text.tokenizer.load import TOKENIZER_FILES, load_tokenizer, open_saved
from streaming_ext.text.tokenizer.rank_file import GPT2_PATTERN, KNOWN_ENCODINGS, rank_file_bytes
from streaming_ext.text.tokenizer.tokenizer import Tokenizer, canonical_json
from tests.streaming_ext.text.reading import POINTER
from tests.tokenizers import BYTES, RANKS, load_json, load_ranks, train_model, write_ranks


def test_merges_by_rank_and_takes_special_tokens_for_text(tmp_path: Path) -> None:
    tokenizer = load_ranks(tmp_path / "x.tiktoken", pattern="gpt2")
    assert tokenizer.encode("hello") == [258, ord("o")]
    assert tokenizer.encode("<|endoftext|>") == list(b"<|endoftext|>")
    assert (tokenizer.eot_id, tokenizer.vocab_size) == (259, 260)
    assert tokenizer.decode_bytes([258, 111, 259]) == b"hello<|endoftext|>"
    assert tokenizer.name == "x.tiktoken"


@pytest.mark.parametrize("kind", TOKENIZER_FILES)
def test_saves_the_same_bytes_each_time_and_opens_them(
    tokenizer: Tokenizer, tokenizer_json: str, tmp_path: Path, kind: str
) -> None:
    if kind == "huggingface":
        tokenizer = load_json(tmp_path / "tokenizer.json", tokenizer_json)
    elif kind == "sentencepiece":
        model = train_model(tmp_path / "x.model", model_type="bpe", vocab_size=300)
        tokenizer = load_tokenizer(model)
    tokenizer.save(tmp_path / "a")
    opened = open_saved(tmp_path / "a")
    assert opened == tokenizer
    assert opened.encode("It's 12345") == tokenizer.encode("It's 12345")
    opened.save(tmp_path / "b")
    saved, again = (
        {file.name: file.read_bytes() for file in (tmp_path / folder).iterdir()} for folder in "ab"
    )
    assert saved == again
    assert saved.keys() == {*TOKENIZER_FILES[kind]}


def test_refuses_what_was_saved_and_then_changed(tmp_path: Path) -> None:
    load_ranks(tmp_path / "x.tiktoken", pattern="gpt2").save(tmp_path / "s")
    write_ranks(tmp_path / "s" / "ranks.tiktoken", {**BYTES, b"he": 256, b"lo": 257, b"hell": 258})
    with pytest.raises(TokenizerError, match="damaged"):
        open_saved(tmp_path / "s")
    (tmp_path / "s" / "tokenizer_spec.json").write_text("{}")
    with pytest.raises(TokenizerError, match="not a saved tokenizer"):
        open_saved(tmp_path / "s")


def test_fingerprint_names_what_decides_the_ids(tmp_path: Path) -> None:
    gpt2 = load_ranks(tmp_path / "gpt2.tiktoken")
    r50k = load_ranks(tmp_path / "r50k_base.tiktoken")
    assert gpt2.fingerprint == r50k.fingerprint
    # The value is pinned: a change here makes every published dataset look foreign.
    assert gpt2.fingerprint == "4ff2dc2fcc9ed85fa2c78e55fd0802bd7782506cc6eeb5450dd2fef2d7d672e4"
    path = str(tmp_path / "gpt2.tiktoken")
    swapped = {**RANKS, b"he": 257, b"ll": 256}
    others = [
        load_tokenizer(path, pattern="cl100k_base"),
        load_tokenizer(path, pattern="gpt2"),  # another end-of-text id
        load_tokenizer(path, pattern="gpt2", eot_token="<eos>"),
        load_ranks(tmp_path / "swapped.tiktoken", swapped, pattern="gpt2"),
    ]
    assert len({gpt2.fingerprint, *(other.fingerprint for other in others)}) == 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has 0 bytes"),
        (b"IQ== 0\n!!! 1\n", "is no rank file"),
        (b"IQ==\n", "is no rank file"),
        (b"IQ== 0\nIg== 0\n", "repeats a token or a rank"),
        (b"IQ== 0\nIQ== 1\n", "repeats a token or a rank"),
        (rank_file_bytes({**BYTES, b"he": -1}), "ranks that are no ids"),
        (rank_file_bytes({**BYTES, b"he": 99999999999}), "ranks that are no ids"),
        (b"IQ== 0\n", "no rank for 255 of the 256 single bytes"),
        (b"\x00\xff\x93binary", "is no rank file"),
    ],
)
def test_bad_rank_files_are_named(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.tiktoken"
    path.write_bytes(data)
    with pytest.raises(TokenizerError) as error:
        load_tokenizer(str(path), pattern="gpt2")
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["gpt2.tiktoken", "x.json", "tokenizer.model", "saved"])
def test_pointers_of_git_lfs_are_named(name: str, tmp_path: Path, tokenizer_json: str) -> None:
    path = tmp_path / name
    if name == "saved":
        load_json(tmp_path / "tokenizer.json", tokenizer_json).save(path)
        (path / "tokenizer.json").write_bytes(POINTER)
    else:
        path.write_bytes(POINTER)
    with pytest.raises(UsageError, match="a pointer of Git LFS.*`git lfs pull`"):
        open_saved(path) if name == "saved" else load_tokenizer(str(path), pattern=None)
    (tmp_path / "tokenizer_config.json").write_bytes(POINTER)
    with pytest.raises(UsageError, match=r"tokenizer_config\.json: a pointer"):
        load_json(tmp_path / "tokenizer.json", tokenizer_json)


def test_huge_and_missing_files_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "huge.tiktoken").open("wb") as file:
        file.truncate(1 << 40)
    for name, said in (
        ("huge.tiktoken", "has 1099511627776 bytes"),
        ("none.tiktoken", "No such file"),
        ("none.json", "No such file"),
    ):
        with pytest.raises(TokenizerError, match=said):
            load_tokenizer(str(tmp_path / name))


def test_a_rank_file_of_another_name_needs_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "mine.tiktoken"
    with pytest.raises(TokenizerError, match="Pass `pattern`"):
        load_ranks(path)
    assert load_ranks(path, pattern=r"\S+|\s+").encode("he ll") == [256, 32, 257]
    for broken in ("(", r"\p{L}*|[^\p{L}]"):  # tiktoken panics on a match of nothing
        with pytest.raises(TokenizerError, match="tiktoken refuses"):
            load_ranks(path, pattern=broken)
    for lossy, meant in ((r"\w+", ""), (".", ""), ("gpt-2", " Did you mean gpt2?")):
        with pytest.raises(TokenizerError, match="tiktoken drops the characters") as refused:
            load_ranks(path, pattern=lossy)
        assert str(refused.value).endswith(f"qwen35.{meant}")


@pytest.mark.parametrize(
    ("family", "eot", "size"),
    [
        ("llama3", "<|end_of_text|>", 256),
        ("llama4", "<|end_of_text|>", 2048),
        ("qwen2", "<|endoftext|>", 208),
        ("qwen35", "<|endoftext|>", 33),
    ],
)
def test_rank_files_of_meta_and_qwen(
    family: str, eot: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pattern or the content names the family; Meta calls these files tokenizer.model."""
    path = tmp_path / "tokenizer.model"
    named = load_ranks(path, pattern=family)
    assert (named.eot_token, named.vocab_size) == (eot, len(RANKS) + size)
    assert named.eot_id >= len(RANKS)
    assert named.pattern == rank_file.PATTERNS[family]
    digest = hashlib.sha256(rank_file_bytes(RANKS)).hexdigest()
    monkeypatch.setitem(rank_file._CONTENTS, digest, family)
    known = load_ranks(path)
    assert known == named
    begin = "<|im_start|>" if family.startswith("qwen") else "<|begin_of_text|>"
    assert load_tokenizer(str(path), bos_token=begin).bos_id is not None
    known.save(tmp_path / "saved")
    assert open_saved(tmp_path / "saved") == known


def test_a_tekken_json(tmp_path: Path) -> None:
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for token, rank in {**RANKS, b"beyond": len(RANKS)}.items()
    ]
    config = {
        "pattern": rank_file.TEKKEN_PATTERN,
        "default_vocab_size": len(RANKS) + 10,
        "default_num_special_tokens": 10,
    }
    path = tmp_path / "tekken_1.json"
    path.write_text(json.dumps({"config": config, "vocab": vocab}))
    tokenizer = load_tokenizer(str(path), bos_token="<s>")
    assert (tokenizer.eot_id, tokenizer.bos_id, tokenizer.vocab_size) == (2, 1, len(RANKS) + 10)
    assert tokenizer.encode("hello</s>") == [268, *(10 + byte for byte in b"o</s>")]
    tokenizer.save(tmp_path / "saved")
    assert open_saved(tmp_path / "saved") == tokenizer
    special = [{"rank": 0, "token_str": "<end>"}]
    path.write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": special}))
    assert load_tokenizer(str(path), eot_token="<end>").eot_id == 0
    path.write_text("{}")
    with pytest.raises(TokenizerError, match="is not a tekken"):
        load_tokenizer(str(path))


def test_an_end_of_text_that_is_none_is_refused(tmp_path: Path, tokenizer_json: str) -> None:
    with pytest.raises(TokenizerError, match="ranks of ordinary tokens"):
        load_ranks(tmp_path / "gpt2.tiktoken", {**BYTES, b"he": 50256})
    with pytest.raises(TokenizerError, match=r"no special token '<eos>'.*'<\|endoftext\|>'"):
        load_ranks(tmp_path / "gpt2.tiktoken", eot_token="<eos>")
    with pytest.raises(TokenizerError, match="'<pad>'"):
        load_json(tmp_path / "tokenizer.json", tokenizer_json, eot_token="the")
    assert load_json(tmp_path / "tokenizer.json", tokenizer_json, eot_token="<pad>").eot_id == 1


def test_end_of_text_comes_from_the_config_beside_the_json(
    tmp_path: Path, tokenizer_json: str
) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<pad>"}}')
    assert load_json(tmp_path / "tokenizer.json", tokenizer_json).eot_token == "<pad>"
    # No text gives it, marked or not, as in Transformers; another one does not take its place.
    added = [{**token, "special": False} for token in json.loads(tokenizer_json)["added_tokens"]]
    found = load_json(tmp_path / "tokenizer.json", tokenizer_json, added_tokens=added)
    assert found.eot_token == "<pad>"
    assert found.eot_id not in found.encode("<pad>")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    with pytest.raises(TokenizerError, match="no special token '<eos>'"):
        load_json(tmp_path / "tokenizer.json", tokenizer_json)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": ')
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json is not .* JSONDecodeError"):
        load_json(tmp_path / "tokenizer.json", tokenizer_json)


def test_a_beginning_is_a_special_token_of_its_own(tmp_path: Path, tokenizer_json: str) -> None:
    """It is saved and part of the fingerprint, and no text gives it; the end is another token."""
    model = train_model(tmp_path / "x.model", model_type="bpe", vocab_size=300)
    (tmp_path / "tokenizer.json").write_text(tokenizer_json)
    ranks = write_ranks(tmp_path / "x.tiktoken", RANKS)
    cases: list[tuple[str, dict[str, str], str, int]] = [
        (model, {}, "<s>", 1),
        (str(tmp_path / "tokenizer.json"), {}, "<pad>", 1),
        (ranks, {"pattern": "gpt2"}, "<s>", 260),
    ]
    for number, (path, options, token, id_) in enumerate(cases):
        plain = load_tokenizer(path, **options)
        begun = load_tokenizer(path, bos_token=token, **options)
        assert (begun.bos_token, begun.bos_id, plain.bos_id) == (token, id_, None)
        assert begun.eot_id == plain.eot_id
        assert begun.vocab_size == max(plain.vocab_size, id_ + 1)
        assert begun.fingerprint != plain.fingerprint
        assert "bos" not in str(plain.description())
        text = f"a{token}b {token}"
        assert id_ not in begun.encode(text)
        assert begun.encode(text) == plain.encode(text)
        begun.save(tmp_path / str(number))
        for again in (open_saved(tmp_path / str(number)), copy.deepcopy(begun)):
            assert (again, again.bos_id) == (begun, id_)
        with pytest.raises(TokenizerError, match=r"ends each document .* leave --bos-token out"):
            load_tokenizer(path, bos_token=plain.eot_token, **options)
    with pytest.raises(TokenizerError, match=r"'<bos>'\. Its other .*: '<pad>'\. .*--bos-token"):
        load_tokenizer(cases[1][0], bos_token="<bos>")
    with pytest.raises(TokenizerError, match=r"Its other special tokens: none\.$"):
        load_ranks(tmp_path / "gpt2.tiktoken", bos_token="<bos>")


def test_families_of_rank_files_have_a_usual_beginning(tmp_path: Path) -> None:
    path = tmp_path / "x.tiktoken"
    llama = load_ranks(path, pattern="llama3")
    assert llama.note == (
        "x.tiktoken begins a text with <|begin_of_text|>: pass --bos-token '<|begin_of_text|>' if "
        "the model expects it."
    )
    assert not load_ranks(path, pattern="llama3", bos_token="<|begin_of_text|>").note
    assert not load_ranks(path, pattern="qwen2").note


def test_a_token_that_is_not_marked_is_named_with_what_marks_it(
    tmp_path: Path, tokenizer_json: str
) -> None:
    ordinary = {**json.loads(tokenizer_json), "added_tokens": []}
    words = "'<|endoftext|>' is an ordinary token of it: list it in `added_tokens`"
    for option in ({}, {"eot_token": "<|endoftext|>"}):
        with pytest.raises(TokenizerError) as refused:
            load_json(tmp_path / "tokenizer.json", json.dumps(ordinary), **option)
        assert words in str(refused.value)
        assert "Its special tokens: none." in str(refused.value)
        assert "Pass one of them" not in str(refused.value)
    del ordinary["model"]["vocab"]["<|endoftext|>"]
    with pytest.raises(
        TokenizerError, match="none. Add one and pass it as --eot-token: list it in"
    ):
        load_json(tmp_path / "without.json", json.dumps(ordinary))
    marked = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    marked.add_special_tokens(["<|endoftext|>"])
    marked.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(str(tmp_path / "tokenizer.json")).eot_token == "<|endoftext|>"
    with pytest.raises(TokenizerError, match=r"none\. '<pad>' is an ordinary token"):
        load_tokenizer(str(tmp_path / "tokenizer.json"), bos_token="<pad>")
    named = {"model_type": "bpe", "vocab_size": 300, "user_defined_symbols": ["<tool>"]}
    with pytest.raises(TokenizerError, match="'<tool>' is an ordinary .* its control_symbols"):
        load_tokenizer(train_model(tmp_path / "x.model", **named), eot_token="<tool>")


@pytest.mark.parametrize(
    ("post_processor", "config", "usual"),
    [
        (("<pad>", "$A"), {}, "<pad>"),
        (("$A", "<pad>"), {}, None),
        (("<|endoftext|>", "$A"), {}, "<|endoftext|>"),
        (None, {"add_bos_token": True, "bos_token": {"content": "<pad>"}}, "<pad>"),
        (None, {"bos_token": "<pad>"}, None),
        (("<pad>", "$A"), {"add_bos_token": False, "bos_token": "<pad>"}, None),
    ],
)
def test_what_a_tokenizer_puts_before_a_text_is_known(
    post_processor: tuple[str, str] | None,
    config: dict[str, Any],
    usual: str | None,
    tmp_path: Path,
    tokenizer_json: str,
) -> None:
    made = tokenizers.Tokenizer.from_str(tokenizer_json)
    if post_processor:
        ids = [("<pad>", 1), ("<|endoftext|>", 0)]
        template = processors.TemplateProcessing(
            single=" ".join(post_processor),
            special_tokens=[each for each in ids if each[0] in post_processor],
        )
        made.post_processor = processors.Sequence([processors.ByteLevel(), template])
    if config:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_json(tmp_path / "tokenizer.json", made.to_str()).usual_bos == usual


def test_settings_that_add_or_drop_ids_reach_no_text(tmp_path: Path, tokenizer_json: str) -> None:
    plain = load_json(tmp_path / "tokenizer.json", tokenizer_json)
    changed = tokenizers.Tokenizer.from_str(tokenizer_json)
    changed.enable_truncation(3)
    changed.enable_padding(length=50)
    changed.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer = load_json(tmp_path / "b.json", changed.to_str())
    text = "the quick <|endoftext|> brown fox <pad>"
    assert len(tokenizer.encode(text)) > 3
    assert tokenizer.encode(text) == plain.encode(text)
    assert tokenizer.fingerprint == plain.fingerprint
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == text.encode()
    assert tokenizer.decode_bytes([tokenizer.eot_id]) == b"<|endoftext|>"


def test_a_json_file_is_saved_as_canonical_json(tmp_path: Path, tokenizer_json: str) -> None:
    """Another encoder writes a large vocabulary, faster."""
    tokens = [
        "<unk>",
        '"',
        "\\",
        r"\u0001",
        '\\"',
        "\1",
        "\2",
        "\n",
        "\x7f",
        "é",
        "\u2028",
        "\uffff",
        "😀",
    ]
    vocab = {token: id_ for id_, token in enumerate(tokens, 10)}
    model = {"type": "WordLevel", "unk_token": "<unk>", "vocab": vocab}
    tokenizer = load_json(tmp_path / "tokenizer.json", tokenizer_json, model=model, decoder=None)
    content = json.loads(tokenizer.data)
    assert content["model"] == model
    assert tokenizer.data == canonical_json(content)


def test_a_normalizer_is_honoured(tmp_path: Path, tokenizer_json: str) -> None:
    plain = load_json(tmp_path / "tokenizer.json", tokenizer_json)
    lower = load_json(tmp_path / "b.json", tokenizer_json, normalizer={"type": "Lowercase"})
    assert lower.encode("HELLO") == plain.encode("hello") != plain.encode("HELLO")
    assert lower.fingerprint != plain.fingerprint


def test_end_of_text_that_is_not_marked_special_is_still_text(
    tmp_path: Path, tokenizer_json: str
) -> None:
    added = [{**token, "special": False} for token in json.loads(tokenizer_json)["added_tokens"]]
    tokenizer = load_json(
        tmp_path / "tokenizer.json", tokenizer_json, added_tokens=added, eot_token="<|endoftext|>"
    )
    assert tokenizer.eot_id not in tokenizer.encode("a<|endoftext|>b <|endoftext|>")
    # The other token keeps its meaning: it is found in texts, as its tokenizer.json says.
    assert 1 in tokenizer.encode("a<pad>b")


def test_the_tokens_around_a_document_have_the_ids_of_the_library(
    tmp_path: Path, tokenizer_json: str
) -> None:
    """The library numbers added tokens that are not in the vocabulary in their order."""
    config = json.loads(tokenizer_json)
    config["added_tokens"] += [
        {**config["added_tokens"][0], "id": id_, "content": content}
        for id_, content in ((5001, "<bos>"), (5000, "<eos>"))
    ]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(config))
    found = load_tokenizer(str(path), eot_token="<eos>", bos_token="<bos>")
    assert (found.bos_id, found.eot_id, found.vocab_size) == (1024, 1025, 1026)
    assert found.decode([1024, 1025]) == "<bos><eos>"


def test_a_tokenizer_that_cannot_be_honoured_is_refused(
    tmp_path: Path, tokenizer_json: str
) -> None:
    config = json.loads(tokenizer_json)
    at_random = {**config["model"], "dropout": 0.1}
    with pytest.raises(TokenizerError, match="drawn at random"):
        load_json(tmp_path / "tokenizer.json", tokenizer_json, model=at_random)
    end = {**config["added_tokens"][0], "id": 1, "content": "</s>"}
    whole_words = {"type": "WordLevel", "vocab": {"<unk>": 0, "</s>": 1, "a": 2}}
    with pytest.raises(TokenizerError, match="becomes the end-of-text id 1"):
        load_json(
            tmp_path / "tokenizer.json",
            tokenizer_json,
            added_tokens=[end],
            decoder=None,
            model={**whole_words, "unk_token": "<unk>"},
            pre_tokenizer={"type": "WhitespaceSplit"},
        )


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": 1}', '{"added_tokens": []}', "\x00"])
def test_what_is_no_tokenizer_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load_tokenizer(str(tmp_path / "tokenizer.json"))


@pytest.mark.parametrize("name", ["", "a b", "a/b/c", "../x"])
def test_names_that_mean_nothing_say_what_would(name: str) -> None:
    with pytest.raises(TokenizerError, match="Pass \\(1\\) a tiktoken encoding"):
        load_tokenizer(name)


def test_no_network_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import tiktoken

    def offline(*_: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(tiktoken, "get_encoding", offline)
    with pytest.raises(TokenizerError, match=r"no route to host.*pass the path of a rank file"):
        load_tokenizer("gpt2")


class TestHubThatCannotBeReached:
    """Nothing listens at the address; the Hub's own client would retry for half a minute."""

    @pytest.fixture(autouse=True)
    def cache(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        from huggingface_hub import constants

        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        return tmp_path

    def test_a_hub_tokenizer_when_offline_is_one_line_within_seconds(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        began = time.monotonic()
        with pytest.raises(
            TokenizerError, match=r"'org/name': http://127\S+ does not answer.*cache.*HF_TOKEN"
        ) as raised:
            load_tokenizer("org/name")
        assert time.monotonic() - began < 60
        assert "\n" not in str(raised.value)
        assert "Retry" not in str(raised.value) + caplog.text

    def test_a_hub_tokenizer_of_the_cache_is_taken_when_offline(
        self, cache: Path, tokenizer_json: str
    ) -> None:
        snapshot = cache / "models--org--name/snapshots/c0ffee"
        snapshot.mkdir(parents=True)
        (cache / "models--org--name/refs").mkdir()
        (cache / "models--org--name/refs/main").write_text("c0ffee")
        (snapshot / "tokenizer.json").write_text(tokenizer_json)
        assert load_tokenizer("org/name").kind == "huggingface"


def test_a_process_that_imported_nothing_of_the_hub_looks_into_its_cache(tmp_path: Path) -> None:
    code = (
        "from streaming_ext.base.errors import TokenizerError\n"
        "from streaming_ext.text.tokenizer.load import load_tokenizer\n"
        "try: load_tokenizer('org/name')\n"
        "except TokenizerError as error: print(error)"
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.startswith("Cannot get tokenizer.json of the Hugging Face"), ended.stderr


def test_an_encoding_by_name_equals_its_rank_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import tiktoken

    encoding = tiktoken.Encoding(
        "gpt2",
        pat_str=r"'s| ?\p{L}+|\s+|.",  # another release may write it like this
        mergeable_ranks=RANKS,
        special_tokens={"<|endoftext|>": 50256},
    )
    monkeypatch.setattr(tiktoken, "get_encoding", lambda _: encoding)
    by_name = load_tokenizer("gpt2")
    by_file = load_ranks(tmp_path / "r50k_base.tiktoken")
    assert by_name.pattern == GPT2_PATTERN
    assert by_name.fingerprint == by_file.fingerprint


def test_the_patterns_are_those_of_tiktoken(monkeypatch: pytest.MonkeyPatch) -> None:
    openai_public = pytest.importorskip("tiktoken_ext.openai_public")
    for loader in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
        monkeypatch.setattr(openai_public, loader, lambda *_, **__: {})
    for name, (pattern, special_tokens) in KNOWN_ENCODINGS.items():
        public = openai_public.ENCODING_CONSTRUCTORS[name]()
        assert public["pat_str"] == pattern
        assert public["special_tokens"] == special_tokens


@pytest.mark.parametrize("pattern", ["gpt2", "cl100k_base", "o200k_base", "llama3", "qwen2"])
def test_a_run_of_spaces_that_overflows_the_reference(pattern: str, tmp_path: Path) -> None:
    path, ranks = tmp_path / "x.tiktoken", {**BYTES, b" x": 256, b"  ": 257}
    text = " " * 2_000_001 + "x"
    # The last space belongs to the word; the others pair up.
    assert load_ranks(path, ranks, pattern=pattern).encode(text) == [257] * 1_000_000 + [256]
    of_ones_own = load_ranks(path, ranks, pattern=rank_file.O200K_PATTERN + "|x")
    with pytest.raises(EngineMismatchError, match="overflows on a document of 2000002 characters"):
        of_ones_own.encode(text)


@pytest.mark.parametrize(
    ("name", "meant"), [("gtp2", "gpt2"), ("o200k-base", "o200k_base"), ("zzz", None)]
)
def test_a_name_that_is_nearly_that_of_an_encoding(name, meant) -> None:
    with pytest.raises(TokenizerError, match=f"'{name}' is no encoding of tiktoken") as raised:
        load_tokenizer(name)
    assert (f"Did you mean {meant}?" in str(raised.value)) is (meant is not None)


@pytest.mark.parametrize("name", ["org/name", "folder", "./folder"])
def test_what_is_on_this_host_is_not_looked_for_elsewhere(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir(parents=True)
    Path(name, "tokenizer.json").touch()
    expected = rf"'{name}' is a folder on this host.*: pass .*{Path(name)}/tokenizer\.json"
    with pytest.raises(TokenizerError, match=expected):
        load_tokenizer(name)
    Path(name, "tokenizer.txt").touch()
    with pytest.raises(TokenizerError, match=r"tokenizer.txt' is a file on this host"):
        load_tokenizer(f"{name}/tokenizer.txt")
