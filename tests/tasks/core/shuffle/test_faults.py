"""Full disks, kills at odd moments, other sources, datasets in another order."""

import errno
import shutil
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import ConfigMismatchError, ScratchError, StorageError
from streaming_ext.format.layout import BUILD
from streaming_ext.format.schema import FileRecord
from streaming_ext.format.shuffled import SOURCES_PATH
from streaming_ext.store import LocalStorage
from streaming_ext.writing.part_files import PartFiles
from tasks.core.build.engine import mark_of
from tasks.core.shuffle.sort import SortedSpills
from tests.tasks.core.build_dataset import Forger, file_hashes, found_in
from tests.tasks.core.check.damage import check
from tests.tasks.core.running import do_parts, second_phase
from tests.tasks.core.shuffle.building import DOCUMENTS


def test_no_room_for_spills(builder, monkeypatch) -> None:
    monkeypatch.setattr(LocalStorage, "free_bytes", lambda self: 10_000)
    with pytest.raises(StorageError, match="free; with --shuffle"):
        builder.begin("dataset")
    assert builder.begin("other", shuffle=None)[0].todo


def test_full_scratch(builder, monkeypatch) -> None:
    plan, storage = builder.begin("dataset")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for sink, method in ((SortedSpills, "_flush"), (PartFiles, "finish")):
        with monkeypatch.context() as patch:
            patch.setattr(sink, method, full)
            with pytest.raises(ScratchError, match="No space left"):
                do_parts(plan, storage)
        assert not storage.list("parts")
        do_parts(plan, storage)
        if sink is SortedSpills:
            plan = second_phase(plan, storage)


@pytest.mark.parametrize("shuffle", ["documents", None])
def test_a_stopped_run_that_keeps_columns(builder, shuffle) -> None:
    """What the mark of the output says is read as the specification that it was."""
    settings = {"shuffle": shuffle, "keep_columns": ("text",)}
    plan, storage = builder.begin(**settings)
    do_parts(plan, storage, (0,))
    plan, _ = builder.begin(**settings)
    assert plan.todo == (1, 2)


def test_spills_left_by_a_kill_after_the_manifest(builder, whole) -> None:
    root = builder.build("dataset")
    (root / "shuffle").mkdir()
    (root / "shuffle" / "00000-000.spill").write_bytes(b"left")
    assert found_in(root) == ["shuffle/00000-000.spill"]
    plan, storage = builder.begin(root)
    storage.put(BUILD, mark_of(plan))  # the last to go
    builder.build(root)
    assert file_hashes(root) == whole


def test_other_sources_or_configuration(builder, lines) -> None:
    builder = replace(builder, sources=shutil.copytree(lines, builder.folder / "sources"))
    sizes = {"part_size": 20_000}
    root = builder.build("dataset", **sizes)
    assert builder.begin(root, **sizes)[0].published
    plan, storage = builder.begin("started")
    do_parts(plan, storage)
    for output, other, said in (
        ("dataset", {"shuffle_seed": 9}, "shuffle_seed"),
        ("dataset", {"shuffle": None}, "shuffle"),
        ("started", {"shuffle": None}, "shuffle"),
    ):
        with pytest.raises(ConfigMismatchError, match=said):
            builder.begin(output, **other)
    with pytest.raises(ConfigMismatchError, match="this run"):
        replace(builder, sources=lines).begin(root)
    data = bytearray((builder.sources / "1.jsonl").read_bytes())
    data[40] ^= 1
    (builder.sources / "1.jsonl").write_bytes(data)
    with pytest.raises(ConfigMismatchError, match="content"):
        builder.begin(root, **sizes)


def test_verify_finds_another_order(builder) -> None:
    forged = Forger(builder.build("dataset"))
    path = forged.records[1].documents.path
    table = pq.read_table(forged.root / path)
    forged.set_documents(1, table.take([1, 0, *range(2, len(table))]))
    forged.seal()
    (finding,) = check(forged.root).findings
    assert finding.file == path
    assert "cannot be right" in finding.problem


def test_verify_finds_a_lost_document(builder) -> None:
    forged = Forger(builder.build("dataset"))
    path = forged.root / SOURCES_PATH
    table = pq.read_table(path)
    more = pa.array([count + 1 for count in table["documents"].to_pylist()])
    pq.write_table(table.set_column(7, "documents", more), path)
    assert found_in(forged.root) == [SOURCES_PATH]  # its hash is another one
    listed = FileRecord.of(SOURCES_PATH, path.read_bytes()).model_dump()

    def edit(manifest: dict[str, Any]) -> None:
        manifest["shuffled"]["sources"] = listed

    forged.seal(edit)
    words = " ".join(finding.problem for finding in check(forged.root).findings)
    assert f"{DOCUMENTS + 1} documents of" in words
    assert "not those of the sources" in words
