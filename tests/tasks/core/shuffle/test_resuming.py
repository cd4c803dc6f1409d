"""A killed shuffle is resumed, with the same sources and configuration only."""

from pathlib import Path

import pytest

from streaming_ext.base.errors import (
    ConfigMismatchError,
    StorageError,
)
from streaming_ext.format.layout import BUILD
from streaming_ext.store import LocalStorage
from tasks.core.build.engine import mark_of
from tasks.core.check.verify import verify
from tests.tasks.core.running import do_parts, second_phase
from tests.tasks.core.shuffle.building import begin, build, hash_of


def test_resumed(tmp_path: Path, lines: Path, whole: dict[str, str], vocabulary: Path) -> None:
    root = tmp_path / "killed"
    plan, storage = begin(lines, root, vocabulary)
    assert plan.todo == (0, 1, 2)
    (root / "shuffle").mkdir()
    (root / "shuffle" / "00001-000.spill").write_bytes(b"cut")  # of a part that was never recorded
    do_parts(plan, storage, (0, 2))
    plan, storage = begin(lines, root, vocabulary)
    assert plan.todo == (1,)
    assert not (root / "shuffle" / "00001-000.spill").exists()
    do_parts(plan, storage)
    second = second_phase(plan, storage)
    assert len(second.todo) > 4
    do_parts(second, storage, second.todo[::2])
    (root / "train" / "00001").mkdir(exist_ok=True)
    (root / "train" / "00001" / "shard.00000.mds.zstd").write_bytes(b"cut")
    plan, storage = begin(lines, root, vocabulary)
    assert plan.todo == ()
    second = second_phase(plan, storage)
    assert second.todo == tuple(range(len(second.parts)))[1::2]
    do_parts(second, storage)
    build(lines, root, vocabulary)
    assert hash_of(root) == whole
    plan, _ = begin(lines, root, vocabulary)
    assert plan.published


@pytest.mark.parametrize("shuffle", ["documents", None])
def test_a_stopped_run_that_keeps_columns(
    tmp_path: Path, lines: Path, vocabulary: Path, shuffle: str | None
) -> None:
    """What the mark of the output says is read as the specification that it was."""
    settings = {"shuffle": shuffle, "keep_columns": ("text",)}
    plan, storage = begin(lines, tmp_path / "out", vocabulary, **settings)
    do_parts(plan, storage, (0,))
    plan, _ = begin(lines, tmp_path / "out", vocabulary, **settings)
    assert plan.todo == (1, 2)


def test_spills_left_by_a_kill_after_the_manifest(
    tmp_path: Path, lines: Path, whole: dict[str, str], vocabulary: Path
) -> None:
    root = build(lines, tmp_path / "dataset", vocabulary)
    (root / "shuffle").mkdir()
    (root / "shuffle" / "00000-000.spill").write_bytes(b"left")
    assert [finding.file for finding in verify(LocalStorage(root)).findings] == [
        "shuffle/00000-000.spill"
    ]
    plan, storage = begin(lines, root, vocabulary)
    storage.put(BUILD, mark_of(plan))  # the last to go
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
    plan, storage = begin(lines, tmp_path / "started", vocabulary)
    do_parts(plan, storage)
    with pytest.raises(ConfigMismatchError, match="shuffle"):
        begin(lines, tmp_path / "started", vocabulary, shuffle=None)


def test_changed_source(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    for file in lines.iterdir():
        (sources / file.name).write_bytes(file.read_bytes())
    root = build(sources, tmp_path / "dataset", vocabulary, part_size=20_000)
    begin(sources, root, vocabulary)
    data = bytearray((sources / "1.jsonl").read_bytes())
    data[40] ^= 1
    (sources / "1.jsonl").write_bytes(data)
    with pytest.raises(ConfigMismatchError, match="content"):
        begin(sources, root, vocabulary)


def test_lost_spill(tmp_path: Path, lines: Path, whole: dict[str, str], vocabulary: Path) -> None:
    root = tmp_path / "dataset"
    plan, storage = begin(lines, root, vocabulary)
    do_parts(plan, storage)
    second = second_phase(plan, storage)
    (root / "shuffle" / "00001-000.spill").unlink()
    with pytest.raises(StorageError, match=r"00001-000\.spill is missing"):
        do_parts(second, storage)
    plan, storage = begin(lines, root, vocabulary)
    assert plan.todo == (1,)  # made again, and no other
    build(lines, root, vocabulary)
    assert hash_of(root) == whole
