"""Imports of sets that lie in object storage: read where they lie, piece by piece, pinned."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming_ext.base.errors import ConfigMismatchError, SourceError
from streaming_ext.format.reading import read_manifest
from streaming_ext.store import open_storage
from streaming_ext.store.buckets import Bucket
from streaming_ext.text.token_sets import bare_ids
from tasks.core.check.verify import verify
from tests.servers.fault_proxy import Faults, fault_proxy
from tests.servers.hub import Dataset, hub_server
from tests.servers.storage.swift import SwiftServer
from tests.tasks.core.exports.exporting import content, exported
from tests.tasks.core.imports.importing import documents_in, imported, planned
from tests.tasks.core.imports.test_contract import CASES, Case, dataset, own, written
from tests.tasks.core.running import do_parts, publish

__all__ = ["dataset", "own", "written"]
Upload = Callable[[Path], str]


@pytest.fixture
def upload(bucket: str) -> Upload:
    """Puts all files of a folder into a bucket; returns their URL."""
    client = Bucket(scheme="s3", name=bucket)

    def put(folder: Path) -> str:
        for file in folder.rglob("*"):
            if file.is_file():
                key = f"{folder.name}/{file.relative_to(folder).as_posix()}"
                client.put(key, file.read_bytes())
        return f"s3://{bucket}/{folder.name}"

    return put


def made(case: Case, dataset: Path, folder: Path) -> Path:
    """What is uploaded."""
    if case.export is None:
        return dataset
    return exported(dataset, folder / "set", case.export, **case.written)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_set_in_a_bucket_is_what_it_is_on_disk(
    case: Case,
    dataset: Path,
    own: dict[str, Any],
    upload: Upload,
    tmp_path: Path,
) -> None:
    """In pieces where files can be cut; sound, compared with the files where they lie."""
    source = made(case, dataset, tmp_path)
    options = own | case.read | ({"part_size": 1100} if case.is_cut else {})
    there = imported(case.name, upload(source), tmp_path / "there", **options)
    assert documents_in(there) == documents_in(dataset)  # as from disk: test_contract.py
    manifest = read_manifest(open_storage(str(there)))
    assert bool(case.is_cut) == any(part.span for part in manifest.parts)
    report = verify(open_storage(str(there)), deep=True)
    assert report.findings == ()
    assert report.checked.retokenized == 90
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


@pytest.mark.parametrize("case", [CASES[0], CASES[-1]], ids=str)
def test_a_set_of_the_hub(
    case: Case,
    dataset: Path,
    own: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = made(case, dataset, tmp_path)
    files = {
        f"v1.0/{file.relative_to(source).as_posix()}": file.read_bytes()
        for file in source.rglob("*")
        if file.is_file()
    }
    with hub_server() as hub:
        hub.datasets["org/ids"] = Dataset()
        hub.datasets["org/ids"].commit(files)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        there = imported(case.name, "hf://datasets/org/ids/v1.0", tmp_path / "there", **own)
        assert documents_in(there) == documents_in(dataset)
        assert verify(open_storage(str(there)), deep=True).findings == ()


def test_a_stopped_import_goes_on_and_fetches_the_rest_alone(
    dataset: Path,
    own: dict[str, Any],
    upload: Upload,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = upload(made(CASES[0], dataset, tmp_path))
    options = own | {"part_size": 2048}
    whole = content(imported("megatron", url, tmp_path / "whole", **options))
    plan, storage = planned("megatron", url, tmp_path / "out", **options)
    do_parts(plan, storage, plan.todo[:-1])
    storage.close()
    asked: list[tuple[str, tuple[int, int] | None]] = []
    read = Bucket.read

    def noted(self: Bucket, key: str, **how: Any) -> bytes:
        asked.append((key.rpartition(".")[2], how.get("span")))
        return read(self, key, **how)

    monkeypatch.setattr(Bucket, "read", noted)
    assert content(imported("megatron", url, tmp_path / "out", **options)) == whole
    last = plan.parts[plan.todo[-1]].spans[0].span
    assert last is not None
    fetched = [span for kind, span in asked if kind == "bin" and span and span[1] - span[0] > 512]
    assert fetched  # and no other piece once more
    assert all(start >= last[0] - 2 for start, _ in fetched)


def test_faults_that_pass_are_waited_out(
    dataset: Path,
    own: dict[str, Any],
    upload: Upload,
    s3: SwiftServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of tars, which are fetched whole, and of those beside them, which are read in ranges."""
    source = exported(dataset, tmp_path / "set", "webdataset", max_file_size=40000)
    url = upload(source)
    with fault_proxy(s3.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv("SHARDMILL_STORAGE_TIMEOUT", "10")
        proxy.inflict(Faults(answer=(503, "SlowDown"), times=2))
        plan, storage = planned("webdataset", url, tmp_path / "out", **own)
        assert proxy.struck == 2
        proxy.inflict(Faults(cut_down=9000, times=3))
        do_parts(plan, storage)
        assert proxy.struck == 3
    publish(plan, storage)
    assert documents_in(tmp_path / "out") == documents_in(dataset)


def test_what_lies_beside_a_file_pins_it_there_too(
    dataset: Path,
    own: dict[str, Any],
    upload: Upload,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another index is another source; and one that changes in the middle of a run is told."""
    monkeypatch.setattr("tasks.core.shard.sources._LISTING_SECONDS", 0.0)
    source = made(CASES[0], dataset, tmp_path)
    url = upload(source)
    imported("megatron", url, tmp_path / "out", **own)
    plan, storage = planned("megatron", url, tmp_path / "other", **own)
    index = source / "train/text_document.idx"
    data = np.fromfile(index, np.uint8)
    sequences = int(np.fromfile(index, "<u8", 1, offset=18)[0])
    data[34 + 12 * sequences :].view("<i8")[1] = 0
    data.tofile(index)
    upload(source)
    bare_ids._read_index.cache_clear()  # a worker process has not read it
    with pytest.raises(SourceError, match="changed since the run began"):
        do_parts(plan, storage)
    with pytest.raises(ConfigMismatchError, match="was made from other sources"):
        planned("megatron", url, tmp_path / "out", **own)
