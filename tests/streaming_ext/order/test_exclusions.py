"""Steps that are skipped, documents that are excluded, rows that are filtered."""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.training.exclusions import Exclusions
from streaming_ext.training.masked_rows import Masked
from streaming_ext.training.trace import trace_step, write_traces
from tests.streaming_ext.build import EOT, build, numbered_parts, some_documents
from tests.streaming_ext.processes import in_processes, join_group

Open = Callable[..., StreamingTokenDataset]


def steps_of(loader: StreamingTokenLoader) -> list[list[int]]:
    return [batch["sequence_ids"].tolist() for batch in loader]


class TestSkip:
    @pytest.mark.parametrize(
        ("before", "steps", "workers"), [(0, 3, 0), (5, 0, 0), (5, 40, 2), (145, 1, 0)]
    )
    def test_an_iteration_continues_after_them(self, open_raw, before, steps, workers) -> None:
        whole = steps_of(StreamingTokenLoader(open_raw()))
        loader = StreamingTokenLoader(open_raw(), num_workers=workers)
        seen = []
        if not before:
            loader.skip(steps)
        for batch in loader:
            seen.append(batch["sequence_ids"].tolist())
            if len(seen) == before:
                loader.skip(steps)
                assert loader.step == before + steps
        assert seen == whole[:before] + whole[before + steps :]
        assert loader.step == len(whole)

    def test_beyond_the_end_of_the_epoch(self, open_raw) -> None:
        plain = StreamingTokenLoader(open_raw())
        first, second, third = steps_of(plain), steps_of(plain), steps_of(plain)
        loader = StreamingTokenLoader(open_raw())
        seen = []
        for batch in loader:
            seen.append(batch["sequence_ids"].tolist())
            if len(seen) == 140:
                loader.skip(6 + 146 + 10)  # the rest, all of the second one, ten of the third
        assert seen == first[:140]
        assert second
        assert steps_of(loader) == third[10:]
        assert loader.epoch == 2

    def test_it_lies_in_the_state(self, open_raw) -> None:
        whole = steps_of(StreamingTokenLoader(open_raw()))
        loader = StreamingTokenLoader(open_raw())
        iterator = iter(loader)
        next(iterator)
        loader.skip(20)
        state = loader.state_dict()
        assert state["sample_in_epoch"] == 21 * 4
        for rank in range(2):
            other = StreamingTokenLoader(open_raw(batch_size=2, dp_rank=rank, dp_world_size=2))
            other.load_state_dict(state)
            rest = steps_of(other)
            assert len(rest) == 125
            assert all(set(a) < set(b) for a, b in zip(rest, whole[21:], strict=True))
        assert next(iterator)["sequence_ids"].tolist() == whole[21]

    def test_what_cannot_be_skipped(self, open_raw) -> None:
        with pytest.raises(UsageError, match="at least 0, got -1"):
            StreamingTokenLoader(open_raw()).skip(-1)
        with pytest.raises(UsageError, match="evaluation"):
            StreamingTokenLoader(open_raw(split="holdout")).skip(1)


@pytest.fixture
def table(open_raw, tmp_path: Path) -> Path:
    """The documents of steps 3 to 9 of a run."""
    dataset = open_raw()
    path = tmp_path / "excluded.parquet"
    assert write_traces({step: trace_step(dataset, step) for step in range(3, 10)}, path) > 20
    return path


@pytest.fixture(scope="session")
def texts() -> dict[tuple[str, int], tuple[int, ...]]:
    """The documents of the train split by source and row."""
    return {
        (f"mem://source-{part}.parquet", row): (*ids, EOT)
        for part, rows in enumerate(numbered_parts(some_documents(300)))
        for row, (split, ids) in enumerate(rows) if split == "train"
    }  # fmt: skip


def named(path: Path) -> set[tuple[str, int]]:
    rows = pq.read_table(path).to_pylist()
    return {(row["source"], row["row"]) for row in rows}


