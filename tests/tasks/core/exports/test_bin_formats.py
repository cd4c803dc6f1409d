"""Formats of bare ids: widths, headers, how files are cut, and what each refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.store import LocalStorage
from tasks.core.check.export import verify_export
from tasks.core.derive.formats.flat import StreamFiles
from tests.streaming_ext import build as builder
from tests.tasks.core.exports.exporting import (
    documents_of,
    exported,
    make_dataset,
    planned,
    with_end,
)
from tests.tasks.core.exports.readers import (
    cut,
    read_levanter,
    read_llmc,
    read_llmc_file,
    read_megatron,
    read_megatron_pair,
    read_parquet,
)

LARGE = 70_000
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Exports a dataset of this test's own."""

    def make(name: str, *, vocab_size: int = 100, **options: object) -> Path:
        dataset = make_dataset(tmp_path / f"of {vocab_size}", vocab_size=vocab_size).root
        return exported(dataset, tmp_path / name, name, **options)

    return make


def test_ids_are_dealt_to_files() -> None:
    head = "head {}".format
    files = StreamFiles(
        path=str, dtype=np.dtype("<u2"), total=11, each=6, chunk=3, head=lambda n: head(n).encode()
    )
    assert files.locate(2) == ("0", 10, b"", 1)
    assert files.locate(3) == ("0", 12, b"head 3", 3)
    assert files.locate(9) == ("1", 12, b"head 2", 3)
    assert files.counts == {"0": 6, "1": 5}


class TestMegatron:
    @pytest.mark.parametrize(
        ("ids", "code", "width"), [(65_499, 8, 2), (65_500, 4, 4), (LARGE, 4, 4)]
    )
    def test_ids_are_narrow_where_megatron_has_them_so(
        self, make: Make, ids: int, code: int, width: int
    ) -> None:
        root = make("megatron", vocab_size=ids)
        tokens = sum(len(held) + 1 for held in documents_of()["train"])
        assert (root / "train/text_document.idx").read_bytes()[17] == code
        assert (root / "train/text_document.bin").stat().st_size == width * tokens
        assert read_megatron(root)["train"] == with_end(documents_of()["train"])

    def test_the_counts_of_all_pairs_are_listed(self, make: Make) -> None:
        found = json.loads((make("megatron") / "sequences.json").read_text())
        assert found == {"holdout/text_document": [3, 4], "train/text_document": [6, 7]}

    def test_pairs_of_a_part_are_cut_between_documents(self, make: Make) -> None:
        root = make("megatron", max_file_size=1024, vocab_size=LARGE)
        assert read_megatron(root)["train"] == with_end(documents_of()["train"])
        assert sorted(file.name for file in (root / "train").glob("*.bin")) == [
            f"0000{part}-000_text_document.bin" for part in range(3)
        ]

    def test_a_file_is_below_the_bound_unless_a_document_is_not(self, tmp_path: Path) -> None:
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
        expected = [ids for part in parts for split, ids in part if split == "train"]
        assert read_megatron(root)["train"] == with_end(expected)
        listed = json.loads((root / "sequences.json").read_text())
        assert sum(documents for documents, _ in listed.values()) == len(documents)


def test_a_chunk_of_litdata_is_below_the_bound_with_its_head(tmp_path: Path) -> None:
    documents = [[n % 9, 1] for n in range(900)]
    parts = builder.numbered_parts(documents, holdout_every=1000)
    dataset = builder.build(tmp_path / "dataset", parts, shard_samples=20)
    root = exported(dataset.root, tmp_path / "out", "litdata", max_file_size=2000)
    sizes = [file.stat().st_size for file in root.glob("train/*.bin")]
    assert max(sizes) <= 2000
    assert sum(size > 1900 for size in sizes) >= len(sizes) - 3  # the last ones of parts
    assert verify_export(LocalStorage(root)).sound


class TestNanogpt:
    def test_it_is_ids_and_nothing_else(self, make: Make) -> None:
        root = make("nanogpt")
        expected = [token for ids in with_end(documents_of()["train"]) for token in ids]
        assert (root / "train.bin").read_bytes() == np.array(expected, "<u2").tobytes()

    def test_more_ids_than_16_bits_hold_are_refused(self, make: Make) -> None:
        with pytest.raises(UsageError, match=r"65,536 different ones; .* has 70,000.*megatron"):
            make("nanogpt", vocab_size=LARGE)

    def test_options_of_no_use_are_refused(self, make: Make) -> None:
        with pytest.raises(UsageError, match="--max-file-size is of no use with nanogpt"):
            make("nanogpt", max_file_size=2000)


