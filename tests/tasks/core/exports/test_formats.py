"""The features of single formats: widths, headers, how files are cut, and refusals."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import UsageError
from tests.streaming_ext import build as builder
from tests.tasks.core.exports.exporting import (
    PARTS,
    checked,
    content,
    documents_of,
    exported,
    make_dataset,
)
from tests.tasks.core.exports.readers import (
    array_of,
    read,
    read_llmc,
    read_llmc_file,
    read_megatron_pair,
    read_tars,
)

EXPECTED = documents_of()


def make(folder: Path, name: str, *, vocab_size: int = 100, **options: Any) -> Path:
    """Make a dataset for one test and export it."""
    dataset = make_dataset(folder, vocab_size=vocab_size).root
    return exported(dataset, folder / "export", name, **options)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("nanogpt", {"vocab_size": 70_000}, r"65,536 different ones; .* has 70,000.*megatron"),
        ("nanogpt", {"max_file_size": 2000}, "--max-file-size does not go with nanogpt"),
        ("llmc", {"max_file_size": 1025}, r"of llmc has at least 1,026 here"),
        ("llmc", {"max_file_size": 1024 + 2**32}, r"of llmc has at most [\d,]+ here"),
        ("modded-nanogpt", {}, "by the id 50256, GPT-2's end of text; .* is 99"),
        ("webdataset", {"provenance": True}, "--provenance does not go with webdataset, which"),
        (
            "webdataset",
            {"rows": "documents", "sequence_length": 8},
            "--sequence-length does not go with webdataset, which takes --rows",
        ),
        ("webdataset", {"sequence_length": 2048, "max_file_size": 2000}, "webdataset has at least"),
    ],
)
def test_what_a_format_cannot_give_is_refused(tmp_path, name, options, words) -> None:
    with pytest.raises(UsageError, match=words):
        make(tmp_path, name, **options)


class TestMegatron:
    @pytest.mark.parametrize(("ids", "code"), [(65_499, 8), (65_500, 4)])
    def test_ids_are_narrow_where_megatron_has_them_so(self, tmp_path, ids, code) -> None:
        root = make(tmp_path, "megatron", vocab_size=ids)
        assert (root / "train/text_document.idx").read_bytes()[17] == code
        assert read("megatron", root) == EXPECTED
        counts = json.loads((root / "sequences.json").read_text())
        assert counts == {"holdout/text_document": [3, 4], "train/text_document": [6, 7]}

    def test_a_file_is_below_the_bound_unless_a_document_is_not(self, tmp_path) -> None:
        documents = builder.some_documents(200, longest=60)
        long = builder.some_documents(1, seed=1)[0] * 100
        documents.insert(90, long)
        parts = builder.numbered_parts(documents, holdout_every=1000)
        dataset = builder.build(tmp_path / "dataset", parts, shard_samples=20)
        root = exported(dataset.root, tmp_path / "out", "megatron", max_file_size=2000)
        held = [read_megatron_pair(file.with_suffix("")) for file in root.glob("train/*.bin")]
        assert len(held) > 5
        for pair in held:
            size = 2 * sum(map(len, pair))
            assert size <= 2000 or [ids[:-1] for ids in pair] == [long]
        assert read("megatron", root)["train"] == documents_of(parts)["train"]
        listed = json.loads((root / "sequences.json").read_text())
        assert sum(documents for documents, _ in listed.values()) == len(documents)


def test_a_chunk_of_litdata_is_below_the_bound_with_its_head(tmp_path) -> None:
    documents = [[n % 9, 1] for n in range(900)]
    parts = builder.numbered_parts(documents, holdout_every=1000)
    dataset = builder.build(tmp_path / "dataset", parts, shard_samples=20)
    root = exported(dataset.root, tmp_path / "out", "litdata", max_file_size=2000)
    sizes = [file.stat().st_size for file in root.glob("train/*.bin")]
    assert max(sizes) <= 2000
    assert sum(size > 1900 for size in sizes) >= len(sizes) - 3  # except the last ones of parts
    assert checked(root).sound


def test_files_of_llmc_are_cut_at_a_number_of_ids(tmp_path) -> None:
    root = make(tmp_path, "llmc", max_file_size=1024 + 100)
    assert read("llmc", root) == EXPECTED
    files = sorted(root.glob("text_train_*.bin"))
    assert [file.name[-10:-4] for file in files] == [f"{n + 1:06}" for n in range(len(files))]
    held = [len(read_llmc_file(file)) for file in files]
    assert held[:-1] == [50] * (len(held) - 1)
    assert len(held) > 2


def test_train_of_modded_nanogpt_has_at_least_two_files(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(builder, "EOT", 50256)
    root = make(tmp_path, "modded-nanogpt", vocab_size=50257)
    assert len([*root.glob("fineweb_train_*.bin")]) == 2
    assert [*root.glob("fineweb_val_*.bin")] == [root / "fineweb_val_000000.bin"]
    for split, expected in documents_of(eot=50256).items():
        assert read_llmc(root, split, prefix="fineweb", eot=50256) == expected


def test_parquet_has_row_groups_that_a_reader_can_hold(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tasks.core.derive.formats.per_part._GROUP_TOKENS", 5)
    root = make(tmp_path, "parquet")
    assert read("parquet", root) == EXPECTED
    metadata = pq.read_metadata(root / "train/00000.parquet")
    assert metadata.num_row_groups > 1
    assert metadata.row_group(0).column(0).has_offset_index  # so pages end with documents
    assert "input_ids: list<element: int32>" in str(metadata.schema.to_arrow_schema())


DOCUMENTS = {"rows": "documents"}


def members(root: Path) -> list[tarfile.TarInfo]:
    """Return the members of all tars."""
    found = []
    for file in sorted(root.glob("*/*.tar")):
        with tarfile.open(file) as opened:
            found += opened.getmembers()
    return found


class TestWebdataset:
    @pytest.mark.parametrize("provenance", [False, True])
    def test_documents_as_samples(self, tmp_path, *, provenance) -> None:
        """Each sample names its source and row, if `provenance` is set."""
        root = make(tmp_path, "webdataset", **DOCUMENTS, provenance=provenance)
        for split, held in EXPECTED.items():
            samples = read_tars(root, split)
            assert [array_of(sample["npy"]).tolist() for sample in samples] == held
            origins = [
                {"source": f"mem://source-{part}.parquet", "row": row}
                for part, rows in enumerate(PARTS)
                for row, (of, _) in enumerate(rows)
                if of == split
            ]
            listed = [json.loads(sample["json"]) for sample in samples if "json" in sample]
            assert listed == (origins if provenance else [])
        found = {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in members(root)}
        assert found == {(0, 0, 0, "", "", 0o644)}  # no time or user

    @pytest.mark.parametrize("options", [{}, DOCUMENTS, {"sequence_length": 5}], ids=str)
    def test_many_tars_are_numbered_through(self, tmp_path, options) -> None:
        parts = builder.numbered_parts(builder.some_documents(120, seed=4), parts=4)
        dataset = builder.build(tmp_path / "dataset", parts)
        root = exported(dataset.root, tmp_path / "out", "webdataset", max_file_size=8000, **options)
        tars = sorted((root / "train").glob("*.tar"))
        assert len(tars) > 8
        assert [file.name for file in tars] == [f"train-{n:06}.tar" for n in range(len(tars))]
        if options != DOCUMENTS:
            assert max(file.stat().st_size for file in tars) <= 8000
        names = [member.name for member in members(root)]
        assert len(names) == len(set(names)) > 100
        assert len(read_tars(root, "train")) > 100

    def test_energon_finds_the_splits(self, tmp_path) -> None:
        root = make(tmp_path, "webdataset")
        found = json.loads((root / ".nv-meta/split.yaml").read_text())
        assert found["split_parts"]["val"] == [
            "holdout/holdout-000000.tar",
            "holdout/holdout-000001.tar",
        ]
        assert set(found["split_parts"]["train"]) <= set(content(root))
