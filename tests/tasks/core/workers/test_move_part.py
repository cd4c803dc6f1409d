"""Shards and record of a part by hand: samples of 4 ids, 3 samples a shard, an id a byte."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming_ext.base.errors import StorageError
from streaming_ext.format.compression import decompress
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import content_hash, from_json
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import LocalStorage
from tasks.core.workers.move_part import WrittenPart
from tests.tasks.core.doubles import (
    EOT,
    byte_tokenizer,
    make_spec,
    tokenized,
    write_job,
    write_part,
    write_source,
)

Texts = list[str | None]


class Recorder(LocalStorage):
    """Remembers the order in which files are put in place."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.order: list[str] = []

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        self.order.append(path)

    def put_file(self, path: str, file: Path, *, lasting: bool = True) -> None:
        super().put_file(path, file, lasting=lasting)
        self.order.append(path)


@pytest.fixture
def storage(tmp_path: Path) -> Recorder:
    made = Recorder(tmp_path / "out")
    made.create()
    return made


@pytest.fixture
def make(
    tmp_path: Path, storage: Recorder
) -> Callable[[Texts, DatasetSpec], tuple[WrittenPart, PartRecord]]:
    """Tokenize and write texts as part 7."""

    def write(texts: Texts, spec: DatasetSpec) -> tuple[WrittenPart, PartRecord]:
        source = write_source(tmp_path / "x.parquet", texts)
        tokenizer = byte_tokenizer(
            vocab_size=spec.tokenizer.vocab_size, eot_id=spec.tokenizer.eot_id
        )
        tokenized(source, tmp_path / "s", spec, tokenizer=tokenizer, part=7)
        written = write_part(write_job(tmp_path / "s", storage.root, part=7), storage)
        record = from_json(PartRecord, storage.read("parts/00007.json"), where="x")
        return written, record

    return write


def ids_of(storage: LocalStorage, record: PartRecord, split: Any) -> list[int]:
    """All ids of a split, padding included."""
    ids: list[int] = []
    for shard in record.splits[split].shards:
        data = storage.read(f"{split}/{shard.name}")
        assert (len(data), content_hash(data)) == (shard.size, shard.hash)
        if shard.zip_name:
            data = decompress(data, codec=record.spec.compression, raw_size=shard.raw_bytes)
        assert (len(data), content_hash(data)) == (shard.raw_bytes, shard.raw_hash)
        ids += record.spec.shard_format.tokens_of(data, shard.samples).reshape(-1).tolist()
    return ids


Make = Callable[[Texts, DatasetSpec], tuple[WrittenPart, PartRecord]]


def test_by_hand(make: Make, storage: Recorder) -> None:
    written, record = make(["abc", None, "de", ""], make_spec())
    # 7 tokens: two samples, the second filled up with one end-of-text id.
    raw = record.spec.shard_format.header(2)
    raw += np.array([97, 98, 99, EOT, 100, 101, EOT, EOT], "<u2").tobytes()
    assert storage.read("train/00007/shard.00000.mds") == raw
    assert set(storage.order[:-1]) == {"train/00007/shard.00000.mds", "documents/00007.parquet"}
    assert storage.order[-1] == "parts/00007.json"
    split = record.splits["train"]
    assert (split.documents, split.tokens, split.padding, split.samples) == (2, 7, 1, 2)
    assert (record.part, record.rows, record.text_bytes) == (7, 4, 5)
    assert (record.null_documents, record.empty_documents) == (1, 1)
    assert written.shard_bytes == len(raw)


def test_a_document_longer_than_a_shard(make: Make, storage: Recorder) -> None:
    written, record = make(["x" * 30], make_spec())  # a shard holds 12 tokens
    assert [shard.samples for shard in record.splits["train"].shards] == [3, 3, 2]
    assert ids_of(storage, record, "train") == [ord("x")] * 30 + [EOT] * 2
    assert [shard.name for shard in record.splits["train"].shards] == [
        f"00007/shard.0000{number}.mds" for number in range(3)
    ]
    assert written.shard_bytes == sum(s.size for s in record.splits["train"].shards)


@pytest.mark.parametrize("compression", ["none", "zstd:1", "gz:6", "bz2"])
def test_compression_changes_only_how_it_is_stored(
    make: Make, storage: Recorder, compression: str
) -> None:
    text = "abcd" * 300
    _, record = make([text], make_spec(compression=compression, shard_size=3000))
    assert ids_of(storage, record, "train") == [*text.encode(), EOT, EOT, EOT, EOT]
    suffix = "" if compression == "none" else f".{compression.partition(':')[0]}"
    shards = record.splits["train"].shards
    assert len(shards) > 1
    for number, shard in enumerate(shards):
        assert shard.name == f"00007/shard.{number:05}.mds{suffix}"
        assert (shard.size < shard.raw_bytes) == bool(suffix)


def test_record_lists_every_file(make: Make, storage: Recorder) -> None:
    texts: Texts = [f"text {number}" for number in range(30)]
    _, record = make(texts, make_spec(holdout_fraction=0.3))
    files = {file.path: (file.size, file.xxh128) for file in record.files()}
    assert files == {
        path: (len(storage.read(path)), content_hash(storage.read(path)))
        for path in storage.list()
        if path != "parts/00007.json"
    }
    assert len(files) > 5


def test_without_its_folder_there_is_no_record(make: Make, storage: Recorder) -> None:
    broken = make_spec()
    (storage.root / "documents").write_bytes(b"in the way")
    with pytest.raises(StorageError, match=r"Cannot write documents/00007\.parquet"):
        make(["abc"], broken)
    assert storage.list("parts") == {}


def test_progress(make: Make, storage: Recorder, tmp_path: Path) -> None:
    make(["x" * 30], make_spec())
    fractions: list[float] = []
    write_part(
        write_job(tmp_path / "s", storage.root, part=7),
        storage,
        lambda progress: fractions.append(progress.fraction),
    )
    assert len(fractions) == 4  # three shards and the provenance
    assert fractions == sorted(fractions)
    assert (fractions[0] > 0, fractions[-1]) == (True, 1.0)


def test_again_after_it_was_cut_off(make: Make, storage: Recorder, tmp_path: Path) -> None:
    make(["x" * 30], make_spec())
    before = {path: storage.read(path) for path in storage.list()}
    for path in ("parts/00007.json", "train/00007/shard.00001.mds"):
        storage.remove(path)
    write_part(write_job(tmp_path / "s", storage.root, part=7), storage)
    assert {path: storage.read(path) for path in storage.list()} == before
    assert storage.leftovers() == []


def test_a_lost_file_on_scratch(storage: Recorder, tmp_path: Path) -> None:
    spec = make_spec()
    tokenized(write_source(tmp_path / "x.parquet", ["x" * 30]), tmp_path / "s", spec)
    (tmp_path / "s/train/00000/shard.00001.mds").unlink()
    with pytest.raises(StorageError, match=r"shard\.00001\.mds .* no such file"):
        write_part(write_job(tmp_path / "s", storage.root), storage)
    assert storage.list("parts") == {}
