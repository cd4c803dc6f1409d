"""Two datasets with the same tokenizer and other sources, and remote folders."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streaming_ext.store.buckets import Bucket
from tasks.core.synthetic import make_documents
from tests.servers.hub import Dataset, hub_server
from tests.tasks.core.build_dataset import build_dataset
from tests.tasks.core.exports.exporting import content
from tests.tasks.core.running import OneWorker


@pytest.fixture
def one_worker(monkeypatch) -> None:
    """Makes estimates start no process."""
    monkeypatch.setattr("tasks.core.estimate.sample.WorkerPool", OneWorker)


@pytest.fixture(scope="session")
def first(tmp_path_factory) -> Path:
    """A dataset of two files."""
    texts = [text[:600] for text in make_documents(40, seed=5)]
    folder = tmp_path_factory.mktemp("first")
    return build_dataset(folder, [texts[:25], texts[25:]])


@pytest.fixture(scope="session")
def second(tmp_path_factory) -> Path:
    """A dataset of three files, of which some rows are left out."""
    texts = [text[:600] for text in make_documents(30, seed=6)]
    return build_dataset(
        tmp_path_factory.mktemp("second"),
        [texts[:10], [*texts[10:20], None, "short"], texts[20:]],
        min_characters=10,
    )


@pytest.fixture
def upload(bucket) -> Callable[[Path], str]:
    """Puts all files of a folder into a bucket, and returns their URL."""
    client = Bucket(scheme="s3", name=bucket)

    def put(folder: Path) -> str:
        for path, data in content(folder).items():
            client.put(f"{folder.name}/{path}", data)
        return f"s3://{bucket}/{folder.name}"

    return put


@pytest.fixture
def commit(monkeypatch, tmp_path) -> Iterator[Callable[[Path], str]]:
    """Puts all files of a folder into a dataset of the Hub, and returns their URL."""
    with hub_server() as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))

        def put(folder: Path) -> str:
            hub.datasets["org/ids"] = Dataset()
            files = content(folder).items()
            hub.datasets["org/ids"].commit({f"{folder.name}/{path}": data for path, data in files})
            return f"hf://datasets/org/ids/{folder.name}"

        yield put
