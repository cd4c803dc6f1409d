"""Documents of a range of keys, as runs hold them: cut at the range, in order, none by itself."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streaming_ext.dataset.shuffled.keys import KEY_BITS, document_keys
from streaming_ext.dataset.spec import DatasetSpec
from tasks.core.shuffle.merged_run import merged
from tasks.core.shuffle.range_documents import RangeDocuments, documents_of_range
from tasks.core.shuffle.run_index import RunIndex
from tasks.core.shuffle.run_record import run_path
from tasks.core.shuffle.run_writer import RunWriter
from tasks.core.storage import LocalStorage
from tests.tasks.core.doubles import make_spec

DOCUMENTS, RUNS, KEPT = 40, 3, ("name",)


@pytest.fixture
def spec() -> DatasetSpec:
    return make_spec(shuffle="documents", shuffle_seed=3, keep_columns=KEPT)


@pytest.fixture(params=["one run a part", "several", "merged", "merged at once"])
def index(
    tmp_path: Path, spec: DatasetSpec, monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> RunIndex:  # fmt: skip
    """Document d of part p: d % 7 + 1 times the id 100 p + d, an end-of-text id behind."""
    monkeypatch.setattr("tasks.core.shuffle.run_writer.BLOCK_BYTES", 200)
    if request.param == "merged":
        monkeypatch.setattr("tasks.core.shuffle.merged_run._STEP_BYTES", 500)
    several = request.param != "one run a part"
    runs = []
    for part in range(RUNS):
        writer = RunWriter(tmp_path, part, spec, run_bytes=1500 if several else None)
        for first in range(0, DOCUMENTS, 10):
            rows = np.arange(first, first + 10)
            writer.add(
                np.concatenate([ids_of(part, row) for row in rows]),
                sources=np.full(10, part),
                places=rows,
                rows=rows,
                lengths=rows % 7 + 1,
                sizes=rows + 9,
                in_holdout=rows % 5 == 0,
                values=[pa.array([f"{part} {row}" for row in rows], pa.large_string())],
            )
        found = writer.finish()
        assert (len(found) > 1) is several
        if request.param.startswith("merged"):
            found = [merged(tmp_path, part, spec, found)]
            files = {file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*.run")}
            assert files == {run_path(number, 0) for number in range(part + 1)}
            size = (tmp_path / run_path(part, 0)).stat().st_size
            assert (found[0].file.path, found[0].file.size) == (run_path(part, 0), size)
        runs.append((part, found))
    return RunIndex.of_runs(
        runs,
        piece_firsts=np.arange(RUNS + 1),
        piece_rows=np.zeros(RUNS, np.int64),
        piece_sources=np.arange(RUNS),
        piece_before=np.zeros(RUNS, np.int64),
    )


def ids_of(part: int, row: int) -> Any:
    return np.array([*[100 * part + row] * (row % 7 + 1), 999], "<u2")


def told(found: RangeDocuments) -> list[tuple[int, int]]:
    """Source and row of the documents by key, after all else of each was compared."""
    order = found.order
    pairs = list(zip(found.sources[order].tolist(), found.rows[order].tolist(), strict=True))
    assert (np.diff(found.keys[order].astype(object)) >= 0).all()
    assert found.places[order].tolist() == [row for _, row in pairs]
    assert found.lengths[order].tolist() == [row % 7 + 1 for _, row in pairs]
    assert found.sizes[order].tolist() == [row + 9 for _, row in pairs]
    assert found.in_holdout[order].tolist() == [row % 5 == 0 for _, row in pairs]
    (names,) = found.values
    assert names.take(pa.array(order)).to_pylist() == [f"{part} {row}" for part, row in pairs]
    streams = [stream for stream, _ in found.streams(order)]
    expected = [ids_of(*pair) for pair in pairs]
    assert np.concatenate([*streams, []]).tolist() == np.concatenate([*expected, []]).tolist()
    return pairs


@pytest.mark.parametrize("ranges", [1, 2, 7, 200])
def test_every_document_once_in_the_order_of_keys(
    tmp_path: Path, spec: DatasetSpec, index: RunIndex, ranges: int
) -> None:
    edges = [2**KEY_BITS * number // ranges for number in range(ranges + 1)]
    pairs = [
        pair
        for start, end in pairwise(edges)
        for pair in told(documents_of_range(LocalStorage(tmp_path), index, start, end, spec))
    ]
    sources = np.repeat(np.arange(RUNS), DOCUMENTS)
    rows = np.tile(np.arange(DOCUMENTS), RUNS)
    order = np.argsort(document_keys(3, sources, rows), kind="stable")
    assert pairs == list(zip(sources[order].tolist(), rows[order].tolist(), strict=True))


def test_a_range_without_documents(tmp_path: Path, spec: DatasetSpec, index: RunIndex) -> None:
    assert told(documents_of_range(LocalStorage(tmp_path), index, 5, 6, spec)) == []


def test_pieces(tmp_path: Path, spec: DatasetSpec, index: RunIndex) -> None:
    found = documents_of_range(LocalStorage(tmp_path), index, 0, 2**KEY_BITS, spec)
    chosen = found.order[3:50]
    pieces = list(found.pieces(chosen, 20))
    assert np.concatenate(pieces).tolist() == chosen.tolist()
    sizes = [int((found.lengths[piece] + 1).sum()) * 2 for piece in pieces]
    assert all(size <= 20 for size in sizes)
    assert [len(piece) for piece in found.pieces(chosen, 1)] == [1] * len(chosen)
