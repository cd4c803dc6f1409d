"""An extension leaves the old generation whole and the next one beside it, both readable."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streaming_ext import StreamingTokenDataset, TokenStream
from streaming_ext.base.errors import (
    ConfigMismatchError,
    CorruptDatasetError,
    DatasetError,
    TokenizerError,
    TransientStorageError,
    UsageError,
)
from streaming_ext.format.layout import BUILD
from streaming_ext.store import LocalStorage, Storage
from streaming_ext.text.sources import SourceFile
from streaming_ext.training.stock import streaming
from tasks.core.config import ExtendConfig
from tasks.core.hosts.cluster import put_shared_plan
from tasks.core.shard import plan as planning
from tasks.core.shard.plan import plan_extend, plan_shard
from tests.command_line import file_hashes
from tests.tasks.core.build_dataset import (
    build_dataset,
    build_from,
    config_of,
    found_in,
    manifest_of,
    require_sound,
)
from tests.tasks.core.extending.extended import extended, finish, planned, write_source
from tests.tasks.core.imports.importing import documents_in, imported, write_ids
from tests.tasks.core.moving.moved import copied, merged
from tests.tasks.core.running import do_parts, publish
from tests.tasks.core.subsets.test_subset import subset

OLD = [
    [f"Old document {number} of file {file}, and some words." for number in range(30)]
    for file in range(2)
]
NEW = [f"New document {number}, which came later." for number in range(40)]


@pytest.fixture
def old(tmp_path) -> Path:
    return build_dataset(tmp_path / "made", OLD, sequence_length=16)


@pytest.fixture
def new(tmp_path) -> Path:
    return write_source(tmp_path / "new" / "a.parquet", NEW)


@pytest.fixture
def second(tmp_path) -> Path:
    return write_source(tmp_path / "new" / "b.parquet", NEW[:20])


@pytest.fixture
def twin(old, new, tmp_path) -> Path:
    """The extended dataset, made undisturbed."""
    twin = shutil.copytree(old, tmp_path / "twin")
    extended(twin, new)
    return twin


def opened(root: Path, generation: str | None = None) -> StreamingTokenDataset:
    return StreamingTokenDataset(
        streams=[TokenStream(local=root, generation=generation)],
        batch_size=4,
        dp_rank=0,
        dp_world_size=1,
    )


# --- generations


def test_readers_of_each_generation(old, new) -> None:
    first = opened(old)

    def rows(dataset: StreamingTokenDataset) -> Iterator[list[int]]:
        return (dataset.get_item(number)["tokens"].tolist() for number in range(first.size))

    expected, parent = [*rows(first)], file_hashes(old)["manifest.json"]
    extended(old, new)
    # An open dataset stays as it is, both generations can be opened, stock readers see all of it.
    assert [*rows(first)] == expected
    again, newest = opened(old, parent[:12]), opened(old)
    assert again.size == first.size < newest.size
    assert [*rows(newest)] == expected
    stock = streaming.StreamingDataset(local=str(old / "train"), batch_size=1)
    assert newest.size == stock.size
    with pytest.raises(UsageError, match=f"no generation has .* 'f00'.*{parent[:12]}.*newest"):
        opened(old, "f00")


def test_an_index_and_a_manifest_of_two_generations(old, new) -> None:
    stale, index = (old / "manifest.json").read_bytes(), (old / "train/index.json").read_bytes()
    parent = file_hashes(old)["manifest.json"]
    extended(old, new)
    whole, newest = file_hashes(old), (old / "manifest.json").read_bytes()
    (old / "manifest.json").write_bytes(stale)  # as a reader of the old manifest sees it
    assert opened(old).size == opened(old, parent).size
    (old / "manifest.json").write_bytes(newest)
    (old / "train/index.json").write_bytes(index)
    assert found_in(old) == ["train/index.json"]
    assert extended(old, new).todo == ()
    assert file_hashes(old) == whole


def test_damage_of_what_older_generations_are_read_by(old, new) -> None:
    """Training that stands in an older generation would find it when it resumes."""
    extended(old, new)
    kept = [*old.glob("generations/*.json"), *old.glob("*/index-*.json")]
    assert len(kept) == 5
    for file in kept:
        data = file.read_bytes()
        for damaged in (None, data[:-1], bytes([data[0] ^ 1]) + data[1:]):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            assert found_in(old) == [file.relative_to(old).as_posix()]
        file.write_bytes(data)


def test_an_extended_dataset_is_merged_as_its_generations(old, new, tmp_path) -> None:
    parent = file_hashes(old)["manifest.json"]
    extended(old, new)
    other = build_dataset(tmp_path / "other", [NEW[:9]], sequence_length=16)
    merged([old, other], tmp_path / "both")
    require_sound(tmp_path / "both")
    found = manifest_of(tmp_path / "both")
    assert [each.parts for each in found.merged] == [2, 1, 1]
    assert found.merged[0].manifest == parent


# --- what is added


def test_sources_that_the_dataset_holds_are_left_out(old, new) -> None:
    assert extended(old, old.parent / "sources").published
    assert not list(old.glob("generations/*"))
    plan = extended(old, old.parent / "sources", new)
    assert [plan.parts[part].source for part in plan.todo] == [str(new)]
    assert extended(old, new).published
    assert len(manifest_of(old).generations) == 1
    # A source that changed is refused.
    write_source(old.parent / "sources" / "001.parquet", OLD[1][:-1])
    with pytest.raises(ConfigMismatchError, match=r"(?s)other bytes.*001.parquet: \d+ bytes"):
        planned(old, old.parent / "sources")


def test_a_text_of_the_old_holdout_is_never_in_train(old, tmp_path) -> None:
    extended(old, write_source(tmp_path / "new" / "again.parquet", [*NEW, *OLD[0]]))
    found = documents_in(old)
    train, holdout = ({tuple(ids) for ids in found[split]} for split in ("train", "holdout"))
    assert len(holdout) > 10
    assert not train & holdout


def test_means_that_are_not_given_are_those_of_each_host(old, new, tmp_path) -> None:
    """A partition gets only what is set: the rest is the host's own."""
    for means in ({}, {"workers": 3, "scratch": "/somewhere"}):
        config = ExtendConfig(dataset=str(old), sources=(str(new),), **means)  # type: ignore[arg-type]
        storage = LocalStorage(old)
        storage.create()
        plan = replace(plan_extend(config, storage), scratch=tmp_path / "scratch")
        plan.prepare(storage)
        shared = put_shared_plan(plan, storage, "run", 1)
        assert shared.execution().model_dump(exclude_unset=True) == means
        assert shared.execution(workers=7).workers == 7


