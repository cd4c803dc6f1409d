"""Rows of text are those of the reference, in an order that ranks, workers and resumes keep."""

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streaming_ext import StreamingTextDataset, StreamingTokenLoader, TextStream, TokenStream
from streaming_ext.base.errors import SourceError, TokenizerError, UsageError
from streaming_ext.writing import dataset as making
from streaming_ext.writing.tokenize import make_part
from tests.streaming_ext.processes import in_processes
from tests.streaming_ext.training.from_text.conftest import LENGTH, rows_of, rows_read


class TestRows:
    @pytest.mark.parametrize(("length", "workers"), [(LENGTH, 2), (1, 0), (500, 0)])
    def test_are_those_of_the_reference(self, check_rows, length, workers) -> None:
        dataset = check_rows(sequence_length=length, workers=workers)
        assert dataset.reader.num_shards > 10

    def test_with_a_beginning(self, open_text, reference, texts) -> None:
        first = reference.eot_id + 1
        dataset = open_text(bos_token="<s>", batch_size=1)
        assert (rows_read(dataset) == rows_of(reference, texts, LENGTH, [first])).all()
        with pytest.raises(TokenizerError, match="ends each document of .* leave --bos-token out"):
            open_text(bos_token="<|endoftext|>")


class TestElastic:
    def test_ranks_that_start_at_once_share_the_work(self, open_text, tmp_path) -> None:
        """No part is made twice, and both read what both made."""

        def work(rank: int) -> tuple[list[int], list[list[int]]]:
            made: list[int] = []

            def make_one(documents: Any, *rest: Any, **more: Any) -> Any:
                made.append(documents.part.number)
                return make_part(documents, *rest, **more)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(making, "make_part", make_one)
                dataset = open_text(
                    local=tmp_path, part_size=2000, dp_rank=rank, dp_world_size=2, batch_size=8
                )
            return made, steps_of(dataset)

        def steps_of(dataset: StreamingTextDataset) -> list[list[int]]:
            return [batch["sequence_ids"].tolist() for batch in StreamingTokenLoader(dataset)]

        (one, first), (other, second) = in_processes(2, work)
        parts = len(list(tmp_path.glob("text-*/parts/*.json")))
        assert sorted(one + other) == list(range(parts))
        assert parts > 10
        alone = steps_of(open_text(part_size=2000, batch_size=16))
        both = [a + b for a, b in zip(first, second, strict=True)]
        assert list(map(sorted, both)) == list(map(sorted, alone))
        assert not list(tmp_path.glob("text-*/.making"))


class TestMixture:
    def test_of_texts_and_datasets(self, open_text, folder, vocabulary, raw, counted) -> None:
        """Each stream gives the rows that it gives alone; another tokenizer's ids are refused."""
        text = TextStream(
            sources=str(folder),
            tokenizer=str(vocabulary),
            pattern="gpt2",
            local=counted,
            shard_size=2_000,
            choose=96,
        )
        settings = {
            "sources": None,
            "tokenizer": None,
            "pattern": None,
            "local": None,
            "shard_size": 64 * 2**20,
            "scan_threads": None,
            "extras": ["sequence_ids", "stream_ids"],
        }
        alone = rows_read(open_text(batch_size=1))
        loader = StreamingTokenLoader(
            open_text(**settings, streams=[text, replace(text, choose=48, shard_size=1_000)])
        )
        seen = [0, 0]
        for batch in loader:
            expected = alone[batch["sequence_ids"].numpy()]
            assert (batch["tokens"].numpy() == expected).all()
            seen = [n + int((batch["stream_ids"] == s).sum()) for s, n in enumerate(seen)]
        assert seen == [96, 48]
        with pytest.raises(UsageError, match="different tokenizers"):
            open_text(**settings, streams=[text, TokenStream(local=raw.root)])


