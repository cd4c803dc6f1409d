"""Streams of documents that a condition chooses, compared with plain Python on lists."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from streaming_ext import (
    StreamingTokenDataset,
    StreamingTokenLoader,
    TokenStream,
)
from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.training.features import packing
from tests.streaming_ext.build import EOT, Built, Document, build, numbered_parts, some_documents
from tests.streaming_ext.loading import saved, sequences

MASKS = ["targets", "position_ids", "document_ids", "starts_inside", "sequence_ids"]
Meets = Callable[[int, Document], bool]


def load(streams: Sequence[TokenStream], *, workers: int = 0, **changes: Any) -> Any:
    settings: dict[str, Any] = {"batch_size": 1, "dp_rank": 0, "dp_world_size": 1, "extras": MASKS}
    dataset = StreamingTokenDataset(streams=streams, **settings | changes)
    return StreamingTokenLoader(dataset, num_workers=workers)


def chosen_tokens(parts: Any, meets: Meets, *, sample: int = 8) -> list[tuple[int, int, int]]:
    """Return the chosen documents end to end, each token with two offsets.

    The offsets are those in the stream of the split and in the document.

    Args:
        parts: the documents of each part, as for `build`.
        meets: the choice of a document by the number of its part and its ids.
        sample: the number of tokens to whose multiples parts are padded.
    """
    found, place = [], 0
    for part, rows in enumerate(parts):
        for split, ids in rows:
            if split == "train":
                for inside, token in enumerate([*ids, EOT]):
                    if meets(part, ids):
                        found.append((token, place, inside))
                    place += 1
        place += -place % sample
    return found


def row_by_hand(stream: list[Any], first: int, length: int, shard_ends: list[int]) -> Any:
    """Return the tokens and masks of a row, worked out by hand."""
    row, after = stream[first : first + length], stream[first + length : first + length + 1]
    tokens = [token for token, _, _ in row]
    shards = [np.searchsorted(shard_ends, place, "right") for _, place, _ in [row[-1], *after]]
    same = len(set(shards)) == len(shards) - 1
    begins = np.cumsum([number == 0 or inside == 0 for number, (_, _, inside) in enumerate(row)])
    return {
        "tokens": tokens,
        "targets": [*tokens[1:], after[0][0] if same else -100],
        "document_ids": (begins - 1).tolist(),
        "position_ids": [n - begins.tolist().index(begin) for n, begin in enumerate(begins)],
        "starts_inside": row[0][2] > 0,
    }


@pytest.mark.parametrize("seed", range(25))
def test_rows_are_cut_out_of_the_chosen_documents_laid_end_to_end(tmp_path, seed) -> None:
    rng = random.Random(seed)
    documents = some_documents(rng.randint(20, 80), seed=seed, longest=rng.choice([3, 12, 40]))
    parts = numbered_parts(documents, parts=rng.randint(1, 4))
    built = build(tmp_path / "d", parts, compression="none", shard_samples=rng.randint(1, 5))
    present = sorted({len(ids) for rows in parts for split, ids in rows if split == "train"})
    lengths = rng.sample(present[:-1], rng.randint(1, len(present) - 1))
    meets: list[tuple[str | None, Meets]] = [
        (f"tokens in {lengths}", lambda part, ids: len(ids) in lengths),
        (
            f"tokens not in {lengths} or source == 'mem://source-1.parquet'",
            lambda part, ids: len(ids) not in lengths or part == 1,
        ),
        (None, lambda part, ids: True),
    ]
    expected = [chosen_tokens(parts, each) for _, each in meets]
    longest = min(len(each) for each in expected)
    length = rng.randint(1, min(40, longest))
    streams = [TokenStream(local=built.root, where=where) for where, _ in meets]
    loader = load(streams, sequence_length=length, num_canonical_nodes=1)
    shard_ends = (np.cumsum(loader.dataset.reader.caches[0].index.samples) * 8).tolist()
    # The rows of the whole stream have padding too: these are compared elsewhere.
    sizes = [len(each) // length for each in expected[:2]]
    assert [int(each[-1]) for each in loader.dataset.source.bounds[:2]] == sizes
    for stream, size in enumerate(sizes):
        for number in range(size):
            row = loader.dataset.get_item(number + sum(sizes[:stream]))
            assert row["sequence_ids"] == number
            by_hand = row_by_hand(expected[stream], number * length, length, shard_ends)
            assert {name: row[name].tolist() for name in by_hand} == by_hand


KINDS = ["", 'it\'s a `b` "\\c"', None]
LEVELS: dict[str, Callable[[Document], Any]] = {
    "score": lambda ids: len(ids) % 7,
    "kind": lambda ids: KINDS[ids[0] % 3],
    "is long": lambda ids: len(ids) > 15,
}
PARTS: dict[str, Meets] = {
    "score >= 4": lambda part, ids: len(ids) % 7 >= 4,
    "score < 4 and kind == ''": lambda part, ids: len(ids) % 7 < 4 and ids[0] % 3 == 0,
    "score < 4 and kind is None and tokens > 9": (
        lambda part, ids: len(ids) % 7 < 4 and ids[0] % 3 == 2 and len(ids) > 9
    ),
}
REPEATS = [3, 1, 2]


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, Any]:
    """Documents that consist of their number, so that each token shows its document."""
    rng = random.Random(0)
    parts = numbered_parts([[100 + number] * rng.randint(1, 30) for number in range(400)])
    root = tmp_path_factory.mktemp("numbered") / "d"
    return build(root, parts, vocab_size=600, columns=LEVELS), parts


@pytest.mark.parametrize("packing", [None, "best_fit"])
def test_a_run_on_three_streams_of_one_dataset_counts_as_plain_python_does(
    numbered, tmp_path, packing
) -> None:
    built, parts = numbered
    local = tmp_path / "cache"
    streams = [
        TokenStream(remote=str(built.root), local=local, where=where, repeat=repeat)
        for where, repeat in zip(PARTS, REPEATS, strict=True)
    ]
    changes = {
        "sequence_length": 32,
        "packing": packing,
        "batch_size": None,
        "global_batch": 6,
        "drop_last": False,
        "shuffle": True,
        "shuffle_block_size": 40,
    }
    seen: Counter[int] = Counter()
    state: dict[str, Any] | None = None
    plans = [
        (1, 0, 11),
        (3, 2, 9),
        (2, 1, None),
    ]  # ranks, workers, steps; None for all that are left
    for ranks, workers, steps in plans:
        for rank in range(ranks):
            loader = load(streams, workers=workers, dp_rank=rank, dp_world_size=ranks, **changes)
            if state is not None:
                loader.load_state_dict(state)
            for number, batch in enumerate(loader, 1):
                seen.update(batch["tokens"][batch["real"]].reshape(-1).tolist())
                if number == steps:
                    break
        state = saved(loader)
    expected: Counter[int] = Counter()
    for meets, repeat in zip(PARTS.values(), REPEATS, strict=True):
        tokens = [token for token, _, _ in chosen_tokens(parts, meets)]
        kept = tokens if packing else tokens[: len(tokens) // 32 * 32]
        expected.update({token: repeat * count for token, count in Counter(kept).items()})
    del seen[EOT], expected[EOT]  # padding has this id too
    assert seen == expected
    assert len(expected) > 200
    # There is one cache of shards, and a map per condition.
    assert len([*local.rglob("*.mds")]) <= built.manifest.splits["train"].shards
    assert len([*local.glob("*.where-*.map")]) == len(PARTS)


@pytest.mark.parametrize(
    ("column", "proportions", "domains"),
    [
        ("kind", {KINDS[1]: 2, "": 1.0}, [KINDS[1], ""]),
        ("kind", {"": 1, KINDS[1]: 1, None: 2}, ["", KINDS[1], "(nothing)"]),
        ("score", {0: 1, 3.0: "0:1 2k:3"}, ["0", "3"]),
        ("score", {np.int64(0): 1, np.float64(3): 1}, ["0", "3"]),
        ("is long", {True: 3, False: 1}, ["true", "false"]),
    ],
)
def test_streams_by_the_values_of_a_column(numbered, caplog, column, proportions, domains) -> None:
    built, parts = numbered
    settings = {
        "batch_size": 4,
        "sequence_length": 16,
        "num_canonical_nodes": 1,
        "epoch_size": 400,
        "dp_rank": 0,
        "dp_world_size": 1,
        "extras": ["domain_ids"],
    }
    dataset = StreamingTokenDataset(
        local=built.root, proportion_by=f"column:{column}", proportions=proportions, **settings
    )
    loader, named = StreamingTokenLoader(dataset), [*proportions]
    train = [ids for rows in parts for split, ids in rows if split == "train"]
    values = {ids[0]: LEVELS[column](ids) for ids in train}
    for batch in loader:
        for row, domain in zip(batch["tokens"].tolist(), batch["domain_ids"].tolist(), strict=True):
            assert {values[token] for token in row if token != EOT} == {named[domain]}
    assert [each.domain for each in loader.achieved()] == domains
    left_out = sum(each not in named for each in values.values())
    said = f"{left_out} of {len(train)} documents have a value in column:{column} that"
    assert [each.startswith(said) for each in caplog.messages] == [True] * (left_out > 0)
    conditions = [
        "is None" if each is None else f"== {np.asarray(each).item()!r}" for each in named
    ]
    by_hand = [
        TokenStream(local=built.root, where=f"`{column}` {condition}", proportion=proportion)
        for condition, proportion in zip(conditions, proportions.values(), strict=True)
    ]
    other = StreamingTokenLoader(StreamingTokenDataset(streams=by_hand, **settings))
    other.load_state_dict(saved(loader))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"proportions": {"": 1, "c": 2}}, r"where=\"`kind` == 'c'\" holds for no document"),
        ({"proportions": {"": 1, 3: 2}}, "column 'kind' is of type large_string"),
        ({"proportion_by": "column:language"}, "has no column 'language'"),
        ({"proportion_by": "folder"}, "`proportion_by` must be 'column:NAME'.*got 'folder'"),
        ({"proportion_by": 5}, "`proportion_by` must be 'column:NAME'.*got 5"),
        ({"proportions": ["a"]}, r"`proportions` must be a dict of values; got \['a'\]"),
        ({"proportion_by": None}, "`proportion_by` names a column of one dataset"),
        ({"proportions": {}}, "`proportion_by` names a column of one dataset"),
        ({"streams": [TokenStream(local="x")], "local": None}, "`proportion_by` names a column"),
        ({"proportions": {"a": 0}}, "`proportion` must be"),
        ({"proportions": {math.nan: 1}}, "`proportions` must name texts, .*got nan"),
        ({"proportions": {("a", "b"): 1}}, r"`proportions` must name texts, .*got \('a', 'b'\)"),
    ],
)
def test_values_and_columns_that_there_are_not(numbered, changes, said) -> None:
    settings = {"local": numbered[0].root, "proportion_by": "column:kind", "proportions": {"": 1}}
    with pytest.raises(UsageError, match=said):
        StreamingTokenDataset(**settings | changes, dp_rank=0, dp_world_size=1)


def test_streams_of_one_dataset_share_the_limit_of_its_cache(packed, tmp_path) -> None:
    def opened(root: Any, **changes: Any) -> Any:
        conditions = ("tokens > 20", "tokens <= 5", "tokens in [6, 9, 11]", "source != 'x'")
        streams = [TokenStream(**root, where=where) for where in conditions]
        return load(streams, shuffle=True, shuffle_block_size=50, **changes)

    whole = [batch["tokens"].tolist() for batch in opened({"local": packed.root})]
    cached = {"remote": str(packed.root), "local": tmp_path / "cache"}
    largest = int(opened(cached).dataset.reader.caches[0].index.raw_sizes.max())
    limited = opened(cached, cache_limit=6 * largest)
    assert len(set(limited.dataset.reader.caches)) == 1
    assert [batch["tokens"].tolist() for batch in limited] == whole
    held = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.mds"))
    assert held <= 6 * largest
    with pytest.raises(UsageError, match="Give at least four times that"):
        opened(cached, cache_limit=3 * largest)


def test_chosen_documents_that_lie_far_apart_are_packed(raw, copy, monkeypatch) -> None:
    """A plan numbers only the chosen tokens: those between them take none of its room."""
    root = copy(raw)  # it has no plan yet
    monkeypatch.setattr(packing, "_MAX_TOKENS", 1000)
    settings = {"packing": "best_fit", "sequence_length": 40, "drop_last": False}
    loader = load([TokenStream(local=root, where="tokens == 7")], **settings)
    rows = [row for batch in loader for row in batch["tokens"].tolist()]
    found = [row[at : at + 7] for row in rows for at in range(0, 40, 8) if row[at] != EOT]
    assert sorted(found) == sorted(
        ids[:-1] for ids in raw.documents["train"].values() if len(ids) == 8
    )
    assert len(found) > 3
    with pytest.raises(UsageError, match="have more than 1,000 tokens together"):
        load([TokenStream(local=root)], **settings)


def test_the_state_knows_what_is_chosen(raw) -> None:
    def opened(*where: str | None, **changes: Any) -> Any:
        return load([TokenStream(local=raw.root, where=each) for each in where], **changes)

    loader = opened("tokens > 20", "tokens <= 20")
    sequences(loader, 30)
    state = saved(loader)
    opened("tokens>20", "not tokens > 20").load_state_dict(state)  # the same documents
    for changed in (("tokens <= 20", "tokens > 20"), ("tokens > 20", None), (None, None)):
        with pytest.raises(ConfigMismatchError, match=r"streams: .* where "):
            opened(*changed).load_state_dict(state)
    # Each stream continues from its own count, wherever it is listed.
    other = opened("tokens <= 20", "tokens == 3", "tokens > 20")
    other.load_state_dict(state, allow_changes=["streams", "epoch_size"])
    counts = [each.sequences for each in other.achieved()]
    drawn = [each["drawn"] for each in state["streams"]]
    assert counts == [drawn[1], 0, drawn[0]]


def test_conditions_with_other_features(raw) -> None:
    """The features are changing lengths and counts of domains; exclusions have their own tests."""
    stream = [TokenStream(local=raw.root, where="tokens > 9")]
    whole = [batch["tokens"].reshape(-1) for batch in load(stream, sequence_length=16)]
    halves = [
        batch["tokens"].reshape(-1)
        for batch in load(stream, batch_size=2, sequence_length="0:8 64:16")
    ]
    assert np.concatenate(halves[:4]).tolist() == np.concatenate(whole[:4]).tolist()
    counting = load(stream, sequence_length=16, domain_by="folder", extras=["domain_ids"])
    seen = sum(int((batch["domain_ids"] >= 0).sum()) for batch in counting)
    (reported,) = counting.achieved()
    assert sum(reported.tokens_by_domain.values()) == seen == 16 * len(whole)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("tokens > 5000", r"holds for no document of split 'train' of .*Correct it, or leave"),
        ("score > 1", r"has no column 'score'; its documents have tokens, source"),
        ("tokens = 1", "is not understood"),
        (7, "`where` must be a condition as text, got 7"),
        ("tokens == 'a'", "column 'tokens' is of type int64, and --where compares it with a text"),
    ],
)
def test_what_chooses_nothing_or_is_not_understood(raw, where, said) -> None:
    with pytest.raises(UsageError, match=said):
        load([TokenStream(local=raw.root, where=where)])


def test_too_few_tokens_for_a_row(raw) -> None:
    with pytest.raises(UsageError, match=r"900 tokens, .* where tokens == 30 has \d+: less than"):
        load([TokenStream(local=raw.root, where="tokens == 30")], sequence_length=900)


def test_partitions_of_nodes_have_no_condition(raw) -> None:
    with pytest.raises(UsageError, match="Partitions of nodes are read as they are"):
        load([TokenStream(local=raw.root, where="tokens > 3")], node_local=True)


def test_a_dataset_without_lists_of_documents(raw) -> None:
    with pytest.raises(
        UsageError, match="has no lists of documents, which packing, exclude, where"
    ):
        load([TokenStream(local=raw.root / "train", where="tokens > 1")], split=None)