@pytest.mark.parametrize("shuffle", [None, "documents"])
def test_a_run_of_more_sources_names_the_command_that_extends(tmp_path, new, shuffle) -> None:
    old = build_dataset(tmp_path / "made", OLD, shuffle=shuffle, sequence_length=16)
    shutil.copy(new, tmp_path / "made/sources/new.parquet")
    with pytest.raises(ConfigMismatchError, match=rf"`shardmill extend {old} SOURCE\.\.\.`"):
        build_from(tmp_path / "made/sources", old, shuffle=shuffle, sequence_length=16)


@pytest.mark.parametrize("kind", ["a merged", "an imported", "a subset", "one node's"])
def test_datasets_that_cannot_be_extended(kind, old, new, tmp_path) -> None:
    root = tmp_path / "other"
    if kind == "a merged":
        merged([old, shutil.copytree(old, tmp_path / "again")], root, repeats=True)
    elif kind == "an imported":
        imported("nanogpt", write_ids(tmp_path / "ids.bin", [[1, 2]] * 9), root)
    elif kind == "a subset":
        subset(old, root, documents=5)
    else:
        build_from(old.parent / "sources", root, nodes=2, node_rank=0, sequence_length=16)
    said = f"is {kind} dataset: it cannot be extended.*`shardmill merge {root} NEW --output BOTH`"
    with pytest.raises(UsageError, match=said):
        planned(root, new)


# --- killed, and two at once


def test_a_file_on_its_way_is_no_damage_while_an_extension_is_started(old, new) -> None:
    _, storage = planned(old, new)
    (old / ".incoming").mkdir(exist_ok=True)
    (old / ".incoming/0123").write_bytes(b"cut short")
    require_sound(old)
    (old / BUILD).unlink()
    assert found_in(old) == [".incoming/0123"]
    storage.close()


@pytest.mark.parametrize("phases", [{}, {"shuffle": "documents", "deduplicate": "exact"}])
def test_an_extension_that_was_given_up_leaves_nothing(tmp_path, new, second, phases) -> None:
    old = build_dataset(tmp_path / "old", OLD, sequence_length=16, **phases)
    parts = len(manifest_of(old).parts)
    plan, storage = planned(old, new)
    do_parts(plan, storage)
    with pytest.raises(ConfigMismatchError, match=r"remove runs/.build.json"):
        planned(old, second)
    (old / BUILD).unlink()
    extended(old, second)
    require_sound(old, deep=True)
    assert len(manifest_of(old).parts) == parts + 1
    assert not list(old.glob("shuffle/*"))


def fail_once(storage: Storage, path: str, patch: pytest.MonkeyPatch, *, kept: bool) -> None:
    """Make the first put of a file fail, after the storage kept it or before."""
    put, failed = storage.put, []

    def put_or_fail(name: str, data: bytes) -> None:
        fails = name == path and not failed
        if kept or not fails:
            put(name, data)
        if fails:
            failed.append(name)
            raise TransientStorageError("503")

    patch.setattr(storage, "put", put_or_fail)


@pytest.mark.parametrize(("path", "kept"), [("manifest.json", True), ("train/index.json", False)])
def test_publishing_that_failed_is_tried_again(old, new, twin, monkeypatch, path, kept) -> None:
    plan, storage = planned(old, new)
    do_parts(plan, storage)
    fail_once(storage, path, monkeypatch, kept=kept)
    with pytest.raises(TransientStorageError):
        publish(plan, storage)
    publish(plan, storage)
    assert file_hashes(old) == file_hashes(twin)
    (old / "manifest.json").write_bytes(b"{}")
    with pytest.raises(DatasetError, match="was changed during the run"):
        publish(plan, storage)