class TestCache:
    def test_what_was_made_is_not_made_again(self, check_rows, monkeypatch) -> None:
        check_rows()
        monkeypatch.setattr(making, "make_part", None)
        check_rows()

    def test_ctrl_c_ends_the_work(self, open_text, check_rows, tmp_path, monkeypatch) -> None:
        """An unfinished part is abandoned; the next process makes it."""

        def interrupted(*_: object, report: Any, **__: object) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                report(0.5, None)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(making, "make_part", interrupted)
            open_text(local=tmp_path, scan_threads=2)
        check_rows(local=tmp_path)

    @pytest.mark.parametrize("threads", [1, 3])
    def test_the_first_error_is_raised(self, open_text, tmp_path, monkeypatch, threads) -> None:
        """The error is not that the other threads were stopped."""

        def failing(documents: Any, *_: object, report: Any, **__: object) -> None:
            if documents.part.number == min(2, threads - 1):
                raise SourceError("cut off")
            while True:
                report(0.5, None)

        monkeypatch.setattr(making, "make_part", failing)
        with pytest.raises(SourceError, match="cut off"):
            open_text(local=tmp_path, scan_threads=threads)

    def test_shards_that_are_not_compressed_are_read_in_place(self, check_rows, tmp_path) -> None:
        check_rows(local=tmp_path, compression="none", workers=2)
        assert not list(tmp_path.rglob(".unpacked"))


class TestFaults:
    @pytest.fixture
    def copy(self, folder: Path, tmp_path: Path) -> Path:
        return Path(shutil.copytree(folder, tmp_path / "copy"))

    @pytest.mark.parametrize("same_size", [True, False])
    def test_a_file_that_changes_while_it_is_read(
        self, open_text, copy, tmp_path, monkeypatch, same_size
    ) -> None:

        def changed(documents: Any, *rest: Any, **more: Any) -> Any:
            path = copy / "1.jsonl"
            data = path.read_bytes()
            path.write_bytes(data if same_size else data + b'{"text": "more"}\n')
            return make_part(documents, *rest, **more)

        settings = {"sources": str(copy), "local": tmp_path / "cache"}
        words = r"1\.jsonl: (.*when|changed since) the run began"
        with monkeypatch.context() as patch, pytest.raises(SourceError, match=words):
            patch.setattr(making, "make_part", changed)
            open_text(**settings)
        assert open_text(**settings).size

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"sources": "nowhere"}, "no such file"),
            ({"split": "holdout"}, "has the splits train, got 'holdout'"),
            ({"sources": None}, "sources is missing"),
            ({"streams": [TextStream(sources="a", tokenizer="gpt2")]}, "Give either streams="),
            ({"holdout_fraction": 2.0}, "holdout_fraction"),
            ({"keep_columns": "lang"}, r"0\.jsonl has no column 'lang'"),
        ],
    )
    def test_wrong_arguments(self, open_text, settings, words) -> None:
        with pytest.raises(UsageError, match=words):
            open_text(**settings)


@pytest.mark.parametrize(
    "sources", ["text", "te[x]t/*.jsonl", ["text/{0,1}.jsonl", "text/2.jsonl"]]
)
def test_relative_paths_are_those_of_its_construction(
    open_text, folder, vocabulary, sources, tmp_path, monkeypatch
) -> None:
    where = tmp_path / "a [folder]"  # brackets of the folder are no pattern
    shutil.copytree(folder, where / "text")
    shutil.copy(vocabulary, where / "own.tiktoken")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(where)
    named = {"sources": sources, "tokenizer": "own.tiktoken", "local": "cache"}
    dataset, stream = open_text(**named), TextStream(**named, pattern="gpt2", shard_size=2_000)
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = rows_read(dataset)
    assert len(found) > 100
    mixed = {"sequence_length": LENGTH, "batch_size": 1, "extras": ["sequence_ids"]}
    again = StreamingTextDataset(streams=[stream], **mixed, dp_rank=0, dp_world_size=1)
    assert np.array_equal(rows_read(again), found)
    assert not list(Path.cwd().iterdir())
    caches = {each.reader.caches[0].source.path for each in (dataset, again)}
    assert caches == {path for path in (where / "cache").iterdir() if path.is_dir()}


def test_the_first_rank_of_a_machine_shows_the_progress(
    open_text, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    made = open_text(local=tmp_path / "shown").reader.caches[0].source.path
    *_, last = capsys.readouterr().err.split("\r")
    assert last.startswith(f"Tokenizing into {made.name}: 100%")
    open_text(local=tmp_path / "shown")
    monkeypatch.setenv("LOCAL_RANK", "1")
    open_text(local=tmp_path / "silent")
    assert capsys.readouterr().err == ""


def test_the_tokenizer_is_opened_from_the_dataset(open_text, reference, texts) -> None:
    dataset = open_text()
    (text, *_), *_ = texts
    assert dataset.tokenizer.encode(text) == reference.encode(text)
    assert dataset.tokenizer.vocab_size == reference.vocab_size
    assert dataset.tokenizer.decode(torch.tensor(reference.encode(text))) == text
    assert dataset.tokenizer is dataset.tokenizer
