"""A text of three files, and its rows by the reference alone."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming_ext import StreamingTextDataset, StreamingTokenLoader
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.synthetic import make_documents

LENGTH = 32

Open = Callable[..., StreamingTextDataset]


@pytest.fixture(scope="session")
def texts() -> list[list[str]]:
    """The documents of each file."""
    documents = [text[: 20 + 7 * n % 300] for n, text in enumerate(make_documents(240, seed=5))]
    return [documents[:100], documents[100:130], documents[130:]]


@pytest.fixture(scope="session")
def folder(texts: list[list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the documents in files of JSON Lines."""
    root = tmp_path_factory.mktemp("text")
    for number, documents in enumerate(texts):
        write_lines(root / f"{number}.jsonl", documents)
    return root


@pytest.fixture(scope="session")
def reference(vocabulary: Path) -> Tokenizer:
    return load_tokenizer(str(vocabulary), pattern="gpt2")


@pytest.fixture(scope="session")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of all tests of a session."""
    return tmp_path_factory.mktemp("counted")


@pytest.fixture
def open_text(folder: Path, vocabulary: Path, counted: Path) -> Open:
    """Open the text as one rank, shuffled by default."""

    def make(**changes: Any) -> StreamingTextDataset:
        settings: dict[str, Any] = {
            "sources": str(folder),
            "tokenizer": str(vocabulary),
            "pattern": "gpt2",
            "local": counted,
            "sequence_length": LENGTH,
            "batch_size": 4,
            "shuffle": True,
            "shuffle_block_size": 50,
            "dp_rank": 0,
            "dp_world_size": 1,
            "scan_threads": 1,
            "shard_size": 2_000,
            "extras": ["sequence_ids"],
        }
        return StreamingTextDataset(**(settings | changes))

    return make


@pytest.fixture
def check_rows(
    open_text: Open, reference: Tokenizer, texts: list[list[str]]
) -> Callable[..., StreamingTextDataset]:
    """Open the text, and compare its rows with those of the reference."""

    def check(
        parts: Sequence[Sequence[str]] = texts, *, workers: int = 0, **settings: Any
    ) -> StreamingTextDataset:
        dataset = open_text(batch_size=1, **settings)
        rows = rows_read(dataset, workers=workers)
        assert (rows == rows_of(reference, parts, dataset.sequence_length)).all()
        return dataset

    return check


def write_lines(path: Path, documents: Sequence[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))


def rows_of(
    reference: Tokenizer,
    parts: Sequence[Sequence[str]],
    length: int,
    begins: Sequence[int] = (),
) -> np.ndarray:
    """Return the rows of a text by hand: (rows, length). Each part is padded to whole rows."""
    streams = []
    for documents in parts:
        ids = [
            i for text in documents for i in [*begins, *reference.encode(text), reference.eot_id]
        ]
        streams += [ids, [reference.eot_id] * (-len(ids) % length)]
    return np.array([i for stream in streams for i in stream]).reshape(-1, length)


def rows_read(dataset: StreamingTextDataset, *, workers: int = 0) -> np.ndarray:
    """Return all rows of an epoch in the order of the data: (rows, length)."""
    batches = list(StreamingTokenLoader(dataset, num_workers=workers))
    ids = np.concatenate([batch["sequence_ids"] for batch in batches])
    assert sorted(ids.tolist()) == list(range(dataset.size))
    return np.concatenate([batch["tokens"] for batch in batches])[np.argsort(ids)]


def files_of(root: Path) -> dict[str, bytes]:
    """Return all files of a dataset, without locks and files that training unpacked."""
    found = {file.relative_to(root).as_posix(): file for file in root.rglob("*") if file.is_file()}
    return {name: file.read_bytes() for name, file in found.items() if "/." not in f"/{name}"}


def kill_before_rename(renames: int, work: Callable[[], object]) -> None:
    """Do work in a process that is killed before it renames more than `renames` files."""

    def killed() -> None:
        replaced, left = Path.replace, iter(range(renames))

        def replace(path: Path, target: Path) -> Path:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return replaced(path, target)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            work()

    process = multiprocessing.get_context("fork").Process(target=killed)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
