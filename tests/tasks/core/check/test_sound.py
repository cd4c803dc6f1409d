"""In a sound dataset `verify` finds nothing, and the stock reader finds its samples."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming_ext.base.errors import StoppedError
from streaming_ext.format.layout import SPLITS
from streaming_ext.store import LocalStorage
from tasks.core.check.decode import decode_samples
from tasks.core.check.findings import Report
from tasks.core.check.inspect import describe
from tasks.core.synthetic import make_documents
from tests.command_line import file_hashes
from tests.tasks.core.build_dataset import Forger, build_dataset, manifest_of, require_sound
from tests.tasks.core.check.damage import ALL, check


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"compression": "none"},
        {"compression": "gz:1"},
        {"compression": "zstd:19", "shard_size": 2**20},
        {"holdout_fraction": 0.0},
        {"holdout_fraction": 0.5, "holdout_seed": 7, "compression": "bz2"},
        {"sequence_length": 1, "shard_size": 1024},
        {"sequence_length": 2048, "shard_size": 8192},
    ],
    ids=str,
)
def test_nothing_is_found_in_a_sound_dataset(config, tmp_path, texts) -> None:
    root = build_dataset(tmp_path, texts, **config)
    report = require_sound(root, deep=True, deep_documents=ALL)
    assert report.sound
    assert report.parts == 3
    assert report.checked.documents == report.checked.retokenized == 40
    assert report.checked.source_rows == sum(map(len, texts))
    assert report.checked.files == len(file_hashes(root))
    assert report.checked.tokens == report.checked.retokenized_tokens


def test_other_tokenizers(tmp_path, texts, vocabulary, tokenizer_json) -> None:
    large, other = tmp_path / "large.tiktoken", tmp_path / "tokenizer.json"
    large.write_bytes(vocabulary.read_bytes() + b"eHh4eHh4eHh4 70000\n")
    other.write_text(tokenizer_json)
    wide = build_dataset(tmp_path / "wide", texts, tokenizer=str(large))
    assert manifest_of(wide).spec.dtype == "uint32"
    for root in (
        wide,
        build_dataset(tmp_path / "huggingface", texts, tokenizer=str(other), pattern=None),
    ):
        require_sound(root, deep=True)


def test_it_changes_nothing_and_counts_every_byte(copy) -> None:
    before = file_hashes(copy)
    (copy / "runs").mkdir()
    (copy / "runs/anything.txt").write_text("?")  # runs/ is not looked at
    seen = []
    report = require_sound(
        copy, deep=True, on_progress=lambda done, total: seen.append((done, total))
    )
    assert file_hashes(copy) == before
    assert seen[-1][0] == seen[-1][1] > 0
    assert report.checked.bytes == sum((copy / file).stat().st_size for file in before)


def test_what_its_listener_raises_ends_it(sound) -> None:
    seen = []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        raise StoppedError("enough")

    with pytest.raises(StoppedError):
        check(sound, deep=True, on_progress=stop)
    assert len(seen) == 1


@pytest.mark.filterwarnings("ignore")  # from other packages
@pytest.mark.parametrize("compression", ["none", "zstd:1", "gz:6", "bz2"])
def test_stock_streaming_dataset_reads_each_split(compression, tmp_path) -> None:
    """The stock reader returns the same samples in the same order."""
    pytest.importorskip("torch")
    from streaming_ext.training.stock import streaming

    made = [text[:400] for text in make_documents(24, seed=4)]
    options = {"compression": compression, "holdout_fraction": 0.5}
    root = build_dataset(tmp_path, [made[:12], made[12:]], **options)
    forger = Forger(root)
    for split in SPLITS:
        expected = np.concatenate([forger.stream(part, split) for part in (0, 1)])
        local = shutil.copytree(root / split, tmp_path / split)  # the reader unpacks there
        dataset = streaming.StreamingDataset(local=str(local), batch_size=1, validate_hash="xxh128")
        assert len(dataset) * 64 == len(expected) > 0
        for number, row in enumerate(expected.reshape(-1, 64)):
            sample = dataset[number]
            assert list(sample) == ["tokens"]
            np.testing.assert_array_equal(sample["tokens"], row)


# --- lists read in many batches: the number of batches does not change what is found


KINDS: dict[str, dict[str, Any]] = {
    "in the order of the sources": {},
    "deduplicated": {"deduplicate": "exact"},
    "shuffled and deduplicated": {"shuffle": "documents", "deduplicate": "exact"},
}


@pytest.fixture(params=KINDS)
def built(request, tmp_path) -> Path:
    made: list[str | None] = [text[:300] for text in make_documents(30, seed=9)]
    texts = [[*made, None, *made[:5]], [*made[20:], "", "another one"]]
    return build_dataset(tmp_path, texts, **KINDS[request.param])


def small_batches(patch: pytest.MonkeyPatch, rows: int) -> None:
    patch.setattr("streaming_ext.format.parquet._BATCH_ROWS", rows)
    patch.setattr("tasks.core.reading.documents._BLOCK", 7 * rows)


def checked(built: Path) -> Report:
    report = check(built, deep=True, deep_documents=ALL)
    return replace(report, seconds=0.0)


@pytest.mark.parametrize("rows", [1, 3])
def test_the_same_is_found(built, rows, monkeypatch) -> None:
    storage = LocalStorage(built)
    samples = range(describe(storage).splits["train"].summary.samples)
    whole = checked(built), describe(storage), decode_samples(storage, "train", samples)
    assert whole[0].findings == ()
    assert whole[0].checked.retokenized == whole[0].checked.documents > 30
    small_batches(monkeypatch, rows)
    report, description, decoded = (
        checked(built),
        describe(storage),
        decode_samples(storage, "train", samples),
    )
    assert report == whole[0]
    assert description.facts() == whole[1].facts()
    assert decoded == whole[2]


@pytest.mark.parametrize("built", ["in the order of the sources"], indirect=True)
def test_damage_behind_the_first_batch(built, monkeypatch) -> None:
    forger = Forger(built)
    columns = forger.documents(0)
    columns["row"][20] = columns["row"][19]
    forger.set_documents(0, columns)
    forger.seal()
    small_batches(monkeypatch, 3)
    (finding,) = check(built).findings
    assert finding.file == "documents/00000.parquet"
    assert "document 20 " in finding.problem
