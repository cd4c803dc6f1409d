"""What holds for every format: back from an export come the documents of the dataset."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from pydantic import ValidationError

from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.format.reading import read_manifest
from streaming_ext.format.spec import TokenSetName
from streaming_ext.store import open_storage
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.check.verify import verify
from tests.tasks.core.exports.exporting import content, exported
from tests.tasks.core.imports.importing import (
    Documents,
    documents_in,
    imported,
    planned,
    some_documents,
    write_ids,
)
from tests.tasks.core.running import do_parts

FRACTION, SEED = 0.25, 7
FILES = (2, 10, 11)  # numbers in their names, in their order


@dataclass(frozen=True)
class Case:
    """A format, how it was exported, and how it is read."""

    name: TokenSetName
    export: str | None = None  # the dataset itself is a set of MDS
    written: dict[str, Any] = field(default_factory=dict)
    read: dict[str, Any] = field(default_factory=dict)
    is_cut: bool = False  # here

    def __str__(self) -> str:
        return " ".join([self.name, *map(str, self.written.values())])


CASES = [
    Case("megatron", "megatron", is_cut=True),
    Case("megatron", "megatron", {"max_file_size": 2048}),
    Case("litdata", "litdata", {"max_file_size": 2048}),
    Case("nanotron", "nanotron"),
    Case("olmo", "olmo"),
    Case("nanogpt", "nanogpt", is_cut=True),
    Case("llmc", "llmc", {"max_file_size": 2048}, is_cut=True),
    Case("webdataset", "webdataset", {"max_file_size": 40000}),
    Case("webdataset", "webdataset", {"rows": "documents"}, {"rows": "documents"}),
    Case("mds"),
]


@pytest.fixture(scope="module")
def own(tokenizer: Tokenizer, rank_path: Path) -> dict[str, Any]:
    return {
        "tokenizer": str(rank_path), "pattern": "gpt2", "holdout_fraction": FRACTION,
        "holdout_seed": SEED,
    }  # fmt: skip


@pytest.fixture(scope="module")
def written(tokenizer: Tokenizer) -> Documents:
    return some_documents(90, tokenizer.eot_id)


@pytest.fixture(scope="module")
def dataset(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: Tokenizer,
    written: Documents,
    own: dict[str, Any],
) -> Path:
    """A dataset of some parts."""
    folder = tmp_path_factory.mktemp("made")
    each = len(written) // len(FILES)
    for index, number in enumerate(FILES):
        chosen = written[index * each : (index + 1) * each]
        write_ids(folder / "in" / f"{number}.bin", chosen, tokenizer.eot_id)
    return imported("nanogpt", folder / "in", folder / "dataset", **own)


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    assert isinstance(request.param, Case)
    return request.param


@pytest.fixture
def source(case: Case, dataset: Path, tmp_path: Path) -> Path:
    """What is read: an export of the dataset."""
    if case.export is None:
        return dataset
    return exported(dataset, tmp_path / "export", case.export, **case.written)


def is_held_out(document: list[int]) -> bool:
    data = b"".join(token.to_bytes(4, "little") for token in document)
    return xxhash.xxh3_64_intdigest(data, SEED) < int(FRACTION * 2**64)


def test_the_first_dataset_holds_what_was_written(dataset: Path, written: Documents) -> None:
    """Its holdout is chosen by the ids; the manifest says so."""
    expected = {
        "train": [one for one in written if not is_held_out(one)],
        "holdout": [one for one in written if is_held_out(one)],
    }
    assert documents_in(dataset) == expected
    assert 10 < len(expected["holdout"]) < 40
    told = json.loads((dataset / "manifest.json").read_bytes())
    assert told["spec"]["imported"] == {"set_format": "nanogpt"}


def test_an_export_is_imported_again(
    case: Case, dataset: Path, source: Path, own: dict[str, Any], tmp_path: Path
) -> None:
    """The same documents, in each split in the order in which the files hold them; sound."""
    back = imported(case.name, source, tmp_path / "back", **own, **case.read)
    before, after = documents_in(dataset), documents_in(back)
    assert after["train"] == before["train"]  # since its ids decide the side of each
    assert after["holdout"] == before["holdout"]
    report = verify(open_storage(str(back)), deep=True)
    assert report.findings == ()
    assert report.checked.retokenized == 90
    assert read_manifest(open_storage(str(back))).text_bytes == 0


def test_splits_of_the_export_do_not_matter(
    dataset: Path, own: dict[str, Any], tmp_path: Path
) -> None:
    """Files are read in the order of their names, whichever split they were of."""
    options = own | {"holdout_fraction": 0, "part_size": 1024}
    before, output = documents_in(dataset), tmp_path / "back"
    for name, order in (("litdata", ["holdout", "train"]), ("nanogpt", ["train", "holdout"])):
        source = exported(dataset, tmp_path / name, name)
        imported(name, source, output / name, **options)
        expected = [one for split in order for one in before[split]]
        assert documents_in(output / name) == {"train": expected}


@pytest.mark.parametrize("case", [case for case in CASES if case.is_cut], ids=str)
def test_spans_of_files_hold_the_same_documents(
    case: Case, dataset: Path, source: Path, own: dict[str, Any], tmp_path: Path
) -> None:
    pieces = imported(case.name, source, tmp_path / "pieces", **own, part_size=1100)
    assert documents_in(pieces) == documents_in(dataset)
    manifest = read_manifest(open_storage(str(pieces)))
    assert any(part.span for part in manifest.parts)
    assert verify(open_storage(str(pieces)), deep=True).findings == ()


@pytest.mark.parametrize("case", [CASES[0]], ids=str)
def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(
    case: Case, source: Path, own: dict[str, Any], tmp_path: Path
) -> None:
    whole = content(imported(case.name, source, tmp_path / "whole", **own))
    plan, storage = planned(case.name, source, tmp_path / "out", **own)
    do_parts(plan, storage, plan.todo[-1:])
    storage.close()
    again, storage = planned(case.name, source, tmp_path / "out", **own)
    assert again.todo == plan.todo[:-1]
    storage.close()
    assert content(imported(case.name, source, tmp_path / "out", **own)) == whole


def test_an_index_beside_a_file_identifies_it_too(
    dataset: Path, own: dict[str, Any], tmp_path: Path
) -> None:
    """The index of Megatron decides where documents begin, and so which there are."""
    source = exported(dataset, tmp_path / "export", "megatron")
    imported("megatron", source, tmp_path / "out", **own)
    index = source / "train/text_document.idx"
    data = np.fromfile(index, np.uint8)
    sequences = int(np.fromfile(index, "<u8", 1, offset=18)[0])
    numbers = data[34 + 12 * sequences :].view("<i8")
    numbers[1] = 0  # the first two documents are none and both
    data.tofile(index)
    with pytest.raises(ConfigMismatchError, match="was made from other sources"):
        planned("megatron", source, tmp_path / "out", **own)


def test_what_is_of_no_use_is_refused(dataset: Path, own: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="is of no use with nanogpt"):
        planned("nanogpt", dataset, tmp_path / "out", **own, rows="documents")
    source = exported(dataset, tmp_path / "export", "megatron")
    with pytest.raises(UsageError, match="--dtype is of no use with megatron") as refused:
        planned("megatron", source, tmp_path / "out", **own, dtype="uint16")
    assert "\n" not in str(refused.value)  # however many files there are
    with pytest.raises(UsageError, match="Copy it to one of them first"):
        planned("nanogpt", "https://example.org/set", tmp_path / "out", **own)
    with pytest.raises(UsageError, match=r"no \.npy file of olmo there"):
        planned("olmo", dataset, tmp_path / "out", **own)
    assert not (tmp_path / "out").exists()


def test_a_pair_of_megatron_is_called_by_its_prefix(
    dataset: Path, own: dict[str, Any], tmp_path: Path
) -> None:
    pair = exported(dataset, tmp_path / "export", "megatron") / "train/text_document"
    wanted = content(imported("megatron", f"{pair}.bin", tmp_path / "wanted", **own))
    for name, called in (("prefix", str(pair)), ("index", f"{pair}.idx")):
        assert content(imported("megatron", called, tmp_path / name, **own)) == wanted
    with pytest.raises(UsageError, match=r"train/other: no \.bin file of megatron there"):
        planned("megatron", pair.with_name("other"), tmp_path / "out", **own)


def test_what_an_index_lists_and_is_lost_is_said_once(
    dataset: Path, own: dict[str, Any], tmp_path: Path
) -> None:
    source = exported(dataset, tmp_path / "export", "litdata", max_file_size=1024) / "train"
    chunks = sorted(source.glob("*.bin"))
    assert len(chunks) > 3
    chunks[1].unlink()
    with pytest.raises(UsageError, match=rf"there is no {chunks[1].name} next") as refused:
        planned("litdata", source, tmp_path / "out", **own)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_an_output_below_its_source_is_no_source(
    dataset: Path, own: dict[str, Any], tmp_path: Path
) -> None:
    """The same command again finds the files that it made beside those that it read."""
    source = exported(dataset, tmp_path / "export", "webdataset")
    made = imported("webdataset", source, source / "out", **own, output_format="webdataset")
    again, storage = planned("webdataset", source, made, **own, output_format="webdataset")
    storage.close()
    assert again.published
