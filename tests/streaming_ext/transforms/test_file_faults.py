"""Faults in the middle of a chain: in object stores, the Hub and lines of files."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from streaming_ext.base.errors import ShardmillError
from streaming_ext.store.patience import Retry
from streaming_ext.transforms import CheckpointableDataset, CheckpointableLoader
from tests.servers.hub import Dataset, hub_server
from tests.servers.storage.swift import SwiftServer
from tests.streaming_ext.faulty_store import LASTING, PASSING, FaultyStore, faulty_store

pytestmark = pytest.mark.usefixtures("small_spans")


def ids(batches: Any) -> list[int]:
    return [one for batch in batches for one in batch["id"].tolist()]


@pytest.fixture
def store(
    folder: Path, s3: SwiftServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultyStore]:
    with faulty_store(folder, s3, monkeypatch, bucket=bucket) as running:
        yield running


def chain(url: str) -> CheckpointableDataset:
    return CheckpointableDataset.from_files(url, n_active_shards=1, n_standby_shards=0).batch(2)


def require_resumes(
    batches: Any, message: str, again: Callable[[Any], Any], expected: list[int], found: list[int]
) -> None:
    """Check that the pass ends with one error, and that its state resumes where it ended."""
    with pytest.raises(ShardmillError, match=message):
        for batch in batches:
            found += batch["id"].tolist()
    rest = ids(again(batches.state_dict()))
    assert rest
    assert found + rest == expected


@pytest.mark.parametrize("fault", ["503", "cut"])
def test_passing_faults_change_nothing(store, folder, fault) -> None:
    expected = ids(chain(str(folder)))
    with chain(store.url).iter() as batches:
        found = next(batches)["id"].tolist()
        store.proxy.inflict(PASSING[fault])
        assert found + ids(batches) == expected
    assert store.proxy.struck >= 2


@pytest.mark.parametrize("how", LASTING)
def test_lasting_faults_are_errors_behind_which_a_state_resumes(store, folder, how) -> None:
    dataset, expected = chain(store.url), ids(chain(str(folder)))
    with dataset.iter() as batches:
        found = next(batches)["id"].tolist()
        store.spoil(how)

        def again(state: Any) -> Any:
            store.mend()
            return dataset.iter(state)

        require_resumes(batches, LASTING[how], again, expected, found)


def test_a_lasting_fault_in_workers(store, folder) -> None:
    # A fork server (Python 3.14) has the environment of an earlier test.
    settings = {"num_workers": 2, "samples_in_message": 2, "multiprocessing_context": "fork"}
    expected = ids(CheckpointableLoader(chain(str(folder)), **settings))
    loader, found = CheckpointableLoader(chain(store.url), **settings), []
    store.spoil("gone")

    def again(state: Any) -> Any:
        store.mend()
        loader.load_state_dict(state)
        return loader

    require_resumes(loader, LASTING["gone"], again, expected, found)
    assert found


def test_the_hub(folder, tmp_path, monkeypatch) -> None:
    """The Hub is busy, then cuts a file in the middle, then lacks one of the files."""
    # One request may meet all four faults below.
    monkeypatch.setattr(Retry, "usual", lambda: Retry(attempts=5, first_pause=0.01))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    expected = ids(chain(str(folder)))
    with hub_server() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        hub.datasets["org/text"] = made = Dataset()
        commit = made.commit({path.name: path.read_bytes() for path in folder.iterdir()})
        dataset = chain("hf://datasets/org/text/*.jsonl")
        with dataset.iter() as batches:
            found = next(batches)["id"].tolist()
            hub.retry_after, hub.busy, hub.cuts = "0", 2, [700, 300]
            data = made.commits[commit].pop("2.jsonl")

            def again(state: Any) -> Any:
                made.commits[commit]["2.jsonl"] = data
                return dataset.iter(state)

            require_resumes(batches, r"/2\.jsonl", again, expected, found)
        assert not hub.busy
        assert not hub.cuts


def test_a_line_in_the_middle(folder, tmp_path) -> None:
    """The error gives its number; when the line is corrected, the state resumes."""
    file = tmp_path / "many.jsonl"
    lines = (folder / "2.jsonl").read_bytes().splitlines(keepends=True) * 4
    file.write_bytes(b"".join(lines))
    expected = ids(chain(str(file)))
    middle = len(lines) // 2
    file.write_bytes(b"".join([*lines[:middle], b"x" + lines[middle][1:], *lines[middle + 1 :]]))

    def again(state: Any) -> Any:
        file.write_bytes(b"".join(lines))
        return chain(str(file)).iter(state)

    with chain(str(file)).iter() as batches:
        require_resumes(batches, r"many\.jsonl.*line \d+", again, expected, [])