class TestExclude:
    def test_sequences_that_hold_one_do_not_come(self, open_raw, table) -> None:
        gone = named(table)
        every = StreamingTokenLoader(open_raw(batch_size=1))
        clean = set()
        for step, (sequence,) in enumerate(steps_of(every)):
            (trace,) = trace_step(every.dataset, step)
            if not {(span.source, span.row) for span in trace.spans} & gone:
                clean.add(sequence)
        found = [
            s for (s,) in steps_of(StreamingTokenLoader(open_raw(batch_size=1, exclude=table)))
        ]
        assert len(found) == len(set(found))
        assert set(found) == clean
        assert 0 < len(clean) < 585

    def test_packed_rows_lose_them_and_nothing_else(self, open_raw, table, texts) -> None:
        loader = StreamingTokenLoader(
            open_raw(batch_size=1, exclude=table, packing="best_fit", sequence_length=64)
        )
        seen: Counter[tuple[str, int]] = Counter()
        for step in range(len(loader)):
            (trace,) = loader.trace(step)
            seen.update((span.source, span.row) for span in trace.spans)
        assert seen == Counter(set(texts) - named(table))

    def test_the_state_knows_what_is_excluded(self, open_raw, table, tmp_path) -> None:
        state = StreamingTokenLoader(open_raw(exclude=table)).state_dict()
        # In another order, with another column: the same documents.
        rows = pq.read_table(table, columns=["source", "row"]).to_pylist()[::-1]
        same, other = tmp_path / "same.parquet", tmp_path / "other.parquet"
        pq.write_table(pa.Table.from_pylist(rows + rows[:3]), same)
        pq.write_table(pa.Table.from_pylist(rows[:1]), other)
        StreamingTokenLoader(open_raw(exclude=same)).load_state_dict(state)
        for changed in ({"exclude": other}, {}):
            with pytest.raises(ConfigMismatchError, match="exclude: the state has"):
                StreamingTokenLoader(open_raw(**changed)).load_state_dict(state)
        loader = StreamingTokenLoader(open_raw(exclude=other))
        loader.load_state_dict(state, allow_changes=["exclude", "epoch_size", "streams"])

    def test_what_is_no_such_table(self, open_raw, tmp_path) -> None:
        path = tmp_path / "a.parquet"
        with pytest.raises(UsageError, match="cannot be read: .* Give a Parquet file"):
            open_raw(exclude=path)
        path.write_bytes(b"PAR1")
        with pytest.raises(UsageError, match="cannot be read"):
            open_raw(exclude=path)
        pq.write_table(pa.table({"source": ["a"]}), path)
        with pytest.raises(UsageError, match="the columns `source`"):
            open_raw(exclude=path)
        pq.write_table(pa.table({"source": ["mem://other"], "row": [3]}), path)
        with pytest.raises(UsageError, match="no document of this dataset and split"):
            open_raw(exclude=path)
        pq.write_table(pa.table({"source": pa.array([], pa.string()), "row": [1][:0]}), path)
        with pytest.raises(UsageError, match="names no document"):
            open_raw(exclude=path)


@pytest.mark.parametrize(("column", "value"), [
    ("source", None), ("row", None), ("row", -1), ("from_byte", None),
])  # fmt: skip
def test_documents_without_a_row_are_refused(tmp_path, column, value) -> None:
    rows = [{"source": "mem://source-1.parquet", "row": n, "from_byte": 0} for n in range(3)]
    rows[1][column] = value
    path = tmp_path / "t.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(UsageError, match="cannot be read: .*(null values|not in range)"):
        Exclusions.read(path)
    pq.write_table(pa.Table.from_pylist(rows[:1] + rows[2:]), path)
    assert [each.tolist() for each in Exclusions.read(path).rows.values()] == [[0, 2]]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("packing", [None, "best_fit"])
def test_rows_that_repeat_do_not_count(tmp_path, workers, packing) -> None:
    documents = some_documents(40)
    documents[7] = [5, 6, 7] * 20
    documents[23] = [8] * 40
    root = build(tmp_path / "d", numbered_parts(documents, holdout_every=1000)).root
    loader = StreamingTokenLoader(
        StreamingTokenDataset(
            local=root, batch_size=2, sequence_length=64, packing=packing, max_repeated_ngram=8,
            extras=["targets"], dp_rank=0, dp_world_size=1,
        ),
        num_workers=workers,
    )  # fmt: skip
    flagged = 0
    for batch in loader:
        for row, real, targets in zip(
            batch["tokens"].tolist(), batch["real"].tolist(), batch["targets"], strict=True
        ):
            text = " ".join(map(str, row))
            bad = " ".join(["5 6 7"] * 9) in text or " ".join("8" * 9) in text
            assert real != bad
            assert bool((targets == -100).all()) == bad
            flagged += bad
    assert 2 <= flagged <= 4
    assert "masked" not in batch
    assert loader.masked() == Masked(rows=flagged, tokens=flagged * 64)
    assert loader.state_dict()["order"]["max_repeated_ngram"] == 8


