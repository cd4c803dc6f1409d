"""The rules for every format: an import of an export gives the documents of the dataset."""

import json
import shutil
from pathlib import Path

import pytest
import xxhash
from pydantic import ValidationError

from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.format.reading import read_manifest
from streaming_ext.store import open_storage
from tasks.core.check.verify import verify
from tests.tasks.core.exports.exporting import content, exported
from tests.tasks.core.imports.importing import (
    CASES,
    CUT,
    OWN,
    change_index,
    documents_in,
    imported,
    planned,
)


def is_held_out(document: list[int]) -> bool:
    data = b"".join(token.to_bytes(4, "little") for token in document)
    return xxhash.xxh3_64_intdigest(data, 7) < 2**62


def test_the_first_dataset_holds_what_was_written(dataset, written) -> None:
    """The ids decide which documents are held out; the manifest says so."""
    expected = {
        "train": [one for one in written if not is_held_out(one)],
        "holdout": [one for one in written if is_held_out(one)],
    }
    assert documents_in(dataset) == expected
    assert 10 < len(expected["holdout"]) < 40
    manifest = json.loads((dataset / "manifest.json").read_bytes())
    assert manifest["spec"]["imported"] == {"set_format": "nanogpt"}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_export_is_imported_again(case, dataset, tmp_path) -> None:
    """Each split holds the same documents, in the order of the files; the dataset is sound."""
    back = imported(case.name, case.made(dataset, tmp_path), tmp_path / "back", **OWN, **case.read)
    before, after = documents_in(dataset), documents_in(back)
    assert after["train"] == before["train"]  # the ids decide the split of each document
    assert after["holdout"] == before["holdout"]
    storage = open_storage(str(back))
    report = verify(storage, deep=True)
    assert report.findings == ()
    assert report.checked.retokenized == 90
    manifest = read_manifest(storage)
    assert manifest.text_bytes == 0
    assert (case.read == CUT) == any(part.span for part in manifest.parts)


def test_files_are_read_in_the_order_of_their_names(dataset, tmp_path) -> None:
    """The order does not depend on the split that they came from."""
    source = exported(dataset, tmp_path / "export", "olmo")
    back = imported("olmo", source, tmp_path / "back", holdout_fraction=0)
    before = documents_in(dataset)
    assert documents_in(back) == {"train": before["holdout"] + before["train"]}


def test_an_index_beside_a_file_identifies_it_too(dataset, tmp_path) -> None:
    """Megatron's index decides where documents begin, and so which documents there are."""
    source = exported(dataset, tmp_path / "export", "megatron")
    imported("megatron", source, tmp_path / "out")
    change_index(source)
    with pytest.raises(ConfigMismatchError, match="was made from other sources"):
        planned("megatron", source, tmp_path / "out")


def test_what_is_of_no_use_is_refused(dataset, tmp_path) -> None:
    with pytest.raises(ValidationError, match="Input should be 'megatron', .* or 'mds'"):
        planned("litdata", dataset, tmp_path / "out")
    source = exported(dataset, tmp_path / "export", "megatron")
    with pytest.raises(UsageError, match="--dtype does not go with megatron") as refused:
        planned("megatron", source, tmp_path / "out", dtype="uint16")
    assert "\n" not in str(refused.value)  # for any number of files
    with pytest.raises(UsageError, match="Copy it to one of them first"):
        planned("nanogpt", "https://example.org/set", tmp_path / "out")
    with pytest.raises(UsageError, match=r"no \.npy file of olmo there"):
        planned("olmo", dataset, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_pair_of_megatron_is_called_by_its_prefix(dataset, tmp_path) -> None:
    pair = exported(dataset, tmp_path / "export", "megatron") / "train/text_document"
    wanted = content(imported("megatron", f"{pair}.bin", tmp_path / "wanted"))
    for name, called in (("prefix", str(pair)), ("index", f"{pair}.idx")):
        assert content(imported("megatron", called, tmp_path / name)) == wanted
    with pytest.raises(UsageError, match=r"train/other: no \.bin file of megatron there"):
        planned("megatron", pair.with_name("other"), tmp_path / "out")


def test_what_an_index_lists_and_is_lost_is_named_once(dataset, tmp_path) -> None:
    source = Path(shutil.copytree(dataset / "train", tmp_path / "set"))
    shards = sorted(source.rglob("*.mds.zstd"))
    assert len(shards) > 3
    shards[1].unlink()
    with pytest.raises(
        UsageError, match=rf"there is no {shards[1].relative_to(source)} next"
    ) as refused:
        planned("mds", source, tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_an_output_below_its_source_is_refused(dataset, tmp_path) -> None:
    """A repeated command would find the files that it made among those that it reads."""
    source = Path(shutil.copytree(dataset / "train", tmp_path / "set"))
    with pytest.raises(UsageError, match="lies inside its own sources"):
        imported("mds", source, source / "out")
    assert not (source / "out").exists()
