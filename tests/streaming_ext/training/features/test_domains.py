"""Domains of tokens and the counts of each, compared with what `trace` reports of each row."""

import json
import re
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader, TokenStream
from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.training.features.trace import SequenceTrace
from tasks.core.synthetic import make_documents
from tests.streaming_ext.build import build as build_by_hand
from tests.tasks.core.build_dataset import build_from
from tests.tasks.core.moving.moved import merged

LENGTH = 48
LANGUAGES = ["en", "de", None, "fr"]
YEARS = {"web/a": 2020, "web/b": 2021, "code/a": 2022, "code/b": 2023}  # per source


def language(row: int) -> str | None:
    return LANGUAGES[row * 7 % 11 % 4]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for name, year in YEARS.items():
        path = folder / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        texts = [
            text[: 30 + 61 * (row % 9)] for row, text in enumerate(make_documents(40, seed=year))
        ]
        kept = {"language": [language(row) for row in range(40)], "year": [year] * 40}
        pq.write_table(pa.table({"text": texts, **kept}), path)
    return folder


MADE: dict[str, dict[str, Any]] = {
    "in order": {},
    "small files together": {"min_part_size": "1MiB"},
    "shuffled": {"shuffle": "documents"},
}


@pytest.fixture(scope="module")
def made(
    sources: Path, vocabulary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("datasets")

    def make(how: str) -> Path:
        root = folder / how.replace(" ", "-")
        if not root.exists():
            build_from(
                sources, root, tokenizer=str(vocabulary), keep_columns="language,year", **MADE[how]
            )
        return root

    return make


@pytest.fixture
def in_order(made: Callable[[str], Path]) -> Path:
    return made("in order")


def load(root: Path, *, workers: int = 0, **changes: Any) -> StreamingTokenLoader:
    settings = {
        "local": root,
        "batch_size": 4,
        "sequence_length": LENGTH,
        "shuffle": True,
        "num_canonical_nodes": 2,
        "dp_rank": 0,
        "dp_world_size": 1,
        "extras": ["domain_ids"],
        "domain_by": "folder",
    } | changes
    return StreamingTokenLoader(StreamingTokenDataset(**settings), num_workers=workers)


def name_of(by: str, source: str, row: int) -> str:
    path = Path(source)
    if by == "folder":
        return str(path.parent)
    if by == "column:year":
        return str(YEARS[f"{path.parent.name}/{path.stem}"])
    return language(row) or "(nothing)"


def expected(loader: StreamingTokenLoader, traces: list[SequenceTrace], by: str) -> np.ndarray:
    found = np.full((len(traces), LENGTH), -1)
    for row, trace in enumerate(traces):
        for span in trace.spans:
            number = loader.dataset.domains.index(name_of(by, span.source, span.row))
            found[row, span.position : span.position + span.tokens] = number
    return found


def tallied(ids: np.ndarray, loader: StreamingTokenLoader) -> Counter[str]:
    """Return the number of tokens of each domain, without padding."""
    return Counter(loader.dataset.domains[number] for number in ids[ids >= 0].tolist())


def step_ids(loader: StreamingTokenLoader) -> list[np.ndarray]:
    """Return the domains of each step that is left of the epoch."""
    return [batch["domain_ids"].numpy() for batch in loader]


def tokens_of(loader: StreamingTokenLoader) -> dict[str, int]:
    (reported,) = loader.achieved()
    return reported.tokens_by_domain


@pytest.mark.parametrize(
    ("how", "by", "packing"),
    [
        ("in order", "folder", None),
        ("in order", "column:language", "best_fit"),
        ("small files together", "folder", "best_fit"),
        ("shuffled", "column:year", None),
    ],
)
def test_each_token_is_of_the_domain_of_its_document(made, how, by, packing) -> None:
    loader = load(made(how), domain_by=by, packing=packing)
    seen: Counter[str] = Counter()
    padding = 0
    for step, ids in enumerate(step_ids(loader)):
        assert ids.dtype == np.int32
        assert (ids == expected(loader, loader.trace(step), by)).all()
        padding += int((ids < 0).sum())
        seen += tallied(ids, loader)
    assert len(seen) > 1
    assert padding
    left_out = loader.dataset.plan.epoch_size % 4
    reported = tokens_of(loader)
    assert left_out or reported == seen
    assert 0 <= sum(reported.values()) - seen.total() <= left_out * LENGTH
    assert list(reported) == sorted(seen)


def test_counts_survive_resumes_on_other_ranks_and_ends_of_epochs(in_order) -> None:
    """Every 40 steps, another number of ranks resumes from a state that went through JSON."""
    by = "column:language"
    seen: Counter[str] = Counter()
    state: dict[str, Any] | None = None
    epochs = set()
    for ranks in (1, 2, 4, 1, 2, 1):
        loaders = [
            load(in_order, domain_by=by, batch_size=4 // ranks, dp_rank=rank, dp_world_size=ranks)
            for rank in range(ranks)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
        steps = 0
        while steps < 40:
            for at_once in zip(*loaders, strict=True):
                for batch in at_once:
                    seen += tallied(batch["domain_ids"].numpy(), loaders[0])
                steps += 1
                if steps == 40:
                    break
        reported = [tokens_of(loader) for loader in loaders]
        assert all(each == reported[0] for each in reported)
        epochs.add(loaders[0].epoch)
        more = sum(reported[0].values()) - seen.total()
        left_out = loaders[0].dataset.plan.epoch_size % 4
        assert 0 <= more <= loaders[0].epoch * left_out * LENGTH
        assert left_out or reported[0] == seen
        state = loaders[-1].state_dict()
    assert len(epochs) > 1


def test_what_an_epoch_left_out_counts_behind_a_resume_too(in_order) -> None:
    """The state is saved after the last step, and loaded by the loader or by its dataset."""

    def opened() -> StreamingTokenLoader:
        return load(in_order, batch_size=32)

    loader, resumed, by_dataset = opened(), opened(), opened().dataset
    assert loader.dataset.plan.epoch_size % 32
    list(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    list(loader)
    resumed.load_state_dict(state)
    by_dataset.load_state_dict(state)
    for again in (resumed, StreamingTokenLoader(by_dataset)):
        list(again)
        assert again.achieved() == loader.achieved()
        assert again.state_dict() == loader.state_dict()


def test_several_streams(made, in_order) -> None:
    streams = [
        TokenStream(local=in_order, proportion=3),
        TokenStream(local=made("shuffled"), proportion=1),
    ]
    loader = load(
        Path(), local=None, streams=streams, epoch_size=200, extras=["domain_ids", "stream_ids"]
    )
    seen: list[Counter[str]] = [Counter(), Counter()]
    for step, batch in enumerate(loader):
        ids, of = batch["domain_ids"].numpy(), batch["stream_ids"].numpy()
        assert (ids == expected(loader, loader.trace(step), "folder")).all()
        for stream in range(2):
            seen[stream] += tallied(ids[of == stream], loader)
    assert [usage.tokens_by_domain for usage in loader.achieved()] == seen
    state = loader.state_dict()
    again = load(Path(), local=None, streams=streams, epoch_size=200)
    again.dataset.load_state_dict(state)
    of_dataset = StreamingTokenLoader(again.dataset)  # made after the state was loaded
    assert of_dataset.achieved() == loader.achieved()


def test_an_evaluation_counts_what_it_held(in_order) -> None:
    loader = load(in_order, split="holdout", shuffle=False)
    for _ in range(2):
        seen = np.concatenate(step_ids(loader))
        assert tokens_of(loader) == tallied(seen, loader)


def test_an_epoch_that_begins_anew_is_counted_once(in_order) -> None:
    """It is broken off after a whole epoch, and after a state from its middle."""
    loader = load(in_order, drop_last=False)
    whole = np.concatenate(step_ids(loader))
    for steps in (5, 3):
        started = [batch["domain_ids"].numpy() for batch in islice(loader, steps)]
        seen = tallied(np.concatenate([whole, *started]), loader)
        assert tokens_of(loader) == seen
        assert seen.total() <= loader.tokens_seen
        state = loader.state_dict()
        loader = load(in_order, drop_last=False)
        loader.load_state_dict(state)
        next(iter(loader))


def test_what_is_no_domain(in_order, sources, vocabulary, tmp_path) -> None:
    root = in_order
    with pytest.raises(UsageError, match="`domain_by` must be 'folder' or 'column:NAME'"):
        load(root, domain_by="language")
    with pytest.raises(UsageError, match=r"did not keep the column 'url'; it kept language, year"):
        load(root, domain_by="column:url")
    by_hand = build_by_hand(tmp_path / "by-hand", [[("train", range(1, 90))]])
    (by_hand.root / "manifest.json").unlink()
    with pytest.raises(UsageError, match="has no lists of documents"):
        load(by_hand.root / "train", split=None, sequence_length=8)


def test_states_without_domains(in_order) -> None:
    plain, counted = load(in_order, extras=[], domain_by=None), load(in_order)
    list(islice(plain, 5))
    state = plain.state_dict()
    with pytest.raises(ConfigMismatchError, match="domain_by: the state has None"):
        counted.load_state_dict(state)
    counted.load_state_dict(state, allow_changes=["domain_by"])
    assert tokens_of(counted) == {}
    next(iter(counted))
    assert 0 < sum(tokens_of(counted).values()) <= 4 * LENGTH
    assert tokens_of(plain) == {}


def test_a_damaged_map_is_made_again(made) -> None:
    root = made("small files together")
    before = load(root, domain_by="column:year")
    path = before.dataset.domain_column._maps[0].path
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[:40] + b"x" + whole[41:])
    again = load(root, domain_by="column:year")
    assert path.read_bytes() == whole
    assert again.dataset.domains == before.dataset.domains == ("2020", "2021", "2022", "2023")
    assert re.search(r"train-\w+\.domains-3-\w+\.map$", path.name)


def test_a_merged_dataset(made, in_order, tmp_path) -> None:
    merged([in_order, made("small files together")], tmp_path / "both", repeats=True)
    for by in ("folder", "column:language"):
        loader = load(tmp_path / "both", domain_by=by)
        steps = step_ids(loader)
        assert len(steps) > 20
        for step in range(0, len(steps), 5):
            assert (steps[step] == expected(loader, loader.trace(step), by)).all()
