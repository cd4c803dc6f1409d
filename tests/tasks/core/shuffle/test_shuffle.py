"""A shuffled dataset: a permutation of all documents, whatever the parts, formats and kills."""

import errno
import json
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from streaming_ext import StreamingTokenDataset
from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.places import PlacesOfSources
from streaming_ext.dataset.provenance import DocumentRows, read_provenance
from streaming_ext.dataset.reading import read_manifest, read_record
from streaming_ext.dataset.schema import FileRecord
from streaming_ext.dataset.shuffled.keys import document_keys
from streaming_ext.dataset.shuffled.source_table import SOURCES_PATH, sources_of
from streaming_ext.documents_of_part import find_document
from streaming_ext.errors import (
    ConfigMismatchError,
    CorruptDatasetError,
    ScratchError,
    StorageError,
)
from streaming_ext.text.memory import limit_memory
from streaming_ext.text.sources import list_sources
from streaming_ext.trace import trace_step
from tasks.core.config import ShardConfig
from tasks.core.estimate.shuffling import second_stage
from tasks.core.outputs.part_files import PartFiles
from tasks.core.outputs.publish import publish
from tasks.core.planning.look import look, take_up
from tasks.core.planning.run_plan import RunPlan
from tasks.core.shuffle.arrange import arrange
from tasks.core.shuffle.run_writer import RunWriter
from tasks.core.storage import LocalStorage
from tasks.core.synthetic import make_documents
from tasks.core.verify.verify import verify
from tests.tasks.core.build_dataset import Forger, build_from, gather_all, tokenize_all

FILES, DOCUMENTS = 3, 30
SETTINGS: dict[str, Any] = {"shuffle": "documents", "shard_size": 2**13}


