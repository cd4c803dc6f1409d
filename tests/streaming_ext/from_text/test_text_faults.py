"""Storage that fails in the middle of an epoch: no trace, or one error that names the file."""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from streaming_ext import StreamingTextDataset, StreamingTokenLoader
from streaming_ext.errors import ShardmillError, SourceError
from streaming_ext.storage.patience import Retry
from streaming_ext.text.sources import web
from tests.servers.fault_proxy import Faults
from tests.servers.hub import Dataset, hub_server
from tests.servers.storage.swift import SwiftServer, make_bucket
from tests.streaming_ext.faulty_store import LASTING, PASSING, FaultyStore, faulty_store
from tests.streaming_ext.from_text.conftest import Open

Rows = list[list[list[int]]]
ORDER: dict[str, Any] = {"shuffle": False, "num_canonical_nodes": 1, "predownload": 4}


@pytest.fixture(scope="module")
def own_bucket(swift: SwiftServer) -> str:
    """Of all these tests, which count its text once."""
    return make_bucket(swift.url)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def store(
    folder: Path, s3: SwiftServer, own_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultyStore]:
    with faulty_store(folder, s3, monkeypatch, bucket=own_bucket) as running:
        yield running


@pytest.fixture
def expected(open_text: Open) -> Rows:
    return [batch["tokens"].tolist() for batch in StreamingTokenLoader(open_text(**ORDER))]


def opened(open_text: Open, sources: str, cache: Path) -> StreamingTextDataset:
    """A text whose tokens are counted, and none of them kept."""
    dataset = open_text(sources=sources, local=cache, **ORDER)
    shutil.rmtree(next(cache.glob("text-*")) / "train")
    return dataset


def read(loader: StreamingTokenLoader, most: int | None = None) -> Rows:
    found: Rows = []
    for batch in loader:
        found.append(batch["tokens"].tolist())
        if len(found) == most:
            break
    return found


def require_goes_on(
    loader: StreamingTokenLoader, error: type[ShardmillError], told: str, mend: Any, expected: Rows
) -> None:
    """The epoch ends with one error, whose state goes on bit for bit when all is well again."""
    found: Rows = []
    with pytest.raises(error, match=told):
        found.extend(batch["tokens"].tolist() for batch in loader)
    loader.dataset.close()
    state = loader.state_dict()
    assert loader.step < len(expected)
    mend()
    again = StreamingTokenLoader(loader.dataset)
    again.load_state_dict(state)
    assert read(again) == expected[loader.step :]
    assert found == expected[loader.step - len(found) : loader.step]


@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_leaves_no_trace(
    open_text: Open, store: FaultyStore, expected: Rows, fault: str, cache: Path
) -> None:
    loader = StreamingTokenLoader(opened(open_text, store.url, cache))
    found = read(loader, 3)
    store.proxy.inflict(PASSING[fault])
    assert found + read(loader) == expected
    assert store.proxy.struck >= 2


@pytest.mark.parametrize(("how", "workers"), [(how, 0) for how in LASTING] + [("gone", 2)])
def test_what_lasts_is_told_and_gone_on_from(
    open_text: Open, store: FaultyStore, expected: Rows, how: str, workers: int, cache: Path
) -> None:
    loader = StreamingTokenLoader(opened(open_text, store.url, cache), num_workers=workers)
    if not workers:  # they read ahead
        assert read(loader, 3) == expected[:3]
    store.spoil(how)
    require_goes_on(loader, ShardmillError, LASTING[how], store.mend, expected)


def test_a_server_that_is_gone_while_workers_read(
    open_text: Open, store: FaultyStore, expected: Rows, cache: Path
) -> None:
    loader = StreamingTokenLoader(opened(open_text, store.url, cache), num_workers=2)
    store.proxy.inflict(Faults(cut_down=0))
    require_goes_on(loader, ShardmillError, r"/[0-2]\.jsonl", store.mend, expected)


def test_a_file_that_is_gone_from_the_hub(
    open_text: Open, folder: Path, expected: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "retry", lambda: Retry(attempts=3, first_pause=0.01))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with hub_server() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        hub.datasets["org/text"] = made = Dataset()
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        commit = made.commit(files)
        loader = StreamingTokenLoader(
            opened(open_text, "hf://datasets/org/text/*.jsonl", tmp_path / "cache")
        )
        assert read(loader, 3) == expected[:3]
        data = made.commits[commit].pop("2.jsonl")
        require_goes_on(
            loader, SourceError, r"/2\.jsonl",
            lambda: made.commits[commit].update({"2.jsonl": data}), expected,
        )  # fmt: skip


@pytest.mark.parametrize("renames", [1, 4, 9])
def test_what_a_killed_count_leaves_is_gone_when_the_next_has_ended(
    open_text: Open, tmp_path: Path, renames: int
) -> None:
    """Killed when it puts a file in its place, with all of the file beside that."""

    def count() -> None:
        replaced, left = Path.replace, iter(range(renames))

        def replace(path: Path, target: Path) -> Path:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return replaced(path, target)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            open_text(local=tmp_path / "cache")

    killed = multiprocessing.get_context("fork").Process(target=count)
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert files_of(tmp_path / "cache") != files_of(tmp_path / "undisturbed")
    for name in ("undisturbed", "cache"):
        open_text(local=tmp_path / name).close()
    assert files_of(tmp_path / "cache") == files_of(tmp_path / "undisturbed")


def files_of(cache: Path) -> dict[str, bytes]:
    """All files of a cache but locks."""
    return {
        file.relative_to(cache).as_posix(): file.read_bytes()
        for file in cache.rglob("*")
        if file.is_file() and file.stat().st_size
    }