class TestLlmc:
    def test_the_first_bytes_are_those_of_the_description(self, make: Make) -> None:
        data = (make("llmc") / "text_val_000000.bin").read_bytes()
        tokens = sum(map(len, with_end(documents_of()["holdout"])))
        assert data[:12] == np.array([20240520, 1, tokens], "<i4").tobytes()
        assert data[12:1024] == bytes(1012)
        assert data[1024:1028] == np.array([99, 4], "<u2").tobytes()
        assert len(data) == 1024 + 2 * tokens

    def test_large_vocabularies_have_the_other_header(self, make: Make) -> None:
        root = make("llmc", vocab_size=LARGE)
        head = np.fromfile(root / "text_train_000001.bin", "<i4", 3)
        assert head[:2].tolist() == [20240801, 7]
        assert read_llmc(root)["train"] == with_end(documents_of()["train"])

    def test_files_are_cut_at_a_number_of_ids(self, make: Make) -> None:
        root = make("llmc", max_file_size=1024 + 100)
        assert read_llmc(root) == {split: with_end(held) for split, held in documents_of().items()}
        files = sorted(root.glob("text_train_*.bin"))
        assert [file.name for file in files[:2]] == [
            "text_train_000001.bin",
            "text_train_000002.bin",
        ]
        held = [len(read_llmc_file(file)) for file in files]
        assert held[:-1] == [50] * (len(held) - 1)
        assert len(held) > 2

    @pytest.mark.parametrize("size", [1025, 1024 + 2**32])
    def test_what_the_header_cannot_count_is_refused(self, make: Make, size: int) -> None:
        with pytest.raises(UsageError, match=r"of llmc has at (least 1,026|most [\d,]+) here"):
            make("llmc", max_file_size=size)


class TestModdedNanogpt:
    def test_train_has_at_least_two_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(builder, "EOT", 50256)
        dataset = make_dataset(tmp_path, vocab_size=50257).root
        root = exported(dataset, tmp_path / "out", "modded-nanogpt")
        files = sorted(root.glob("fineweb_train_*.bin"))
        assert len(files) == 2
        assert sorted(root.glob("fineweb_val_*.bin")) == [root / "fineweb_val_000000.bin"]
        found = read_llmc(root, "fineweb", 50256)
        assert found == {split: with_end(held, 50256) for split, held in documents_of().items()}

    def test_other_ends_of_text_are_refused(self, make: Make) -> None:
        with pytest.raises(UsageError, match="by the id 50256, GPT-2's end of text; .* is 99"):
            make("modded-nanogpt")


def test_levanter_s_shards_and_chunks_are_cut_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.core.derive.formats.levanter._CHUNK", 7)
    monkeypatch.setattr("tasks.core.derive.formats.levanter._CHUNKS", 3)
    monkeypatch.setattr("tasks.core.derive.formats.levanter._INDEX_BYTES", 16 * 3 + 4)
    dataset = make_dataset(tmp_path).root
    root = exported(dataset, tmp_path / "out", "levanter")
    assert len([*root.glob("train/input_ids/data/c/*")]) > 5
    assert read_levanter(root) == {split: with_end(held) for split, held in documents_of().items()}
    assert verify_export(LocalStorage(root)).findings == ()


def test_parquet_has_row_groups_that_a_reader_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr("tasks.core.derive.formats.per_part._GROUP_TOKENS", 5)
    dataset = make_dataset(tmp_path, shard_samples=100).root
    root = exported(dataset, tmp_path / "out", "parquet")
    assert read_parquet(root)["train"] == with_end(documents_of()["train"])
    metadata = pq.read_metadata(root / "train/00000.parquet")
    assert metadata.num_row_groups > 1
    assert metadata.row_group(0).column(0).has_offset_index  # so pages end with documents
    assert "input_ids: list<element: int32>" in str(pq.read_schema(root / "train/00000.parquet"))


def test_a_split_without_documents(tmp_path: Path) -> None:
    parts = [[("train", [1, 2])], [("train", [3])]]
    dataset = builder.build(tmp_path / "dataset", parts)
    assert set(planned(dataset.root, tmp_path / "plan", "nanogpt").form.totals) == {"train"}
    root = exported(dataset.root, tmp_path / "out", "nanogpt")
    assert cut(np.fromfile(root / "train.bin", "<u2")) == [[1, 2, 99], [3, 99]]
    assert read_megatron(exported(dataset.root, tmp_path / "pair", "megatron"))["holdout"] == []
