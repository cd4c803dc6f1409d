"""Damaged spills, full disks, datasets in another order."""

import errno
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import (
    CorruptDatasetError,
    ScratchError,
    StorageError,
)
from streaming_ext.format.schema import FileRecord, content_hash
from streaming_ext.format.shuffled import SOURCES_PATH
from streaming_ext.store import LocalStorage
from streaming_ext.writing.part_files import PartFiles
from tasks.core.check.verify import verify
from tasks.core.shuffle.sort import SortedSpills
from tests.tasks.core.build_dataset import Forger
from tests.tasks.core.running import do_parts, second_phase
from tests.tasks.core.shuffle.building import DOCUMENTS, begin, build


def test_damaged_spill(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    plan, storage = begin(lines, tmp_path / "dataset", vocabulary)
    do_parts(plan, storage)
    second = second_phase(plan, storage)
    spill = tmp_path / "dataset" / "shuffle" / "00001-000.spill"
    data = bytearray(spill.read_bytes())
    data[len(data) // 2] ^= 1
    spill.unlink()
    spill.write_bytes(data)
    with pytest.raises(CorruptDatasetError, match="00001-000.spill is damaged"):
        do_parts(second, storage)


def test_no_room(tmp_path: Path, lines: Path, vocabulary: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(LocalStorage, "free_bytes", lambda self: 10_000)
    with pytest.raises(StorageError, match="free; with --shuffle"):
        begin(lines, tmp_path / "dataset", vocabulary)
    assert begin(lines, tmp_path / "other", vocabulary, shuffle=None)[0].todo


def test_full_scratch(
    tmp_path: Path, lines: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "dataset"
    plan, storage = begin(lines, root, vocabulary)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(SortedSpills, "_flush", full)
        with pytest.raises(ScratchError, match="No space left"):
            do_parts(plan, storage)
    do_parts(plan, storage)
    second = second_phase(plan, storage)
    with monkeypatch.context() as patch:
        patch.setattr(PartFiles, "finish", full)
        with pytest.raises(ScratchError, match="No space left"):
            do_parts(second, storage)
    assert not list((root / "parts").glob("*"))
    do_parts(second, storage)


def test_verify_finds_another_order(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    root = build(lines, tmp_path / "dataset", vocabulary, holdout_fraction=0)
    forged = Forger(root)
    path = forged.records[1].documents.path
    table = pq.read_table(root / path)
    swapped = table.take([1, 0, *range(2, len(table))])
    pq.write_table(swapped, root / path)
    ids = forged.stream(1, "train")
    first, second = (int(n) + 1 for n in table["tokens"].to_pylist()[:2])
    both = ids[: first + second].copy()
    ids[:second], ids[second : first + second] = both[first:], both[:first]
    forged.set_stream(1, "train", ids)
    forged.change(1, documents=FileRecord.of(path, (root / path).read_bytes()))
    forged.seal()
    (finding,) = verify(LocalStorage(root)).findings
    assert finding.file == path
    assert "cannot be right" in finding.problem


def test_verify_finds_a_lost_document(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    root = build(lines, tmp_path / "dataset", vocabulary)
    table = pq.read_table(root / SOURCES_PATH)
    more = [count + 1 for count in table["documents"].to_pylist()]
    pq.write_table(table.set_column(7, "documents", pa.array(more)), root / SOURCES_PATH)
    data = (root / SOURCES_PATH).read_bytes()
    found = verify(LocalStorage(root)).findings
    assert [finding.file for finding in found] == [SOURCES_PATH]  # its hash is another one
    manifest = json.loads((root / "manifest.json").read_text())
    manifest["shuffled"]["sources"] |= {"size": len(data), "xxh128": content_hash(data)}
    (root / "manifest.json").write_text(
        json.dumps(manifest, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    )
    words = " ".join(finding.problem for finding in verify(LocalStorage(root)).findings)
    assert f"{DOCUMENTS + 1} documents of" in words
    assert "not those of the sources" in words
