"""What a part's record says is on disk: shared files are synced before it is put."""

import os
from pathlib import Path

import pytest

from streaming_ext.store import LocalStorage, open_storage
from tasks.core.derive.export_files import ScratchOut
from tasks.core.derive.export_records import record_path
from tests.tasks.core.exports.exporting import make_dataset, planned
from tests.tasks.core.exports.readers import READERS
from tests.tasks.core.running import do_parts


def _never(path: str, file: Path) -> None:
    raise AssertionError(f"{path} is no whole file")


def test_spans_of_a_shared_file_stand_where_they_belong(tmp_path: Path) -> None:
    out = ScratchOut(tmp_path / "scratch", tmp_path / "assembly", _never)
    data = os.urandom(20 * 2**20 + 5)
    sink = out.span("train/all.bin", 3)
    for first in range(0, len(data), 3_000_001):
        sink.write(data[first : first + 3_000_001])
    sink.close()
    head = out.span("train/all.bin", 0)
    head.write(b"abc")
    head.close()
    out.sync()
    assert (tmp_path / "assembly/train/all.bin").read_bytes() == b"abc" + data
    assert [(span.start, span.size) for span in out.spans] == [(3, len(data)), (0, 3)]


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_record_comes_behind_the_bytes_it_tells_of(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(make_dataset(tmp_path).root, tmp_path / "out", name)
    synced: set[str] = set()
    unsynced: dict[str, set[str]] = {}
    put, fdatasync = LocalStorage.put, os.fdatasync

    def sync(descriptor: int) -> None:
        fdatasync(descriptor)
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    def note(storage: LocalStorage, path: str, data: bytes) -> None:
        if plan.assembly is not None and storage.root == plan.assembly:
            shared = {str(plan.assembly / name) for name in plan.form.shared()}
            unsynced[path] = {file for file in shared - synced if Path(file).exists()}
        put(storage, path, data)

    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(LocalStorage, "put", note)
    do_parts(plan, open_storage(plan.config.output), [1])
    told = {} if plan.assembly is None else {record_path(1): set()}
    assert unsynced == told
