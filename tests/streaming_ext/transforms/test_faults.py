"""A web server that fails in the middle of an epoch: what passes is waited for, else it is told."""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from streaming_ext.errors import SourceError, TransientStorageError
from streaming_ext.storage.patience import Retry
from streaming_ext.text.sources import web
from streaming_ext.transforms import CheckpointableDataset, CheckpointableLoader
from tests.servers.scripted import Answer, Scripted, scripted

FILES = 5


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
    monkeypatch.setattr(web, "retry", lambda: Retry(attempts=3, first_pause=0.01))
    for number in range(FILES):
        lines = [f'{{"id": {number * 10 + row}, "text": "of {row}"}}\n' for row in range(7)]
        (tmp_path / f"{number}.jsonl").write_text("".join(lines))
    files = Site(tmp_path)
    with scripted(files.answer) as server:
        yield files, server


def chain(server: Scripted) -> CheckpointableDataset:
    url = f"{server.url}/{{0..{FILES - 1}}}.jsonl"
    return CheckpointableDataset.from_files(url, n_active_shards=2, n_standby_shards=0).batch(2)


def ids(batches: object) -> list[int]:
    return [one for batch in batches for one in batch["id"].tolist()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 2])
def test_answers_that_ask_to_come_again(site: tuple[Site, Scripted], workers: int) -> None:
    files, server = site
    dataset = chain(server)
    expected = ids(CheckpointableLoader(dataset, num_workers=workers))
    batches = iter(CheckpointableLoader(dataset, num_workers=workers))
    found = [] if workers else ids([next(batches)])  # workers may have read all by then
    files.busy = 2
    assert found + ids(batches) == expected
    assert not files.busy


def test_a_server_that_is_gone_for_a_while(site: tuple[Site, Scripted]) -> None:
    """Training ends with an error, and goes on at its state with nothing lost."""
    files, server = site
    dataset = chain(server)
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
    dataset = chain(server)
    with dataset.iter() as batches:
        next(batches)
        files.version = "2"
        with pytest.raises(SourceError, match=r"/[0-4]\.jsonl.*changed"):
            list(batches)
