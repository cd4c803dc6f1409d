"""A shuffled dataset: a permutation of all documents, whatever the parts and formats."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext import StreamingTokenDataset
from streaming_ext.format.provenance import SourceRows
from streaming_ext.format.shuffled import SOURCES_PATH, document_keys, sources_of
from streaming_ext.training.trace import trace_step
from tests.streaming_ext.text.packed import write_documents
from tests.tasks.core.build_dataset import file_hashes, manifest_of, require_sound
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