@pytest.mark.parametrize("held_out", [0.2, 0])
def test_killed_between_the_manifest_and_the_indexes(tmp_path, new, monkeypatch, held_out) -> None:
    """The output is the next generation: it is verified and copied as such, with older indexes."""
    old = build_dataset(tmp_path / "grows", OLD, holdout_fraction=held_out, sequence_length=16)
    twin = shutil.copytree(old, tmp_path / "twin")
    extended(twin, new)
    before, index = file_hashes(old), (old / "train/index.json").read_bytes()
    plan, storage = planned(old, new)
    do_parts(plan, storage)
    fail_once(storage, "train/index.json", monkeypatch, kept=False)
    with pytest.raises(TransientStorageError):
        publish(plan, storage)
    whole, now = file_hashes(twin), file_hashes(old)
    assert now["manifest.json"] == whole["manifest.json"]
    assert now["train/index.json"] == before["train/index.json"]
    require_sound(old, deep=True)
    parent = before["manifest.json"]
    assert opened(old).size > opened(old, parent).size
    copied(old, tmp_path / "copy")
    assert file_hashes(tmp_path / "copy") == whole
    assert opened(tmp_path / "copy", parent).size == opened(old, parent).size
    (old / "train/index.json").write_bytes(index[:-1] + b" ")
    assert found_in(old) == ["train/index.json"]
    assert extended(old, new).todo == ()
    assert file_hashes(old) == whole


def test_one_extension_ends_while_another_looks_at_the_dataset(
    old, new, second, monkeypatch
) -> None:
    """All of the first one's parts are recorded when the second one reads the records."""
    first, storage = planned(old, new)
    do_parts(first, storage)
    hashed = planning.new_sources

    def ended_meanwhile(*arguments: Any) -> tuple[SourceFile, ...]:
        if (old / BUILD).exists():
            publish(first, storage)
        return hashed(*arguments)

    monkeypatch.setattr(planning, "new_sources", ended_meanwhile)
    plan, other = planned(old, second)
    require_sound(old, deep=True)
    assert plan.todo == (3,)
    finish(plan, other)
    require_sound(old, deep=True)
    assert len(manifest_of(old).generations) == 2


# --- an extended dataset that lost files


@pytest.fixture
def grown(old, new) -> Path:
    """A dataset extended twice; all its sources lie in one folder, the newest last by name."""
    sources = old.parent / "sources"
    extended(old, shutil.copy(new, sources / "002.parquet"))
    extended(old, write_source(sources / "003.parquet", NEW[:9]))
    return old


@pytest.mark.parametrize("lost", ["train/index.json", "train/index-*.json", "generations/*.json"])
def test_extend_makes_lost_indexes_and_manifests_again_and_shard_does_not(grown, lost) -> None:
    sources = grown.parent / "sources"
    config = config_of(sources, grown, sequence_length=16)
    assert plan_shard(config, LocalStorage(grown)).published
    before = file_hashes(grown)
    for file in grown.glob(lost):
        file.unlink()
    left = file_hashes(grown)
    assert left != before
    with pytest.raises(ConfigMismatchError, match=r"was extended.*shardmill extend"):
        build_from(sources, grown, sequence_length=16)
    assert file_hashes(grown) == left
    assert extended(grown, sources).todo == ()
    assert file_hashes(grown) == before


@pytest.mark.parametrize(
    ("lost", "more"), [("tokenizer/*", False), ("tokenizer/tokenizer_spec.json", True)]
)
def test_a_lost_tokenizer_is_put_back_from_the_one_that_is_given(
    grown, vocabulary, lost, more, tmp_path
) -> None:
    before = file_hashes(grown)
    sources = [grown.parent / "sources"]
    if more:
        sources += [write_source(tmp_path / "more/004.parquet", ["one more text"])]
    for file in grown.glob(lost):
        file.unlink()
    with pytest.raises(TokenizerError, match="missing. Give the tokenizer .* as --tokenizer"):
        extended(grown, *sources)
    other = tmp_path / "other.tiktoken"
    other.write_text("".join(vocabulary.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(TokenizerError, match="the dataset was made with .*Give that one"):
        extended(grown, *sources, tokenizer=str(other))
    extended(grown, *sources, tokenizer=str(vocabulary))
    require_sound(grown, deep=True)
    after = file_hashes(grown)
    for name in before:
        assert after[name] == before[name] or "tokenizer" not in name
    assert (after == before) is not more


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("train/00000/shard.*", "lost train/00000/.*from a copy"),
        ("parts/00002.json", "shardmill verify"),
    ],
)
def test_what_a_part_lost_comes_back_from_a_copy_only(grown, lost, said) -> None:
    """No message suggests removing the manifest, which names the generations."""
    sources = grown.parent / "sources"
    next(iter(grown.glob(lost))).unlink()
    either = (CorruptDatasetError, ConfigMismatchError)
    with pytest.raises(either, match="was extended, and lost files"):
        build_from(sources, grown, sequence_length=16)
    with pytest.raises(either, match=said):
        extended(grown, sources)
