"""Subsets hold exactly the chosen documents, with ids and origins, for any number of workers."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_ext.base.errors import ConfigMismatchError, CorruptDatasetError, UsageError
from streaming_ext.format.schema import content_hash
from streaming_ext.store import open_storage
from tasks.core.derive.choosing import Choice, Ints, choose, chosen, keys_of
from tasks.core.derive.config import SubsetConfig
from tasks.core.derive.subset import SubsetBuild, plan_subset
from tasks.core.synthetic import make_documents
from tests.tasks.core import running
from tests.tasks.core.build_dataset import Forger, build_dataset, require_sound
from tests.tasks.core.check.damage import flip
from tests.tasks.core.extending.extended import extended, write_source
from tests.tasks.core.moving.moved import merged

FILES = 4


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """Documents of one to many tokens, some larger than a shard, and rows without text."""
    texts = make_documents(60, seed=8)
    made = [text[: 40 * (1 + number % 50)] for number, text in enumerate(texts)]
    files: list[list[str | None]] = [[*made[number::FILES], None, ""] for number in range(FILES)]
    return build_dataset(tmp_path_factory.mktemp("original"), files, shard_size=1024)


def config_of(dataset: Path, output: Path, **options: Any) -> SubsetConfig:
    return SubsetConfig(dataset=str(dataset), output=str(output), **options)


def subset(dataset: Path, output: Path, **options: Any) -> SubsetBuild:
    """Make a complete subset."""
    return running.complete(plan_subset, config_of(dataset, output, **options))


Listed = tuple[str, int, str, tuple[int, ...]]  # source, row, split, ids


def documents_of(root: Path) -> list[Listed]:
    """Return every document with its origin, in order."""
    dataset, found = Forger(root), []
    for part, record in sorted(dataset.records.items()):
        starts = np.cumsum([0, *(span.rows for span in record.made_of)])
        for row, split, ids in dataset.listed(part):
            number = int(np.searchsorted(starts, row, side="right")) - 1
            url = record.made_of[number].source.url
            found.append((url, int(row - starts[number]), split, tuple(ids.tolist())))
    return found


@pytest.mark.parametrize(
    ("options", "seed"),
    [
        ({"documents": 1}, 0),
        ({"documents": 25}, None),
        ({"documents": 25}, 7),
        ({"tokens": "2k"}, None),
        ({"tokens": "2k"}, 0),
    ],
)
def test_the_documents_of_the_choice(original, tmp_path, options, seed) -> None:
    how = {"first": True} if seed is None else {"seed": seed}
    output = tmp_path / "subset"
    subset(original, output, **options, **how)
    every = documents_of(original)
    order = np.argsort(keys_of(np.arange(len(every)), seed), kind="stable").tolist()
    count = options.get("documents", 0)
    if not count:
        sums = np.cumsum([len(every[number][3]) + 1 for number in order])
        count = int((sums <= 2000).sum())
    assert documents_of(output) == [every[number] for number in sorted(order[:count])]
    report = require_sound(output, deep=True)
    assert report.checked.retokenized == count
    assert subset(original, output, **options, **how).published


def test_all_documents_are_the_dataset(original, tmp_path) -> None:
    count = len(documents_of(original))
    subset(original, tmp_path / "all", documents=count)
    assert documents_of(tmp_path / "all") == documents_of(original)
    require_sound(tmp_path / "all", deep=True)
    with pytest.raises(UsageError, match=f"has {count} documents"):
        subset(original, tmp_path / "more", documents=count + 1)
    with pytest.raises(UsageError, match="The first document has more"):
        subset(original, tmp_path / "none", tokens="1")


def test_another_choice_is_another_output(original, tmp_path) -> None:
    config = config_of(original, tmp_path / "out", documents=40, seed=3)
    plan, storage = running.planned(plan_subset, config)
    running.do_parts(plan, storage, [0])
    with pytest.raises(ConfigMismatchError, match="subset.documents: the output has 40"):
        subset(original, tmp_path / "out", documents=41, seed=3)


def test_parts_that_give_little_go_together(original, tmp_path) -> None:
    """Two documents of two files form one part, and each row is a row of its file."""
    subset(original, tmp_path / "two", documents=2, seed=1)
    (record,) = Forger(tmp_path / "two").records.values()
    assert len(record.made_of) == 2
    assert record.unchosen_documents == record.rows - 2 - 4  # each file has two rows without text


def test_a_part_is_of_one_of_the_datasets_that_were_merged(tmp_path) -> None:
    """Parts of different datasets stay apart even if the datasets were made alike."""
    made = [
        build_dataset(
            tmp_path / name,
            [[f"Document {number} of {name} {file}." for number in range(9)] for file in range(3)],
        )
        for name in ("one", "other")
    ]
    merged(made, tmp_path / "both")
    subset(tmp_path / "both", tmp_path / "subset", documents=20, seed=1)
    chosen = documents_of(tmp_path / "subset")
    assert len(set(chosen) & set(documents_of(tmp_path / "both"))) == len(chosen) == 20
    dataset = Forger(tmp_path / "subset")
    assert [each.parts for each in dataset.manifest.merged] == [1, 1]
    for root, record in zip(made, dataset.records.values(), strict=True):
        folders = {Path(span.source.url).parent for span in record.made_of}
        assert folders == {root.parent / "sources"}
    require_sound(tmp_path / "subset", deep=True)


def test_a_part_is_of_one_generation_of_an_extended_dataset(tmp_path) -> None:
    """Each part agrees with what the subset says of its member."""
    texts = [["One old text."], ["Another old text."]]
    dataset = build_dataset(tmp_path / "old", texts)
    manifests = [(dataset / "manifest.json").read_bytes()]
    for number in range(2):
        extended(
            dataset, write_source(tmp_path / f"{number}.parquet", [f"A newer text, {number}."])
        )
        manifests.append((dataset / "manifest.json").read_bytes())
    plan = subset(dataset, tmp_path / "made", documents=4, first=True)
    groups = [[original.part for original in job.originals] for job in plan.jobs]
    assert groups == [[0, 1], [2], [3]]
    assert [(each.manifest, each.parts) for each in Forger(tmp_path / "made").manifest.merged] == [
        (content_hash(manifest), 1) for manifest in manifests
    ]
    require_sound(tmp_path / "made", deep=True)


def test_subsets_that_are_merged_are_no_subset_of_one_dataset(first, second, tmp_path) -> None:
    subset(first, tmp_path / "few", documents=5)
    for order in ([tmp_path / "few", second], [second, tmp_path / "few"]):
        output = tmp_path / f"{order[0].name} first"
        merged(order, output)
        assert Forger(output).spec.subset is None
        require_sound(output)
        subset(output, tmp_path / f"of {output.name}", documents=3)
        require_sound(tmp_path / f"of {output.name}", deep=True)


def test_the_choice_by_tokens_is_made_once_in_a_run(original, tmp_path) -> None:
    """The choice reads the lists of all documents; a run that plans again need not read them."""
    copy = shutil.copytree(original, tmp_path / "copy")
    config = config_of(copy, tmp_path / "out", tokens="1900", seed=5)
    plan = plan_subset(config, open_storage(config.output))
    shutil.rmtree(copy / "documents")
    again = plan_subset(config, open_storage(config.output))
    assert again.jobs == plan.jobs
    with pytest.raises(CorruptDatasetError):
        plan_subset(config.model_copy(update={"seed": 6}), open_storage(config.output))


def test_damage_is_named(original, tmp_path) -> None:
    copy = shutil.copytree(original, tmp_path / "copy")
    shard = sorted((copy / "train/00000").iterdir())[0]
    flip(shard)
    with pytest.raises(CorruptDatasetError, match=shard.name):
        subset(copy, tmp_path / "subset", documents=40)


# --- which documents are chosen


def weights_of(lengths: Ints) -> Callable[[], Iterable[Ints]]:
    """Return lengths in blocks of at most three documents."""
    return lambda: (lengths[first : first + 3] for first in range(0, len(lengths), 3))


def taken(choice: Choice, total: int, seed: int | None, cuts: list[int]) -> list[int]:
    """Return the numbers of the chosen documents, part by part."""
    ends = sorted({*(cut for cut in cuts if cut < total), total})
    found, first = [], 0
    for end in ends:
        found += (first + np.flatnonzero(chosen(first, end - first, choice.largest, seed))).tolist()
        first = end
    return found


@given(
    lengths=st.lists(st.integers(2, 50), min_size=1, max_size=80) | st.integers(1, 300),
    fraction=st.floats(0, 1),
    seed=st.none() | st.integers(0, 2**40),
    cuts=st.lists(st.integers(0)),
)
def test_as_many_as_weigh_no_more_than_asked(lengths, fraction, seed, cuts) -> None:
    """A document weighs its number of tokens, or one, which limits the number of documents."""
    weights = np.ones(lengths, np.int64) if isinstance(lengths, int) else np.array(lengths)
    total, most = len(weights), max(1, int(fraction * weights.sum()))
    order = np.argsort(keys_of(np.arange(total), seed), kind="stable")
    count = int((np.cumsum(weights[order]) <= most).sum())
    choice = choose(weights_of(weights), total, most, seed)
    assert choice.documents == count
    if count:
        assert taken(choice, total, seed, cuts) == sorted(order[:count].tolist())


def test_a_draw_is_spread_evenly_and_another_seed_is_another_draw() -> None:
    total = 100_000
    draws = {
        seed: taken(
            choose(lambda: [np.ones(total, np.int64)], total, 10_000, seed), total, seed, []
        )
        for seed in (None, 1, 2)
    }
    assert draws[None] == list(range(10_000))
    for seed in (1, 2):
        counts = np.histogram(draws[seed], bins=10, range=(0, total))[0]
        assert counts.min() > 900
        assert counts.max() < 1100
    assert len(set(draws[1]) & set(draws[2])) == pytest.approx(1000, abs=150)