@pytest.fixture
def repeating(tmp_path: Path) -> Path:
    """A dataset in which each fifth document repeats."""
    documents = [[5, 6, 7] * 20 if n % 5 == 2 else ids for n, ids in enumerate(some_documents(60))]
    return build(tmp_path / "d", numbered_parts(documents, holdout_every=1000)).root


def test_an_epoch_that_begins_anew_is_counted_once(repeating: Path) -> None:
    """Broken off behind a whole epoch, and behind a state of its middle."""

    def opened() -> StreamingTokenLoader:
        return StreamingTokenLoader(StreamingTokenDataset(
            local=repeating, batch_size=2, sequence_length=64, max_repeated_ngram=8,
            drop_last=False,
            shuffle=True, dp_rank=0, dp_world_size=1, extras=["sequence_ids"],
        ))  # fmt: skip

    def masked_in(batches: Iterable[dict[str, Any]]) -> int:
        return sum(int((~b["real"] & (b["sequence_ids"] >= 0)).sum()) for b in batches)

    loader = opened()
    whole = masked_in(loader)
    assert whole > 3
    for _ in range(2):
        some = masked_in(itertools.islice(loader, 5))
        assert 0 < some < whole
        assert loader.masked().rows == whole + some
        state = json.loads(json.dumps(loader.state_dict()))
        loader = opened()
        loader.load_state_dict(state)
        assert loader.masked().rows == whole + some
        next(iter(loader))  # and from the beginning of the epoch again


def masked_so_far(rank: int, root: Path, folder: Path, states: list[dict[str, Any]]) -> Any:
    """What both of two ranks masked, and the state of each, some steps behind the last state."""
    join_group(folder / f"store-{len(states)}", rank, 2)
    loader = StreamingTokenLoader(
        StreamingTokenDataset(
            local=root, batch_size=1, sequence_length=64, max_repeated_ngram=8, shuffle=True,
            num_canonical_nodes=1, dp_rank=rank, dp_world_size=2,
        )
    )  # fmt: skip
    for state in states[-1:]:
        loader.load_state_dict(state)
    for _, batch in zip(range(4), loader, strict=False):
        assert "masked" not in batch
    reported = loader.masked()
    assert loader.masked() == reported  # nothing twice
    return reported, loader.state_dict()


def test_what_was_masked_is_counted_over_ranks_and_resumes(repeating, tmp_path) -> None:
    how: dict[str, Any] = {"local": repeating, "sequence_length": 64, "max_repeated_ngram": 8,
                           "shuffle": True, "num_canonical_nodes": 1, "dp_rank": 0}  # fmt: skip
    plain = StreamingTokenLoader(StreamingTokenDataset(**how, batch_size=2, dp_world_size=1))
    batches = list(itertools.islice(plain, 8))
    want = [sum(int((~batch["real"]).sum()) for batch in batches[:end]) for end in (4, 8)]
    assert 0 < want[0] < want[1]
    states: list[dict[str, Any]] = []
    for rows in want:  # two ranks, and two others that go on behind them
        found = in_processes(2, masked_so_far, repeating, tmp_path, states)
        assert [reported for reported, _ in found] == [Masked(rows=rows, tokens=rows * 64)] * 2
        states.append(found[0][1])
    assert states[-1]["masked"] == {"rows": want[1], "tokens": want[1] * 64}
    other = StreamingTokenLoader(StreamingTokenDataset(**how, batch_size=2, dp_world_size=1))
    other.load_state_dict(states[0])
    for _, _batch in zip(range(4), other, strict=False):
        pass
    assert other.state_dict()["masked"]["rows"] == other.masked().rows == want[1]
    with pytest.raises(UsageError, match=r"call torch.distributed.init_process_group first"):
        StreamingTokenLoader(StreamingTokenDataset(**how, batch_size=1, dp_world_size=2)).masked()
    with pytest.raises(UsageError, match="Nothing is masked without max_repeated_ngram="):
        StreamingTokenLoader(
            StreamingTokenDataset(local=repeating, batch_size=1, dp_rank=0, dp_world_size=1)
        ).masked()
