"""Two datasets that go together, of the same tokenizer and of other sources."""

from pathlib import Path

import pytest

from tasks.core.synthetic import make_documents
from tests.tasks.core.build_dataset import build_dataset
from tests.tasks.core.running import OneWorker


@pytest.fixture
def one_worker(monkeypatch) -> None:
    """Estimates start no process."""
    monkeypatch.setattr("tasks.core.estimate.sample.WorkerPool", OneWorker)


@pytest.fixture(scope="session")
def first(tmp_path_factory) -> Path:
    """Of two files."""
    texts = [text[:600] for text in make_documents(40, seed=5)]
    folder = tmp_path_factory.mktemp("first")
    return build_dataset(folder, [texts[:25], texts[25:]])


@pytest.fixture(scope="session")
def second(tmp_path_factory) -> Path:
    """Of three files, some of whose rows are left out."""
    texts = [text[:600] for text in make_documents(30, seed=6)]
    return build_dataset(
        tmp_path_factory.mktemp("second"),
        [texts[:10], [*texts[10:20], None, "short"], texts[20:]],
        min_characters=10,
    )
