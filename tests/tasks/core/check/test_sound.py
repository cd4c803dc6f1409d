"""`verify` finds nothing in a sound dataset, and changes nothing."""

from pathlib import Path
from typing import Any

import pytest

from streaming_ext.base.errors import StoppedError
from tests.tasks.core.build_dataset import Forger, build_dataset
from tests.tasks.core.check.damage import (
    ALL,
    check,
    listing,
)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"compression": "none"},
        {"compression": "gz:1"},
        {"compression": "bz2"},
        {"compression": "zstd:19", "shard_size": 2**20},
        {"holdout_fraction": 0.0},
        {"holdout_fraction": 0.5, "holdout_seed": 7},
        {"sequence_length": 7},
        {"sequence_length": 1, "shard_size": 1024},
        {"sequence_length": 2048, "shard_size": 8192},
    ],
    ids=str,
)
def test_nothing_is_found_in_a_sound_dataset(
    config: dict[str, Any], tmp_path: Path, texts: list[list[str | None]], rank_path: Path
) -> None:
    root = build_dataset(tmp_path, texts, tokenizer=str(rank_path), **config)
    report = check(root, deep=True, deep_documents=ALL)
    assert report.findings == ()
    assert report.sound
    assert report.parts == 3
    assert report.checked.documents == report.checked.retokenized == 40
    assert report.checked.source_rows == sum(map(len, texts))
    assert report.checked.files == len(listing(root))
    assert report.checked.tokens == report.checked.retokenized_tokens


def test_ids_of_32_bits(tmp_path: Path, texts: list[list[str | None]], rank_path: Path) -> None:
    ranks = tmp_path / "large.tiktoken"
    ranks.write_bytes(rank_path.read_bytes() + b"eHh4eHh4eHh4 70000\n")
    root = build_dataset(tmp_path, texts, tokenizer=str(ranks))
    assert Forger(root).spec.dtype == "uint32"
    assert check(root, deep=True).findings == ()


def test_a_huggingface_tokenizer(
    tmp_path: Path, texts: list[list[str | None]], tokenizer_json: str
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer_json)
    root = build_dataset(tmp_path, texts, tokenizer=str(path), pattern=None)
    assert check(root, deep=True).findings == ()


def test_no_documents_at_all(tmp_path: Path, rank_path: Path) -> None:
    root = build_dataset(tmp_path, [[None, ""], []], tokenizer=str(rank_path))
    assert check(root, deep=True).findings == ()


def test_it_changes_nothing_and_counts_every_byte(sound: Path) -> None:
    before = listing(sound)
    seen: list[tuple[int, int]] = []
    report = check(sound, deep=True, on_progress=lambda done, total: seen.append((done, total)))
    assert listing(sound) == before
    assert seen[-1][0] == seen[-1][1] > 0
    assert report.checked.bytes == sum(path.stat().st_size for path in sound.rglob("*.*"))


def test_what_its_listener_raises_ends_it(sound: Path) -> None:
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        raise StoppedError("enough")

    with pytest.raises(StoppedError):
        check(sound, deep=True, on_progress=stop)
    assert len(seen) == 1


def test_runs_are_free(copy: Path) -> None:
    (copy / "runs").mkdir()
    (copy / "runs/anything.txt").write_text("?")
    assert check(copy).findings == ()