@pytest.fixture(scope="module")
def texts() -> list[list[str]]:
    return [make_documents(DOCUMENTS, seed=number) for number in range(FILES)]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory, texts: list[list[str]]) -> Path:
    folder = tmp_path_factory.mktemp("lines")
    for number, documents in enumerate(texts):
        rows = [json.dumps({"text": text}) for text in documents]
        rows.insert(7, "")  # a row without a text
        (folder / f"{number}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def build(sources: Path, root: Path, vocabulary: Path, **config: object) -> Path:
    return build_from(sources, root, tokenizer=str(vocabulary), **(SETTINGS | config))


def hash_of(root: Path) -> dict[str, str]:
    return {
        file.relative_to(root).as_posix(): content_hash(file.read_bytes())
        for file in sorted(root.rglob("*"))
        if file.is_file() and not file.is_relative_to(root / "runs")
    }


def documents_of(root: Path) -> DocumentRows:
    manifest = read_manifest(LocalStorage(root))
    batches = [
        batch
        for part in manifest.parts
        for batch in read_provenance(
            (root / read_record(LocalStorage(root), part.part).documents.path).read_bytes()
        )
    ]
    return DocumentRows(
        *[
            np.concatenate([getattr(batch, name) for batch in batches])
            for name in ("rows", "splits", "tokens", "sources", "places")
        ]
    )


def test_permutation(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    root = build(lines, tmp_path / "dataset", vocabulary, shuffle_seed=5)
    manifest = read_manifest(LocalStorage(root))
    assert len(manifest.parts) > 4
    assert manifest.format == "1.1"
    found = documents_of(root)
    assert found.sources is not None
    assert found.places is not None
    pairs = set(zip(found.sources.tolist(), found.rows.tolist(), strict=True))
    expected = {(s, r) for s in range(FILES) for r in range(DOCUMENTS + 1) if r != 7}
    assert len(found.rows) == len(expected)
    assert pairs == expected
    keys = document_keys(5, found.sources, found.places)
    assert (keys[1:] >= keys[:-1]).all()
    assert not (root / "shuffle").exists()
    sources = sources_of((root / SOURCES_PATH).read_bytes())
    assert [source.rows for source in sources] == [DOCUMENTS + 1] * FILES
    assert [source.documents for source in sources] == [DOCUMENTS] * FILES
    assert manifest.shuffled is not None
    assert manifest.shuffled.null_documents == FILES
    assert verify(LocalStorage(root), deep=True).findings == ()


def test_lists_do_not_hang_on_how_much_is_merged_at_a_time(
    tmp_path: Path, lines: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other parts make runs of another size, and so other steps: a few bytes may decide."""
    monkeypatch.setattr("tasks.core.outputs.part_files._DOCUMENTS_A_ROW_GROUP", 8)
    settings: dict[str, Any] = {"shard_size": 2**18, "keep_columns": ("text",)}
    wanted = hash_of(build(lines, tmp_path / "whole", vocabulary, **settings))
    (file,) = (tmp_path / "whole/documents").glob("0*.parquet")
    groups = pq.ParquetFile(file).metadata
    assert [groups.row_group(n).num_rows for n in range(groups.num_row_groups)] == [8] * 11 + [2]
    monkeypatch.setattr("tasks.core.shuffle.gather.STEP_BYTES", 20_000)
    for size in ("1KiB", "1MiB"):
        assert (
            hash_of(build(lines, tmp_path / size, vocabulary, part_size=size, **settings)) == wanted
        )


def test_in_little_memory(
    tmp_path: Path, lines: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that may take less than a run of full size has smaller runs, to the same bytes."""
    wanted = hash_of(build(lines, tmp_path / "plenty", vocabulary))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    monkeypatch.setenv("SHARDMILL_WORKER_MEMORY", "360MiB")
    limit_memory()
    try:
        found = hash_of(build(lines, tmp_path / "little", vocabulary))
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    assert found == wanted


def test_seed(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    one, other = (
        hash_of(build(lines, tmp_path / str(seed), vocabulary, shuffle_seed=seed))
        for seed in (1, 2)
    )
    assert one["train/index.json"] != other["train/index.json"]


def arrow(path: Path, table: pa.Table, *, stream: bool) -> None:
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=11)


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "stream", "file"])
def test_any_part_size(tmp_path: Path, texts: list[list[str]], vocabulary: Path, kind: str) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    for number, documents in enumerate(texts):
        table = pa.table({"text": documents})
        if kind == "parquet":
            pq.write_table(table, sources / f"{number}.parquet", row_group_size=9)
        elif kind in {"json", "jsonl"}:
            data = "".join(json.dumps({"text": text}) + "\n" for text in documents)
            (sources / f"{number}.{kind}").write_text(data)
        else:
            arrow(sources / f"{number}.arrow", table, stream=kind == "stream")
    size = (next(sources.iterdir())).stat().st_size
    pattern = sources / "*.json" if kind == "json" else sources
    made = [
        hash_of(build(pattern, tmp_path / name, vocabulary, **sizes))
        for name, sizes in {
            "whole": {},
            "cut": {"part_size": max(size // 3, 1024)},
            "small": {"part_size": max(size // 7, 1024)},
            "together": {"min_part_size": 2 * size},
        }.items()
    ]
    assert len(made[0]) > 10
    assert made.count(made[0]) == len(made)


def test_small_runs(
    tmp_path: Path, lines: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = hash_of(build(lines, tmp_path / "one", vocabulary))
    monkeypatch.setattr("streaming_ext.text.documents.json.lines.MAX_BATCH_ROWS", 5)
    monkeypatch.setattr("tasks.core.shuffle.run_writer.RUN_BYTES", 9000)
    monkeypatch.setattr("tasks.core.shuffle.run_writer.BLOCK_BYTES", 300)
    monkeypatch.setattr("tasks.core.shuffle.run_writer._TAKEN_BYTES", 1000)
    monkeypatch.setattr("tasks.core.shuffle.gather._LISTED_BYTES", 1000)
    monkeypatch.setattr("tasks.core.shuffle.range_documents._TAKEN_BYTES", 600)
    monkeypatch.setattr("tasks.core.shuffle.gather.STEP_BYTES", 2000)
    plan, storage = begin(lines, tmp_path / "many", vocabulary)
    tokenize_all(plan, storage)
    assert len(storage.list("shuffle")) > 3 * FILES
    assert hash_of(build(lines, tmp_path / "many", vocabulary)) == whole


class Counting(LocalStorage):
    """A store that counts the ranges of runs that it is asked for."""

    asked = 0

    @property
    def remote(self) -> bool:
        return True

    def read_range_into(
        self, path: str, start: int, room: memoryview, seen: Callable[[memoryview], object]
    ) -> None:
        self.asked += path.endswith(".run")
        super().read_range_into(path, start, room, seen)


def test_a_store_is_asked_once_for_each_part_of_each_stage(
    tmp_path: Path, lines: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = hash_of(build(lines, tmp_path / "one", vocabulary))
    monkeypatch.setattr("streaming_ext.text.documents.json.lines.MAX_BATCH_ROWS", 5)
    monkeypatch.setattr("tasks.core.shuffle.run_writer.RUN_BYTES", 9000)
    plan, _ = begin(lines, tmp_path / "many", vocabulary)
    storage = Counting(tmp_path / "many")
    tokenize_all(plan, storage)
    runs = [path for path in storage.list("shuffle") if path.endswith(".run")]
    assert len(runs) == FILES
    second = arrange(plan, storage)
    gather_all(second, storage)
    told = second_stage([1000] * FILES, 1.0, 1.0, plan.spec, remote=True)
    assert told is not None
    assert storage.asked == replace(told, parts=len(second.parts)).ranges_of_runs
    publish(second, storage)
    storage.close()
    assert hash_of(tmp_path / "many") == whole


def begin(
    lines: Path, root: Path, vocabulary: Path, **config: object
) -> tuple[RunPlan, LocalStorage]:
    settings = {
        "pattern": "gpt2", "sequence_length": 64, "holdout_fraction": 0.2,
        "engine": "reference", "workers": 1, **SETTINGS, **config,
    }  # fmt: skip
    made = ShardConfig(
        sources=(str(lines),), output=str(root), tokenizer=str(vocabulary), **settings
    )
    storage = LocalStorage(root)
    storage.create()
    sources = tuple(list_sources(made.sources))
    return take_up(look(made, storage, sources), storage, sources), storage


def test_taken_up(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    whole = hash_of(build(lines, tmp_path / "whole", vocabulary))
    root = tmp_path / "killed"
    plan, storage = begin(lines, root, vocabulary)
    assert plan.todo == (0, 1, 2)
    (root / "shuffle").mkdir()
    (root / "shuffle" / "00001-000.run").write_bytes(b"cut")  # of a part that was never recorded
    tokenize_all(replace(plan, todo=(0, 2)), storage)
    plan, storage = begin(lines, root, vocabulary)
    assert plan.todo == (1,)
    assert not (root / "shuffle" / "00001-000.run").exists()
    tokenize_all(plan, storage)
    second = arrange(plan, storage)
    assert len(second.todo) > 4
    gather_all(replace(second, todo=second.todo[::2]), storage)
    (root / "train" / "00001").mkdir(exist_ok=True)
    (root / "train" / "00001" / "shard.00000.mds.zstd").write_bytes(b"cut")
    plan, storage = begin(lines, root, vocabulary)
    assert plan.todo == ()
    second = arrange(plan, storage)
    assert second.todo == tuple(range(len(second.parts)))[1::2]
    gather_all(second, storage)
    build(lines, root, vocabulary)
    assert hash_of(root) == whole
    plan, _ = begin(lines, root, vocabulary)
    assert plan.published


def test_runs_left_by_a_kill_after_the_manifest(
    tmp_path: Path, lines: Path, vocabulary: Path
) -> None:
    root = build(lines, tmp_path / "dataset", vocabulary)
    whole = hash_of(root)
    (root / "shuffle").mkdir()
    (root / "shuffle" / "00000-000.run").write_bytes(b"left")
    assert [finding.file for finding in verify(LocalStorage(root)).findings] == [
        "shuffle/00000-000.run"
    ]
    build(lines, root, vocabulary)
    assert hash_of(root) == whole


def test_other_sources_or_configuration(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    root = build(lines, tmp_path / "dataset", vocabulary)
    with pytest.raises(ConfigMismatchError, match="shuffle_seed"):
        begin(lines, root, vocabulary, shuffle_seed=9)
    with pytest.raises(ConfigMismatchError, match="shuffle"):
        begin(lines, root, vocabulary, shuffle=None)
    other = tmp_path / "other"
    other.mkdir()
    for file in lines.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ConfigMismatchError, match="this run"):
        begin(other, root, vocabulary)
    plan, storage = begin(lines, tmp_path / "begun", vocabulary)
    tokenize_all(plan, storage)
    with pytest.raises(ConfigMismatchError, match="shuffle"):
        begin(lines, tmp_path / "begun", vocabulary, shuffle=None)


def test_changed_source(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    for file in lines.iterdir():
        (sources / file.name).write_bytes(file.read_bytes())
    root = build(sources, tmp_path / "dataset", vocabulary, part_size=5000)
    begin(sources, root, vocabulary)
    data = bytearray((sources / "1.jsonl").read_bytes())
    data[40] ^= 1
    (sources / "1.jsonl").write_bytes(data)
    with pytest.raises(ConfigMismatchError, match="content"):
        begin(sources, root, vocabulary)


def test_damaged_run(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    plan, storage = begin(lines, tmp_path / "dataset", vocabulary)
    tokenize_all(plan, storage)
    second = arrange(plan, storage)
    run = tmp_path / "dataset" / "shuffle" / "00001-000.run"
    data = bytearray(run.read_bytes())
    data[len(data) // 2] ^= 1
    run.unlink()
    run.write_bytes(data)
    with pytest.raises(CorruptDatasetError, match="00001-000.run is damaged"):
        gather_all(second, storage)


def test_no_room(tmp_path: Path, lines: Path, vocabulary: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(LocalStorage, "free_bytes", lambda self: 10_000)
    with pytest.raises(StorageError, match="free; with --shuffle"):
        begin(lines, tmp_path / "dataset", vocabulary)
    assert begin(lines, tmp_path / "other", vocabulary, shuffle=None)[0].todo


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
    assert "permutation of seed 0" in finding.problem


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
    assert "a part is not made of what" in words


def test_rows_dropped_of_several_files(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    settings: dict[str, Any] = {"min_bytes": 2000, "tokenizer": str(vocabulary)}
    alone = build_from(lines, tmp_path / "alone", **settings)
    together = build_from(lines, tmp_path / "together", min_part_size=2**20, **settings)
    dropped = [
        sum(part.dropped_documents["min_bytes"] for part in read_manifest(LocalStorage(root)).parts)
        for root in (alone, together)
    ]
    assert dropped[0] == dropped[1] > 0


def test_excluded_in_training(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    root = build(lines, tmp_path / "dataset", vocabulary, holdout_fraction=0)
    left_out = {(str(lines / "1.jsonl"), 4), (str(lines / "2.jsonl"), 0)}
    table = pa.Table.from_pylist([{"source": url, "row": row} for url, row in left_out])
    pq.write_table(table, tmp_path / "excluded.parquet")

    def seen(**options: Any) -> set[tuple[str, int]]:
        dataset = StreamingTokenDataset(
            local=str(root), split="train", batch_size=1, dp_rank=0, dp_world_size=1, **options
        )
        return {
            (span.source, span.row)
            for step in range(dataset.plan.steps_left(dataset.plan.start(0)))
            for trace in trace_step(dataset, step)
            for span in trace.spans
        }

    assert left_out < seen()
    dataset = StreamingTokenDataset(
        local=str(root), split="train", batch_size=1, dp_rank=0, dp_world_size=1
    )
    ((_, _, place),) = find_document(dataset.reader.caches[0], "2.jsonl", 0)
    assert (place.source, place.row) == (str(lines / "2.jsonl"), 0)
    rest = seen(exclude=tmp_path / "excluded.parquet")
    assert rest
    assert not rest & left_out


def test_lost_run(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    root = tmp_path / "dataset"
    plan, storage = begin(lines, root, vocabulary)
    tokenize_all(plan, storage)
    second = arrange(plan, storage)
    (root / "shuffle" / "00001-000.run").unlink()
    with pytest.raises(StorageError, match=r"00001-000\.run is gone"):
        gather_all(second, storage)
    plan, storage = begin(lines, root, vocabulary)
    assert plan.todo == (1,)  # made again, and no other
    assert build(lines, root, vocabulary).exists()
    assert hash_of(root) == hash_of(build(lines, tmp_path / "whole", vocabulary))


def test_full_scratch(
    tmp_path: Path, lines: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "dataset"
    plan, storage = begin(lines, root, vocabulary)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "_flush", full)
        with pytest.raises(ScratchError, match="No space left"):
            tokenize_all(plan, storage)
    tokenize_all(plan, storage)
    second = arrange(plan, storage)
    with monkeypatch.context() as patch:
        patch.setattr(PartFiles, "finish", full)
        with pytest.raises(ScratchError, match="No space left"):
            gather_all(second, storage)
    assert not list((root / "parts").glob("*"))
    gather_all(second, storage)


def test_shares_of_nodes(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    size = max(file.stat().st_size for file in lines.iterdir()) // 3
    found: list[tuple[str, int, int]] = []
    for rank in range(2):
        root = build(
            lines, tmp_path / str(rank), vocabulary, part_size=size, nodes=2, node_rank=rank
        )
        assert verify(LocalStorage(root), deep=True).findings == ()
        assert begin(lines, root, vocabulary, part_size=size, nodes=2, node_rank=rank)[0].published
        sources = sources_of((root / SOURCES_PATH).read_bytes())
        documents = documents_of(root)
        assert documents.sources is not None
        places = PlacesOfSources(sources)
        for source, row in zip(documents.sources.tolist(), documents.rows.tolist(), strict=True):
            place = places.of(row, source)
            found.append((place.source, place.from_byte, place.row))
    assert len(set(found)) == len(found) == FILES * DOCUMENTS
