"""A shuffle is taken up where it was, by the same sources and configuration alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from streaming_ext.errors import (
    ConfigMismatchError,
    StorageError,
)
from tasks.core.check.verify import verify
from tasks.core.shuffle.arrange import arrange
from tasks.core.storage import LocalStorage
from tests.tasks.core.build_dataset import gather_all, tokenize_all
from tests.tasks.core.shuffle.building import begin, build, hash_of


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
