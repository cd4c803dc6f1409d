"""A shuffled dataset is a permutation of all documents, whatever the parts and formats."""

import errno
import shutil
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext import StreamingTokenDataset
from streaming_ext.base.errors import ConfigMismatchError, ScratchError, StorageError
from streaming_ext.format.layout import BUILD
from streaming_ext.format.provenance import SourceRows
from streaming_ext.format.schema import FileRecord
from streaming_ext.format.shuffled import SOURCES_PATH, document_keys, sources_of
from streaming_ext.store import LocalStorage
from streaming_ext.training.features.trace import trace_step
from streaming_ext.writing.part_files import PartFiles
from tasks.core.engine.lifecycle import mark_of
from tasks.core.shuffle.sort import SortedSpills
from tests.command_line import file_hashes
from tests.streaming_ext.text.packed import write_documents
from tests.tasks.core.build_dataset import Forger, found_in, manifest_of, require_sound
from tests.tasks.core.check.damage import check
from tests.tasks.core.running import do_parts, second_phase
from tests.tasks.core.shuffle.building import DOCUMENTS, FILES, documents_of


def test_permutation(builder) -> None:
    root = builder.build("dataset", shuffle_seed=5)
    manifest = manifest_of(root)
    assert len(manifest.parts) > 4
    rows, found, places = documents_of(root)
    pairs = zip(found, rows, strict=True)
    expected = {(s, r) for s in range(FILES) for r in range(DOCUMENTS + 1) if r != 7}
    assert len(rows) == len(expected)
    assert {*pairs} == expected
    keys = document_keys(5, found, places)
    assert (keys[1:] >= keys[:-1]).all()
    assert not (root / "shuffle").exists()
    sources = sources_of((root / SOURCES_PATH).read_bytes())
    assert [source.rows for source in sources] == [DOCUMENTS + 1] * FILES
    assert [source.documents for source in sources] == [DOCUMENTS] * FILES
    assert manifest.shuffled.null_documents == FILES
    require_sound(root, deep=True)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_any_part_size(builder, texts, suffix) -> None:
    builder = replace(builder, sources=builder.folder / f"*.{suffix}")
    for number, documents in enumerate(texts):
        write_documents(builder.folder / f"{number}.{suffix}", documents)
    size = (builder.folder / f"0.{suffix}").stat().st_size
    whole = file_hashes(builder.build("whole"))
    assert len(whole) > 10
    assert file_hashes(builder.build("cut", part_size=max(size // 3, 1024))) == whole
    assert file_hashes(builder.build("together", min_part_size=2 * size)) == whole


def test_excluded_in_training(builder, lines) -> None:
    root = builder.build("dataset", holdout_fraction=0)
    left_out = {(str(lines / "1.jsonl"), 4), (str(lines / "2.jsonl"), 0)}
    table = pa.Table.from_pylist([{"source": url, "row": row} for url, row in left_out])
    pq.write_table(table, builder.folder / "excluded.parquet")

    def seen_by(dataset: StreamingTokenDataset) -> set[tuple[str, int]]:
        return {
            (span.source, span.row)
            for step in range(dataset.plan.steps_left(dataset.plan.start(0)))
            for trace in trace_step(dataset, step)
            for span in trace.spans
        }

    options = {"local": root, "batch_size": 1, "dp_rank": 0, "dp_world_size": 1}
    assert left_out < seen_by(StreamingTokenDataset(**options))
    rest = seen_by(StreamingTokenDataset(exclude=builder.folder / "excluded.parquet", **options))
    assert rest
    assert not rest & left_out


def test_partitions_of_nodes(builder, lines) -> None:
    size = max(file.stat().st_size for file in lines.iterdir()) // 3
    found = []
    for rank in range(2):
        root = builder.build(str(rank), part_size=size, nodes=2, node_rank=rank)
        require_sound(root, deep=True)
        assert builder.begin(root, part_size=size, nodes=2, node_rank=rank)[0].published
        sources = sources_of((root / SOURCES_PATH).read_bytes())
        rows = SourceRows.of_sources(sources)
        for row, source, _ in zip(*documents_of(root), strict=True):
            origin = rows.of(int(row), int(source))
            found.append((origin.source, origin.from_byte, origin.row))
    assert len(set(found)) == len(found) == FILES * DOCUMENTS


# --- full disks, kills at odd moments, other sources, datasets in another order


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
    """The specification in the mark of the output is read back unchanged."""
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
    storage.put(BUILD, mark_of(plan))  # the last file to be removed
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
