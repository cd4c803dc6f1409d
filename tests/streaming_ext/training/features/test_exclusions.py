"""Steps that are skipped, documents that are excluded, rows that are filtered."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext import StreamingTokenLoader, TokenStream
from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.training.features.repeats import Masked
from streaming_ext.training.features.trace import trace_step, write_traces
from tests.streaming_ext.build import build, numbered_parts, some_documents
from tests.streaming_ext.loading import saved, sequences
from tests.streaming_ext.processes import in_processes, join_group


class TestSkip:
    @pytest.mark.parametrize(
        ("before", "steps", "workers"), [(0, 3, 0), (5, 0, 0), (5, 40, 2), (145, 1, 0)]
    )
    def test_an_iteration_and_a_state_continue_after_them(
        self, load, before, steps, workers
    ) -> None:
        whole = sequences(load())
        loader = load(num_workers=workers)
        running = iter(loader)
        seen = [next(running)["sequence_ids"].tolist() for _ in range(before)]
        loader.skip(steps)
        assert loader.step == before + steps
        again = load()
        again.load_state_dict(saved(loader))
        seen += [batch["sequence_ids"].tolist() for batch in (running if before else loader)]
        assert seen == whole[:before] + whole[before + steps :]
        assert loader.step == len(whole)
        assert again.step == (before + steps) % len(whole)
        assert sequences(again)[: len(whole) - before - steps] == whole[before + steps :]

    def test_beyond_the_end_of_the_epoch(self, load) -> None:
        plain = load()
        first, _, third = sequences(plain), sequences(plain), sequences(plain)
        loader = load()
        seen = []
        for batch in loader:
            seen.append(batch["sequence_ids"].tolist())
            if len(seen) == 140:
                loader.skip(6 + 146 + 10)  # the rest, all of the second epoch, ten of the third
        assert seen == first[:140]
        assert sequences(loader) == third[10:]
        assert loader.epoch == 2

    def test_what_cannot_be_skipped(self, load) -> None:
        with pytest.raises(UsageError, match="at least 0, got -1"):
            load().skip(-1)
        with pytest.raises(UsageError, match="drop_last=True"):
            load(split="holdout").skip(1)


@pytest.fixture
def table(open_raw, tmp_path: Path) -> Path:
    """The documents of steps 3 to 9 of a run."""
    dataset = open_raw()
    path = tmp_path / "excluded.parquet"
    assert write_traces({step: trace_step(dataset, step) for step in range(3, 10)}, path) > 20
    return path


def named(path: Path) -> set[tuple[str, int]]:
    rows = pq.read_table(path).to_pylist()
    return {(row["source"], row["row"]) for row in rows}


class TestExclude:
    @pytest.fixture(params=[0, 9])
    def least(self, request) -> int:
        """The streams hold all documents, or those of more tokens than this."""
        return request.param

    @pytest.fixture
    def load_some(self, load, raw, least) -> Any:
        stream = TokenStream(local=raw.root, where=f"tokens > {least}" if least else None)
        return partial(load, local=None, streams=[stream], batch_size=1)

    def test_sequences_that_hold_one_do_not_come(self, load_some, table) -> None:
        gone, every = named(table), load_some()
        clean = []
        for step, (sequence,) in enumerate(sequences(every)):
            (trace,) = trace_step(every.dataset, step)
            if not {(span.source, span.row) for span in trace.spans} & gone:
                clean.append([sequence])
        assert sorted(sequences(load_some(exclude=table))) == sorted(clean)
        assert 0 < len(clean) < every.dataset.size

    def test_packed_rows_lose_them_and_nothing_else(self, load_some, table, raw, least) -> None:
        loader = load_some(exclude=table, packing="best_fit", sequence_length=64)
        seen = Counter()
        for step in range(len(loader)):
            (trace,) = loader.trace(step)
            seen.update((span.source, span.row) for span in trace.spans)
        chosen = {key for key, ids in raw.documents["train"].items() if len(ids) > least + 1}
        assert seen == Counter(chosen - named(table))

    def test_the_state_knows_what_is_excluded(self, load, table, tmp_path) -> None:
        state = load(exclude=table).state_dict()
        # The same documents in another order, with repeats and without other columns.
        rows = pq.read_table(table, columns=["source", "row"]).to_pylist()[::-1]
        same, other = tmp_path / "same.parquet", tmp_path / "other.parquet"
        pq.write_table(pa.Table.from_pylist(rows + rows[:3]), same)
        pq.write_table(pa.Table.from_pylist(rows[:1]), other)
        load(exclude=same).load_state_dict(state)
        for changed in ({"exclude": other}, {}):
            with pytest.raises(ConfigMismatchError, match="exclude: the state has"):
                load(**changed).load_state_dict(state)
        allowed = ["exclude", "epoch_size", "streams"]
        load(exclude=other).load_state_dict(state, allow_changes=allowed)

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (None, "cannot be read: .* Give a Parquet file"),
            (b"PAR1", "cannot be read"),
            ({"source": ["a"]}, "the columns `source`"),
            ({"source": ["mem://other"], "row": [3]}, "no document of this dataset and split"),
            (
                {"source": pa.array([], pa.string()), "row": pa.array([], pa.int64())},
                "names no document",
            ),
            ({"source": ["a", None], "row": [0, 1]}, "cannot be read: .*null values"),
            ({"source": ["a", "b"], "row": [0, None]}, "cannot be read: .*null values"),
            ({"source": ["a"], "row": [-1]}, "cannot be read: .*not in range"),
            (
                {"source": ["a"], "row": [0], "from_byte": pa.array([None], pa.int64())},
                "cannot be read: .*null values",
            ),
        ],
    )
    def test_what_is_no_such_table(self, load, tmp_path, content, said) -> None:
        path = tmp_path / "a.parquet"
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is not None:
            pq.write_table(pa.table(content), path)
        with pytest.raises(UsageError, match=said):
            load(exclude=path)


@pytest.fixture(scope="module")
def repeating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in which every fifth document repeats itself."""
    documents = [[5, 6, 7] * 20 if n % 5 == 2 else ids for n, ids in enumerate(some_documents(60))]
    documents[23] = [8] * 40
    parts = numbered_parts(documents, holdout_every=1000)
    return build(tmp_path_factory.mktemp("repeating") / "d", parts).root


