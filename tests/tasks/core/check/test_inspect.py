"""`inspect` counts what a dataset holds, and decodes samples to the source texts."""

import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from flows.terminal.show_checks import show_dataset, show_samples, show_verified
from streaming_ext.base.errors import CorruptDatasetError, NotADatasetError, UsageError
from streaming_ext.store import LocalStorage
from streaming_ext.text.tokenizer.load import load_tokenizer
from tasks.core.check.decode import DecodedSample, decode_cut, decode_samples
from tasks.core.check.inspect import DatasetDescription, describe
from tasks.core.check.verify import verify
from tasks.core.reporting.lengths import Lengths
from tasks.core.synthetic import make_documents
from tests.tasks.core.build_dataset import Forger, build_dataset
from tests.tasks.core.check.damage import printed
from tests.tasks.core.reporting.test_report import make_report

LENGTH = 256
HOSTILE = "\x1b[31mred\x1b[0m \u202etxet [bold]not markup[/bold] 👩‍👩‍👧 \x07"


@pytest.fixture(scope="session")
def texts() -> list[list[str | None]]:
    made = [text[:500] for text in make_documents(30, seed=8)]
    return [[*made[:18], None, "", HOSTILE], [*made[18:], "東京と大阪、서울; नमस्ते 😀😀😀" * 40]]


@pytest.fixture(scope="session")
def dataset(tmp_path_factory, texts) -> LocalStorage:
    folder = tmp_path_factory.mktemp("inspected")
    root = build_dataset(folder, texts, sequence_length=LENGTH)
    return LocalStorage(root)


@pytest.fixture(scope="session")
def description(dataset) -> DatasetDescription:
    return describe(dataset)


def all_samples(dataset: LocalStorage, description: DatasetDescription) -> list[DecodedSample]:
    decoded = []
    for split, of_split in description.splits.items():
        decoded += decode_samples(dataset, split, range(of_split.summary.samples))
    return decoded


# --- the description of a dataset


def test_counts_are_those_of_the_texts_and_bytes_those_on_the_disk(
    dataset, description, texts, vocabulary
) -> None:
    tokenizer = load_tokenizer(str(vocabulary), pattern="gpt2")
    kept = [text for file in texts for text in file if text]
    lengths = [len(tokenizer.encode(text)) for text in kept]
    assert description.documents == len(kept)
    assert description.manifest.tokens == sum(lengths) + len(kept)
    assert description.manifest.text_bytes == sum(len(text.encode()) for text in kept)
    assert description.bytes_per_token == description.manifest.text_bytes / sum(lengths)
    assert description.lengths.mean == pytest.approx(np.mean(lengths))
    assert description.lengths.longest == max(lengths)
    assert [part.empty_documents for part in description.parts] == [1, 0]
    for split, of_split in description.splits.items():
        stored = sum(
            size for path, size in dataset.list(split).items() if not path.endswith("index.json")
        )
        assert of_split.stored_bytes == stored
        assert of_split.raw_bytes > of_split.summary.samples * LENGTH * 2


def test_a_damaged_file_is_named(forger) -> None:
    root = forger.root
    for file in ("documents/00001.parquet", "parts/00000.json"):
        data = (root / file).read_bytes()
        (root / file).write_bytes(data[:-1])
        with pytest.raises(CorruptDatasetError, match=rf"{file}.*shardmill verify"):
            describe(LocalStorage(root))
        (root / file).write_bytes(data)
    (root / "manifest.json").unlink()
    with pytest.raises(NotADatasetError, match="unfinished"):
        describe(LocalStorage(root))


# --- lengths


def test_lengths_are_counted_one_by_one() -> None:
    tokens = np.exp(np.random.default_rng(0).uniform(0, 16, 10_001)).astype(np.int64)
    lengths, other = Lengths(), Lengths()
    assert (lengths.mean, lengths.quantile(0.5), lengths.histogram()) == (0.0, 0, [])
    lengths.add(tokens[:5000])
    other.add(tokens[5000:])
    lengths.include(other)
    assert lengths.documents == 10_001
    assert lengths.mean == pytest.approx(tokens.mean())
    ordered = np.sort(tokens)
    for fraction in (0.01, 0.3, 0.5, 0.9, 0.99, 1.0):
        expected = int(ordered[int(np.ceil(fraction * 10_001)) - 1])
        assert lengths.quantile(fraction) == expected
    for steps in (1, 2, 4):
        bars = lengths.histogram(steps)
        assert all(one[1] == other[0] for one, other in pairwise(bars))
        assert sum(count for _, _, count in bars) == 10_001
        for start, end, count in bars:
            assert count == ((tokens >= start) & (tokens < end)).sum()
    assert [bar[:2] for bar in lengths.histogram(2)][:4] == [(1, 2), (2, 3), (3, 4), (4, 6)]


# --- decoded samples


