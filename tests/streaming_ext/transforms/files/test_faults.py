"""What fails in the middle of a chain: servers, objects, the Hub, lines; waited for, or told."""

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from streaming_ext.base.errors import ShardmillError, SourceError, TransientStorageError
from streaming_ext.store.patience import Retry
from streaming_ext.transforms import CheckpointableDataset, CheckpointableLoader
from tests.servers.hub import Dataset, hub_server
from tests.servers.scripted import Answer, Scripted, scripted
from tests.servers.storage.swift import SwiftServer
from tests.streaming_ext.faulty_store import LASTING, PASSING, FaultyStore, faulty_store

FILES = 5


def ids(batches: Any) -> list[int]:
    return [one for batch in batches for one in batch["id"].tolist()]


class Site:
    """The files of a folder, of which some answers fail."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._guard = folder, threading.Lock()
        self.busy = 0  # answers that ask to come again
        self.gone = False
        self.version = "1"

    def answer(self, _: str, path: str, headers: Mapping[str, str]) -> Answer:
        """With a version, and ranges."""
        with self._guard:
            if self.gone:
                return Answer(503)
            if self.busy:
                self.busy -= 1
                return Answer(503, headers={"Retry-After": "0"})
        data, tag = (self._folder / path[1:]).read_bytes(), {"ETag": f'"{self.version}"'}
        if (span := headers.get("Range")) is None:
            return Answer(200, data, tag)
        first, last = span.removeprefix("bytes=").split("-")
        part = data[int(first) : int(last) + 1]
        told = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        return Answer(206, part, tag | {"Content-Range": told})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Site, Scripted]]:
    monkeypatch.setattr(Retry, "usual", lambda: Retry(attempts=3, first_pause=0.01))
    for number in range(FILES):
        lines = [f'{{"id": {number * 10 + row}, "text": "of {row}"}}\n' for row in range(7)]
        (tmp_path / f"{number}.jsonl").write_text("".join(lines))
    files = Site(tmp_path)
    with scripted(files.answer) as server:
        yield files, server


def chain_of(server: Scripted) -> CheckpointableDataset:
    url = f"{server.url}/{{0..{FILES - 1}}}.jsonl"
    return CheckpointableDataset.from_files(url, n_active_shards=2, n_standby_shards=0).batch(2)


@pytest.mark.parametrize("workers", [0, 2])
def test_answers_that_ask_to_come_again(site: tuple[Site, Scripted], workers: int) -> None:
    files, server = site
    dataset = chain_of(server)
    expected = ids(CheckpointableLoader(dataset, num_workers=workers))
    batches = iter(CheckpointableLoader(dataset, num_workers=workers))
    found = [] if workers else ids([next(batches)])  # workers may have read all by then
    files.busy = 2
    assert found + ids(batches) == expected
    assert not files.busy


def test_a_server_that_is_gone_for_a_while(site: tuple[Site, Scripted]) -> None:
    """Training ends with an error, and goes on at its state with nothing lost."""
    files, server = site
    dataset = chain_of(server)
    with dataset.iter() as batches:
        found = ids([next(batches)])
        files.gone = True
        with pytest.raises(TransientStorageError, match=r"\.jsonl"):
            found.extend(one for batch in batches for one in batch["id"].tolist())
        state = batches.state_dict()
    files.gone = False
    assert found + ids(dataset.iter(state)) == ids(dataset)


def test_a_file_that_changes_in_the_middle(site: tuple[Site, Scripted]) -> None:
    files, server = site
    dataset = chain_of(server)
    with dataset.iter() as batches:
        next(batches)
        files.version = "2"
        with pytest.raises(SourceError, match=r"/[0-4]\.jsonl.*changed"):
            list(batches)


@pytest.fixture
def store(
    folder: Path, s3: SwiftServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultyStore]:
    with faulty_store(folder, s3, monkeypatch, bucket=bucket) as running:
        yield running


def chain(url: str) -> CheckpointableDataset:
    return CheckpointableDataset.from_files(url, n_active_shards=1, n_standby_shards=0).batch(2)


def require_goes_on(
    batches: Any, told: str, again: Callable[[Any], Any], expected: list[int], found: list[int]
) -> None:
    """The pass ends with one error, and its state goes on with nothing lost or doubled."""
    with pytest.raises(ShardmillError, match=told):
        for batch in batches:
            found += batch["id"].tolist()
    rest = ids(again(batches.state_dict()))
    assert rest
    assert found + rest == expected


@pytest.mark.parametrize("fault", PASSING)
@pytest.mark.usefixtures("small_spans")
def test_what_passes_leaves_no_trace(store: FaultyStore, folder: Path, fault: str) -> None:
    expected = ids(chain(str(folder)))
    with chain(store.url).iter() as batches:
        found = next(batches)["id"].tolist()
        store.proxy.inflict(PASSING[fault])
        assert found + ids(batches) == expected
    assert store.proxy.struck >= 2


@pytest.mark.parametrize("how", LASTING)
@pytest.mark.usefixtures("small_spans")
def test_what_lasts_is_told_and_gone_on_from(store: FaultyStore, folder: Path, how: str) -> None:
    dataset, expected = chain(store.url), ids(chain(str(folder)))
    with dataset.iter() as batches:
        found = next(batches)["id"].tolist()
        store.spoil(how)

        def again(state: Any) -> Any:
            store.mend()
            return dataset.iter(state)

        require_goes_on(batches, LASTING[how], again, expected, found)


@pytest.mark.usefixtures("small_spans")
def test_what_lasts_in_workers(store: FaultyStore, folder: Path) -> None:
    dataset = chain(store.url)
    expected = ids(CheckpointableLoader(chain(str(folder)), num_workers=2, samples_in_message=2))
    loader = CheckpointableLoader(dataset, num_workers=2, samples_in_message=2)
    store.spoil("gone")
    found: list[int] = []
    with pytest.raises(SourceError, match=LASTING["gone"]):
        for batch in loader:
            found += batch["id"].tolist()
    state = loader.state_dict()
    store.mend()
    loader.load_state_dict(state)
    assert found
    assert found + ids(loader) == expected


@pytest.mark.usefixtures("small_spans")
def test_the_hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Busy, then cut in the middle of a file, then without one of the files."""
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

            require_goes_on(batches, r"/2\.jsonl", again, expected, found)
        assert not hub.busy
        assert not hub.cuts


@pytest.mark.usefixtures("small_spans")
def test_a_line_in_the_middle(folder: Path, tmp_path: Path) -> None:
    """Told by its number; when it is mended, the state goes on behind what came."""
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
        require_goes_on(batches, r"many\.jsonl.*line \d+", again, expected, [])
