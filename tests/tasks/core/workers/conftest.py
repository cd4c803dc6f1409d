"""Pools of workers, and jobs for them that end at once or wait."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.text.tokenizer.rank_file import rank_file_bytes
from tasks.core.workers.pool import WorkerPool
from tasks.core.workers.tokenize_part import TokenizeJob
from tests.tasks.core.doubles import make_spec, tokenize_job, write_source
from tests.tasks.core.workers.waiting import MakeJob, Waiting


@pytest.fixture(scope="package")
def tokenizer_folder(tmp_path_factory) -> Path:
    """A saved tokenizer of one id per byte."""
    folder = tmp_path_factory.mktemp("tokenizer")
    ranks = folder / "bytes.tiktoken"
    ranks.write_bytes(rank_file_bytes({bytes([byte]): byte for byte in range(256)}))
    load_tokenizer(str(ranks), pattern="gpt2").save(folder / "saved")
    return folder / "saved"


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """Two workers that tests share: each test must leave them working."""
    with WorkerPool(2) as made:
        yield made


@pytest.fixture
def job(tmp_path, tokenizer_folder) -> MakeJob:
    """Makes a job on a source file, by default on one of three tokens."""

    def make(source: SourceFile | None = None, name: str = "s", **spec: Any) -> TokenizeJob:
        if source is None:
            source = write_source(tmp_path / "small.parquet", ["ab", None])
        made = tokenize_job(source, tmp_path / name, make_spec(**spec))
        return made.model_copy(update={"tokenizer_folder": tokenizer_folder})

    return make


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


@pytest.fixture
def waiting(tmp_path, threads) -> Iterator[list[Waiting]]:
    made = [Waiting(tmp_path / f"pipe{number}") for number in range(3)]
    yield made
    for each in made:  # if the test failed too: the threads wait for them
        each.reached()
        each.let_go()
