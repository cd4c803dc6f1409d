"""A part's shards and record by hand: samples of 4 ids, 3 samples per shard, one id per byte."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from streaming_ext.base.errors import StorageError
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import from_json
from streaming_ext.store import LocalStorage
from tests.tasks.core.doubles import (
    EOT,
    ids_in,
    make_spec,
    tokenized,
    write_job,
    write_part,
    write_source,
)


class Recorder(LocalStorage):
    """Records the order in which files are put, and the fraction done after each."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.order: list[str] = []
        self.fractions: list[float] = []

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        self.order.append(path)

    def put_file(self, path: str, file: Path, *, lasting: bool = True) -> None:
        super().put_file(path, file, lasting=lasting)
        self.order.append(path)


@pytest.fixture
def storage(tmp_path) -> Recorder:
    made = Recorder(tmp_path / "out")
    made.create()
    return made


def written(storage: Recorder, scratch: Path) -> PartRecord:
    """Write the tokenized part as part 7, and return its record on the storage."""

    def report(progress: object) -> None:
        storage.fractions.append(progress.fraction)  # type: ignore[attr-defined]

    done = write_part(write_job(scratch, storage.root, part=7), storage, report)
    record = from_json(PartRecord, storage.read("parts/00007.json"), where="x")
    shards = [shard for split in record.splits.values() for shard in split.shards]
    assert done.shard_bytes == sum(shard.size for shard in shards)
    return record


def make(storage: Recorder, texts: Sequence[str | None]) -> PartRecord:
    """Tokenize and write texts as part 7."""
    folder = storage.root.parent
    tokenized(write_source(folder / "x.parquet", texts), folder / "s", make_spec(), part=7)
    return written(storage, folder / "s")


def test_by_hand(storage) -> None:
    record = make(storage, ["abc", None, "de", ""])
    # 7 tokens make two samples; one end-of-text id fills up the second.
    raw = record.spec.shard_format.header(2)
    raw += np.array([97, 98, 99, EOT, 100, 101, EOT, EOT], "<u2").tobytes()
    assert storage.read("train/00007/shard.00000.mds") == raw
    assert set(storage.order[:-1]) == {"train/00007/shard.00000.mds", "documents/00007.parquet"}
    assert storage.order[-1] == "parts/00007.json"


def test_a_document_longer_than_a_shard(storage) -> None:
    record = make(storage, ["x" * 30])  # a shard holds 12 tokens
    split = record.splits["train"]
    assert [(shard.name, shard.samples) for shard in split.shards] == [
        ("00007/shard.00000.mds", 3),
        ("00007/shard.00001.mds", 3),
        ("00007/shard.00002.mds", 2),
    ]
    assert ids_in(storage.root, record.spec, "train", split) == [ord("x")] * 30 + [EOT]
    assert len(storage.fractions) == 4  # three shards and the provenance
    assert storage.fractions == sorted(storage.fractions)
    assert (storage.fractions[0] > 0, storage.fractions[-1]) == (True, 1.0)


@pytest.mark.parametrize("lost", ["the output's folder", "a shard on scratch"])
def test_a_part_that_is_not_whole_has_no_record(storage, tmp_path, lost) -> None:
    tokenized(write_source(tmp_path / "x.parquet", ["x" * 30]), tmp_path / "s", make_spec(), part=7)
    if lost == "a shard on scratch":
        (tmp_path / "s/train/00007/shard.00001.mds").unlink()
        said = r"shard\.00001\.mds .* no such file"
    else:
        (storage.root / "documents").write_bytes(b"in the way")
        said = r"Cannot write documents/00007\.parquet"
    with pytest.raises(StorageError, match=said):
        written(storage, tmp_path / "s")
    assert storage.list("parts") == {}


def test_a_part_is_written_again_after_it_was_cut_off(storage, tmp_path) -> None:
    make(storage, ["x" * 30])
    before = {path: storage.read(path) for path in storage.list()}
    for path in ("parts/00007.json", "train/00007/shard.00001.mds"):
        storage.remove(path)
    written(storage, tmp_path / "s")
    assert {path: storage.read(path) for path in storage.list()} == before
    assert storage.leftovers() == []
