"""A shuffled dataset: a permutation of all documents, whatever the parts and formats."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from streaming_ext import StreamingTokenDataset
from streaming_ext.format.provenance import SourceRows
from streaming_ext.format.reading import read_manifest
from streaming_ext.format.shuffled import SOURCES_PATH, document_keys, sources_of
from streaming_ext.reading.documents import split_documents
from streaming_ext.store import LocalStorage
from streaming_ext.training.trace import trace_step
from tasks.core.check.verify import verify
from tests.tasks.core.build_dataset import build_from
from tests.tasks.core.shuffle.building import DOCUMENTS, FILES, begin, build, documents_of, hash_of


def test_permutation(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    root = build(lines, tmp_path / "dataset", vocabulary, shuffle_seed=5)
    manifest = read_manifest(LocalStorage(root))
    assert len(manifest.parts) > 4
    found = documents_of(root)
    assert found.sources is not None
    assert found.positions is not None
    pairs = set(zip(found.sources.tolist(), found.rows.tolist(), strict=True))
    expected = {(s, r) for s in range(FILES) for r in range(DOCUMENTS + 1) if r != 7}
    assert len(found.rows) == len(expected)
    assert pairs == expected
    keys = document_keys(5, found.sources, found.positions)
    assert (keys[1:] >= keys[:-1]).all()
    assert not (root / "shuffle").exists()
    sources = sources_of((root / SOURCES_PATH).read_bytes())
    assert [source.rows for source in sources] == [DOCUMENTS + 1] * FILES
    assert [source.documents for source in sources] == [DOCUMENTS] * FILES
    assert manifest.shuffled is not None
    assert manifest.shuffled.null_documents == FILES
    assert verify(LocalStorage(root), deep=True).findings == ()


def test_seed(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    one, other = (
        hash_of(build(lines, tmp_path / str(seed), vocabulary, shuffle_seed=seed))
        for seed in (1, 2)
    )
    assert one["train/index.json"] != other["train/index.json"]


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "stream"])
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
            with pa.ipc.new_stream(sources / f"{number}.arrow", table.schema) as writer:
                writer.write_table(table, max_chunksize=11)
    size = (next(sources.iterdir())).stat().st_size
    pattern = sources / "*.json" if kind == "json" else sources
    made = [
        hash_of(build(pattern, tmp_path / name, vocabulary, **sizes))
        for name, sizes in {
            "whole": {},
            "cut": {"part_size": max(size // 3, 1024)},
            "together": {"min_part_size": 2 * size},
        }.items()
    ]
    assert len(made[0]) > 10
    assert made.count(made[0]) == len(made)


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
    ((_, _, found),) = split_documents(dataset.reader.caches[0]).find("2.jsonl", 0)
    assert (found.source, found.row) == (str(lines / "2.jsonl"), 0)
    rest = seen(exclude=tmp_path / "excluded.parquet")
    assert rest
    assert not rest & left_out


def test_partitions_of_nodes(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
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
        rows = SourceRows.of_sources(sources)
        for source, row in zip(documents.sources.tolist(), documents.rows.tolist(), strict=True):
            origin = rows.of(row, source)
            found.append((origin.source, origin.from_byte, origin.row))
    assert len(set(found)) == len(found) == FILES * DOCUMENTS
