"""Exports read by the trainers' own libraries: `make interop` installs them and runs these tests.

`readers.py` holds what they must find, so exports are also tested without them. For a library that
only reads a file of ids, its cell in docs/reference/export-formats.md is the test.
"""

import itertools
import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from tasks.core.synthetic import make_documents
from tests.streaming_ext.build import EOT, build, numbered_parts, some_documents
from tests.tasks.core.build_dataset import build_dataset
from tests.tasks.core.exports.exporting import Documents, documents_of, exported
from tests.test_readme import blocks

PARTS = numbered_parts(some_documents(120, seed=3, longest=200), parts=3)
LENGTH = 64
# Libraries warn about things of their own: optional packages, deprecated names.
pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dataset") / "dataset"
    return build(folder, PARTS, sequence_length=LENGTH, shard_samples=50).root


@pytest.fixture(scope="module")
def expected() -> Documents:
    return documents_of(PARTS)


def flat(documents: list[list[int]]) -> list[int]:
    return list(itertools.chain(*documents))


def test_wids(dataset, expected, tmp_path, monkeypatch) -> None:
    """`wids` of webdataset 0.2, for which `make interop` has a folder: 1.0 no longer has it."""
    monkeypatch.setattr(sys, "path", [*sys.path, f"{sys.prefix}/wids"])
    options = {"rows": "documents", "max_file_size": 20_000}
    folder = exported(dataset, tmp_path / "out", "webdataset", **options) / "train"
    found = import_module("wids").ShardListDataset(
        str(folder / "index.json"), base=str(folder), cache_dir=str(tmp_path / "cache"), keep=True
    )
    assert [found[n][".npy"].tolist() for n in range(len(found))] == expected["train"]


class TestMegatron:
    @pytest.fixture
    def root(self, dataset, tmp_path) -> Path:
        return exported(dataset, tmp_path / "out", "megatron")

    def test_indexed_dataset(self, root, expected) -> None:
        indexed = import_module("megatron.core.datasets.indexed_dataset")
        counts = json.loads((root / "sequences.json").read_text())
        for split, held in expected.items():
            prefix = f"{split}/text_document"
            found = indexed.IndexedDataset(str(root / prefix))
            assert [found[n].tolist() for n in range(len(found))] == held
            assert counts[prefix] == [len(found), len(found.document_indices)]

    @pytest.fixture
    def one_rank(self, tmp_path) -> Iterator[None]:
        distributed = import_module("torch.distributed")
        distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
        )
        yield
        distributed.destroy_process_group()

    def test_a_blend_of_gpt_datasets(self, root, expected, one_rank, tmp_path) -> None:
        gpt = import_module("megatron.core.datasets.gpt_dataset")
        builder = import_module("megatron.core.datasets.blended_megatron_dataset_builder")

        class Tokenizer:
            vocab_size, eod, pad = 100, EOT, 1000  # an id of no document: it becomes 0
            unique_identifiers = {"name": "test"}  # noqa: RUF012

        prefixes = [str(root / split / "text_document") for split in ("train", "holdout")]
        config = gpt.GPTDatasetConfig(
            random_seed=1,
            sequence_length=LENGTH,
            blend=(prefixes, [0.9, 0.1]),
            split="1,0,0",
            path_to_cache=str(tmp_path / "cache"),
            tokenizer=Tokenizer(),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
        )
        train, _, _ = builder.BlendedMegatronDatasetBuilder(
            gpt.GPTDataset, [100, 0, 0], lambda: True, config
        ).build()
        assert len(train) == 100
        held = {tuple(ids) for documents in expected.values() for ids in documents}
        complete = 0
        for number in range(100):
            sample = train[number]["tokens"].tolist()
            assert len(sample) == LENGTH
            between = np.flatnonzero(np.array(sample) == EOT) + 1
            for document in np.split(sample, between)[1:-1]:
                assert tuple(document.tolist()) in held
                complete += 1
        assert complete


CELLS = {
    "webdataset.WebDataset": "webdataset",
    "energon": "webdataset",
    "litdata": "litdata",
    "datatrove": "nanotron",
    "olmo_core": "olmo",
    "load_dataset": "parquet",
}


@pytest.mark.parametrize("library", CELLS)
def test_a_cell_of_the_document(library, expected, tmp_path, monkeypatch) -> None:
    """Its ids are int64, have the shape in its comment, and lie in the dataset in this order."""
    made = build(tmp_path / "made", PARTS, sequence_length=LENGTH, vocab_size=50257)
    rows = {"sequence_length": LENGTH} if CELLS[library] == "webdataset" else {}
    exported(made.root, tmp_path / "export", CELLS[library], **rows)
    monkeypatch.chdir(tmp_path)
    cell, shape = cell_of(library)
    ids = first_of(cell)
    held = np.array(flat(expected["train"]))
    if shape is None:
        assert ids.tolist() in expected["train"]
    else:
        assert f"({', '.join(map(str, ids.shape))}{',' * (ids.ndim == 1)})" == shape
        windows = sliding_window_view(held, ids.shape[-1])
        assert (windows == ids.reshape(-1, ids.shape[-1])[0]).all(axis=1).any()


def test_the_cell_of_tars_straight_from_text(tmp_path, monkeypatch) -> None:
    build_dataset(
        tmp_path / "made",
        [[text[:500] for text in make_documents(40, seed=3)]],
        sequence_length=LENGTH,
        output_format="webdataset",
    ).rename(tmp_path / "fineweb-edu-tars")
    monkeypatch.chdir(tmp_path)
    cell, shape = cell_of("fineweb-edu-tars")
    assert (first_of(cell).shape, shape) == ((LENGTH,), f"({LENGTH},)")


def cell_of(library: str) -> tuple[str, str | None]:
    """Return a cell of docs/reference/export-formats.md, and the shape that it names for ids."""
    page = "how-to/webdataset" if "tars" in library else "reference/export-formats"
    found = [cell for cell in blocks(f"docs/{page}.md", "python") if library in cell]
    cell = found[0].replace("2048", str(LENGTH)).replace("2049", str(LENGTH + 1))
    shape = re.search(r"ids = .*# (\(.*\))?", cell)
    assert shape is not None
    return cell.replace("000123", "000000"), shape[1]


def first_of(cell: str) -> np.ndarray:
    """Return the first ids of a cell's loop; some of these loops never end."""
    seen: dict[str, Any] = {}
    exec(compile(f"{cell}    break\n", "docs/reference/export-formats.md", "exec"), seen)  # noqa: S102
    ids = np.asarray(seen["ids"])
    assert ids.dtype == np.int64
    return ids