@pytest.fixture
def masking(load, repeating) -> Callable[..., StreamingTokenLoader]:
    return partial(
        load,
        local=repeating,
        batch_size=2,
        sequence_length=64,
        max_repeated_ngram=8,
        num_canonical_nodes=1,
        extras=["targets", "sequence_ids"],
    )


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("packing", [None, "best_fit"])
def test_rows_that_repeat_do_not_count(masking, workers, packing) -> None:
    loader = masking(packing=packing, num_workers=workers)
    flagged = 0
    for batch in loader:
        assert "masked" not in batch
        for row, real, targets in zip(
            batch["tokens"].tolist(), batch["real"].tolist(), batch["targets"], strict=True
        ):
            text = " ".join(map(str, row))
            bad = " ".join(["5 6 7"] * 9) in text or " ".join("8" * 9) in text
            assert real != bad
            assert bool((targets == -100).all()) == bad
            flagged += bad
    assert 2 <= flagged < 2 * len(loader)
    assert loader.masked() == Masked(rows=flagged, tokens=flagged * 64)
    assert loader.state_dict()["order"]["max_repeated_ngram"] == 8


def test_an_epoch_that_begins_anew_is_counted_once(masking) -> None:
    """It is broken off after a whole epoch, and after a state from its middle."""

    def masked_in(batches: Iterable[dict[str, Any]]) -> int:
        return sum(int((~b["real"] & (b["sequence_ids"] >= 0)).sum()) for b in batches)

    loader = masking(drop_last=False)
    whole = masked_in(loader)
    assert whole > 3
    for _ in range(2):
        some = masked_in(itertools.islice(loader, 5))
        assert 0 < some < whole
        assert loader.masked().rows == whole + some
        state = saved(loader)
        loader = masking(drop_last=False)
        loader.load_state_dict(state)
        assert loader.masked().rows == whole + some
        next(iter(loader))  # starts the epoch anew


def masked_so_far(rank: int, masking: Any, folder: Path, states: list[dict[str, Any]]) -> Any:
    """Return what both ranks masked, and this rank's state, four steps after the last state."""
    join_group(folder / f"store-{len(states)}", rank, 2)
    loader = masking(batch_size=1, dp_rank=rank, dp_world_size=2)
    for state in states[-1:]:
        loader.load_state_dict(state)
    sequences(loader, 4)
    reported = loader.masked()
    assert loader.masked() == reported  # counts nothing twice
    return reported, loader.state_dict()


def test_what_was_masked_is_counted_over_ranks_and_resumes(masking, tmp_path) -> None:
    plain = masking()
    batches = list(itertools.islice(plain, 8))
    want = [sum(int((~batch["real"]).sum()) for batch in batches[:end]) for end in (4, 8)]
    assert 0 < want[0] < want[1]
    states = []
    for rows in want:  # two ranks, then two others that resume from them
        found = in_processes(2, masked_so_far, masking, tmp_path, states)
        assert [reported for reported, _ in found] == [Masked(rows=rows, tokens=rows * 64)] * 2
        states.append(found[0][1])
    assert states[-1]["masked"] == {"rows": want[1], "tokens": want[1] * 64}
    other = masking()
    other.load_state_dict(states[0])
    sequences(other, 4)
    assert other.state_dict()["masked"]["rows"] == other.masked().rows == want[1]
    with pytest.raises(UsageError, match=r"call torch.distributed.init_process_group first"):
        masking(dp_world_size=2).masked()
    with pytest.raises(UsageError, match="Nothing is masked without max_repeated_ngram="):
        masking(max_repeated_ngram=None).masked()