def test_all_samples_together_are_all_texts(dataset, description, texts) -> None:
    tokens = {}
    whole = 0
    for sample in all_samples(dataset, description):
        assert (
            sum(excerpt.tokens + excerpt.ends for excerpt in sample.excerpts) + sample.padding
            == LENGTH
        )
        for excerpt in sample.excerpts:
            text = texts[excerpt.part][excerpt.source_row.row]
            assert text is not None
            assert excerpt.source_row.source.endswith(f"{excerpt.part:03}.parquet")
            assert excerpt.text in text
            assert excerpt.begins == (excerpt.first_token == 0)
            if excerpt.ends:
                assert excerpt.first_token + excerpt.tokens == excerpt.document_tokens
            if excerpt.begins and excerpt.ends:
                assert excerpt.text == text
                whole += 1
            seen = tokens.get(excerpt.source_row, 0)
            assert seen == excerpt.first_token  # excerpts of a document follow each other
            tokens[excerpt.source_row] = seen + excerpt.tokens
    assert whole
    assert len(tokens) == description.documents
    assert sum(tokens.values()) == description.lengths.tokens


@pytest.mark.parametrize(
    ("data", "cut_start", "cut_end", "text"),
    [
        ("ä".encode()[1:] + b"b", True, False, "b"),
        ("😀".encode()[1:] + "😀".encode()[:3], True, True, ""),
        ("aä".encode(), True, True, "aä"),
        ("a東".encode()[:-1], True, False, "a\ufffd"),
        (b"a\xff", True, True, "a\ufffd"),
    ],
)
def test_cut_utf8(data, cut_start, cut_end, text) -> None:
    assert decode_cut(data, cut_start=cut_start, cut_end=cut_end) == text


def test_samples_are_those_that_are_given(dataset, description, tmp_path) -> None:
    wanted = [5, 0, 5, 2]
    assert [sample.sample for sample in decode_samples(dataset, "train", wanted)] == wanted
    samples = description.splits["train"].summary.samples
    for wrong in (-1, samples):
        with pytest.raises(UsageError, match=rf"in \[0, {samples}\).*got {wrong}"):
            decode_samples(dataset, "train", [0, wrong])
    root = build_dataset(tmp_path, [["One."]], holdout_fraction=0.0)
    with pytest.raises(UsageError, match=r"no split 'holdout'; it has train"):
        decode_samples(LocalStorage(root), "holdout", [0])


@pytest.fixture
def forger(dataset, tmp_path) -> Forger:
    """A forger on a copy of the dataset."""
    return Forger(shutil.copytree(dataset.root, tmp_path / "dataset"))


def test_only_the_shard_of_the_sample_is_read(forger) -> None:
    root = forger.root
    first = forger.shard_path(0, "train", 0)
    for path in (root / "train").rglob("*.mds.zstd"):
        if path != root / first:
            path.unlink()
    assert decode_samples(LocalStorage(root), "train", [0])
    after = forger.records[0].splits["train"].shards[0].samples
    with pytest.raises(CorruptDatasetError, match=forger.shard_path(0, "train", 1)):
        decode_samples(LocalStorage(root), "train", [after])


def test_documents_that_end_elsewhere_are_refused(forger) -> None:
    ids = forger.stream(0, "train")
    ids[np.flatnonzero(ids == forger.spec.tokenizer.eot_id)[0]] = 5
    forger.set_stream(0, "train", ids)
    forger.seal()
    samples = range(forger.records[0].splits["train"].samples)
    with pytest.raises(CorruptDatasetError, match=r"documents/00000\.parquet"):
        decode_samples(LocalStorage(forger.root), "train", samples)


# --- on the terminal


def test_what_is_printed_is_safe(dataset, description) -> None:
    text = printed(show_dataset, description)
    text += printed(show_samples, all_samples(dataset, description))
    text += printed(show_verified, verify(dataset, deep=True))
    for shown in (
        f"{description.manifest.tokens:,}",
        "001.parquet",
        "end of text",
        "ids of padding",
        "sound",
        "[bold]not markup[/bold]",
        "\\x1b[31mred",
    ):
        assert shown in text
    assert "\x1b[31m" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize(("times", "shown"), [(1, [0, 1]), (10, [*range(5), *range(17, 20)])])
def test_the_first_and_last_parts_have_a_line_each(description, times, shown) -> None:
    parts = tuple(
        part.model_copy(update={"part": number})
        for number, part in enumerate(description.parts * times)
    )
    text = printed(show_dataset, replace(description, parts=parts))
    rows = [line.split() for line in text.splitlines() if line.strip()[:5].isdigit()]
    assert [int(row[0]) for row in rows] == shown
    part = description.parts[0]
    documents = sum(held.documents for held in part.splits.values())
    assert rows[0][1:4] == [str(documents), "1", "1"]
    assert rows[0][-1] == part.source.url
    assert ("12 more" in text) == (times > 1)


def test_a_run_that_did_the_second_phase_alone(description) -> None:
    done = make_report()
    resumed = make_report(parts=(), files_done=0, merged=done.parts)
    text = printed(show_dataset, replace(description, runs=(resumed, done)))
    _, _, table = text.partition("began (UTC)")
    assert [line.split()[2:4] for line in table.splitlines()[1:]] == [["0", "1"], ["1", "0"]]
