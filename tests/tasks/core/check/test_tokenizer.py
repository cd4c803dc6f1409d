"""A tokenizer is compared with a dataset's own, also if the dataset has no probes."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from streaming_ext import StreamingTokenDataset
from streaming_ext.base.errors import (
    ConfigMismatchError,
    MissingTokenError,
    NotADatasetError,
    TokenizerError,
    UsageError,
)
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.text.tokenizer.probes import PROBES_PATH, probe_texts
from tasks.core.check.tokenizer import CheckTokenizerConfig, TokenizerCheck, compare_tokenizers
from tests.tasks.core.build_dataset import build_dataset, manifest_of, require_sound
from tests.tasks.core.check.damage import check, files_named
from tests.tasks.core.extending.extended import extended, write_source
from tests.tasks.core.moving.moved import copied, merged
from tests.tasks.core.subsets.test_subset import subset


def compared(dataset: Path, tokenizer: object, **options: Any) -> TokenizerCheck:
    config = CheckTokenizerConfig(dataset=str(dataset), tokenizer=str(tokenizer), **options)
    return compare_tokenizers(config)


@pytest.fixture(scope="module")
def of_json(tmp_path_factory, tokenizer_json, texts) -> Path:
    """A dataset of a tokenizer.json, which lies beside it."""
    folder: Path = tmp_path_factory.mktemp("json")
    (folder / "tokenizer.json").write_text(tokenizer_json)
    tokenizer = {"tokenizer": str(folder / "tokenizer.json"), "pattern": None}
    return build_dataset(folder, texts, **tokenizer)


def with_manifest(root: Path, **changes: Any) -> None:
    manifest = manifest_of(root).model_copy(update=changes)
    (root / "manifest.json").write_bytes(to_json(manifest))


def older(dataset: Path, root: Path) -> Path:
    """Copy a dataset as an earlier version made it: without the probes."""
    shutil.copytree(dataset, root)
    (root / PROBES_PATH).unlink()
    kept = [file for file in manifest_of(root).tokenizer_files if file.path != PROBES_PATH]
    with_manifest(root, tokenizer_files=tuple(kept))
    return root


def test_its_own_tokenizer(sound, vocabulary) -> None:
    found = compared(sound, vocabulary)
    assert (found.same, found.is_copy, found.difference) == (True, True, "")
    assert found.texts == len(probe_texts())
    assert compared(sound, vocabulary, pattern="gpt2") == found
    assert PROBES_PATH in [file.path for file in manifest_of(sound).tokenizer_files]


def test_another_pattern(sound, vocabulary) -> None:
    found = compared(sound, vocabulary, pattern="cl100k_base")
    assert not found.same
    assert found.difference.startswith(f"{vocabulary} is not the tokenizer of {sound}: for ")


def test_one_lost_merge_is_found_by_the_text_of_its_token(of_json, tmp_path) -> None:
    config = json.loads((of_json.parent / "tokenizer.json").read_text())
    unused = next(
        number
        for number, pair in reversed([*enumerate(config["model"]["merges"])])
        if "".join(pair).isalpha() and not any("".join(pair) in text for text in probe_texts())
    )
    token = "".join(config["model"]["merges"].pop(unused))
    (tmp_path / "tokenizer.json").write_text(json.dumps(config))
    found = compared(of_json, tmp_path / "tokenizer.json")
    assert not found.same
    assert found.texts > len(probe_texts())
    assert f"for {token!r} it gives" in found.difference


def test_a_tokenizer_without_the_token_that_ends_documents(sound, tmp_path, tokenizer_json) -> None:
    other = tmp_path / "tokenizer.json"
    other.write_text(tokenizer_json.replace("<|endoftext|>", "<end>"))
    lacks = "it lacks the token that ends each document, '<|endoftext|>'."
    found = compared(sound, other)
    assert (found.same, found.is_copy, found.texts) == (False, False, 0)
    assert found.difference == f"{other} is not the tokenizer of {sound}: {lacks}"
    for given in other, Tokenizer.from_file(str(other)):
        with pytest.raises(ConfigMismatchError, match=re.escape(lacks)):
            StreamingTokenDataset(local=sound, batch_size=1, tokenizer=given)
    assert "for 'H" in compared(sound, other, eot_token="<end>").difference
    for option in "eot_token", "bos_token":  # a wrong option is no difference
        with pytest.raises(MissingTokenError, match="no special token '<no>'"):
            compared(sound, other, **{"eot_token": "<end>", option: "<no>"})


def test_a_tokenizer_without_the_token_that_begins_documents(
    texts, tmp_path, tokenizer_json
) -> None:
    config = json.loads(tokenizer_json)
    begins = {**config["added_tokens"][-1], "content": "<s>", "id": len(config["model"]["vocab"])}
    config["added_tokens"].append(begins)
    (tmp_path / "tokenizer.json").write_text(json.dumps(config))
    usual = {"tokenizer": str(tmp_path / "tokenizer.json"), "pattern": None, "bos_token": "<s>"}
    dataset = build_dataset(tmp_path, texts, **usual)
    assert compared(dataset, tmp_path / "tokenizer.json").same
    (tmp_path / "other.json").write_text(tokenizer_json)
    found = compared(dataset, tmp_path / "other.json").difference
    assert found.endswith("it lacks the token that begins each document, '<s>'.")


def test_the_same_ids_by_another_file(of_json, tmp_path) -> None:
    config = json.loads((of_json.parent / "tokenizer.json").read_text())
    added = {**config["added_tokens"][-1], "content": "<more>", "id": len(config["model"]["vocab"])}
    config["added_tokens"].append(added)
    (tmp_path / "tokenizer.json").write_text(json.dumps(config))
    found = compared(of_json, tmp_path / "tokenizer.json")
    assert (found.same, found.is_copy) == (True, False)
    assert found.texts > 500


def test_an_older_dataset(sound, of_json, vocabulary, tmp_path) -> None:
    """Its probes are computed with the tokenizer that it holds."""
    root = older(sound, tmp_path / "old")
    require_sound(root)
    assert compared(root, vocabulary).same
    assert not compared(root, of_json.parent / "tokenizer.json").same
    dataset = StreamingTokenDataset(local=root, batch_size=1, tokenizer=str(vocabulary))
    assert dataset.tokenizer.encode("ab")
    extended(root, write_source(tmp_path / "more/a.parquet", ["A new document."] * 9))
    require_sound(root)
    subset(root, tmp_path / "few", documents=5)
    require_sound(tmp_path / "few")
    copied(root, tmp_path / "copied")
    require_sound(tmp_path / "copied")


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_older_datasets_are_merged_with_new_ones(sound, tmp_path, order) -> None:
    datasets = [sound, older(sound, tmp_path / "old"), sound]
    merged(datasets[order][:2], tmp_path / "both", repeats=True)
    require_sound(tmp_path / "both")


def test_a_member_that_is_another_dataset_is_still_found(sound, tmp_path) -> None:
    merged([sound, older(sound, tmp_path / "old")], tmp_path / "both", repeats=True)
    root = tmp_path / "both"
    forged = [each.model_copy(update={"manifest": "0" * 32}) for each in manifest_of(root).merged]
    with_manifest(root, merged=tuple(forged))
    words = [finding.problem for finding in check(root).findings]
    assert [word[:9] for word in words] == ["merged[0]", "merged[1]"]


@pytest.mark.parametrize(
    "data", [b'{"probes":[["ab",[1]]],"version":1}\n', b"{}", b"[", b'{"a":1}']
)
def test_forged_probes_are_named(copy, data) -> None:
    (copy / PROBES_PATH).write_bytes(data)
    files = [file for file in manifest_of(copy).tokenizer_files if file.path != PROBES_PATH]
    files.append(FileRecord.of(PROBES_PATH, data))
    with_manifest(copy, tokenizer_files=tuple(sorted(files, key=lambda file: file.path)))
    assert files_named(check(copy)) == {PROBES_PATH}


def test_a_lost_file_is_made_again_by_an_extension(copy, tmp_path) -> None:
    (copy / PROBES_PATH).unlink()
    assert files_named(check(copy)) == {PROBES_PATH}
    extended(copy, write_source(tmp_path / "more/a.parquet", ["A new document."] * 9))
    require_sound(copy)


def test_training_compares(sound, of_json, vocabulary) -> None:
    usual = {"local": sound, "batch_size": 1, "shuffle": True}
    dataset = StreamingTokenDataset(**usual, tokenizer=str(vocabulary))
    assert dataset.state_dict() == StreamingTokenDataset(**usual).state_dict()
    assert dataset.contents.tokenizer is None
    with pytest.raises(ConfigMismatchError, match=r"is not the tokenizer of .*Train with"):
        StreamingTokenDataset(**usual, tokenizer=of_json.parent / "tokenizer.json")


def test_what_cannot_be_compared(sound, vocabulary, tmp_path, tokenizer_json) -> None:
    with pytest.raises(NotADatasetError):
        compared(tmp_path / "missing", vocabulary)
    with pytest.raises(TokenizerError, match="No such file"):
        compared(sound, "/nowhere/a.tiktoken")
    root = shutil.copytree(sound, tmp_path / "dataset")
    with_manifest(root, tokenizer_files=())
    with pytest.raises(UsageError, match="does not hold its tokenizer"):
        compared(root, vocabulary)
