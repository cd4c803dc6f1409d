"""Imports of sets in object storage: read in place, span by span, at a fixed version."""

import pytest

from streaming_ext.base.errors import ConfigMismatchError, SourceError
from streaming_ext.format.reading import read_manifest
from streaming_ext.store import open_storage
from streaming_ext.text.token_sets import bare_ids
from tasks.core.check.verify import verify
from tests.servers.fault_proxy import Faults, fault_proxy
from tests.tasks.core.imports.importing import (
    CASES,
    CUT,
    OWN,
    change_index,
    documents_in,
    imported,
    planned,
)
from tests.tasks.core.running import do_parts, publish

EACH_FORMAT = {case.name: case for case in reversed(CASES)}


@pytest.mark.parametrize(
    ("case", "to"),
    [(case, "upload") for case in EACH_FORMAT.values()]
    + [(EACH_FORMAT[name], "commit") for name in ("megatron", "mds")],
    ids=str,
)
def test_a_remote_set_is_what_it_is_on_disk(case, to, dataset, request, tmp_path) -> None:
    """Files that can be cut are read in spans; `verify` compares with the remote files."""
    url = request.getfixturevalue(to)(case.made(dataset, tmp_path))
    made = imported(case.name, url, tmp_path / "made", **OWN, **case.read)
    assert documents_in(made) == documents_in(dataset)  # as from disk: test_contract.py
    storage = open_storage(str(made))
    assert (case.read == CUT) == any(part.span for part in read_manifest(storage).parts)
    assert verify(storage, deep=True).findings == ()


def test_faults_that_pass_are_waited_out(dataset, upload, s3, tmp_path, monkeypatch) -> None:
    """Faults strike shards that are fetched whole, and shards in which documents continue."""
    url = upload(dataset)
    with fault_proxy(s3.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv("SHARDMILL_STORAGE_TIMEOUT", "10")
        proxy.inflict(Faults(answer=(503, "SlowDown"), times=2))
        plan, storage = planned("mds", url, tmp_path / "out", **OWN)
        assert proxy.struck == 2
        proxy.inflict(Faults(cut_down=9000, times=3))
        do_parts(plan, storage)
        assert proxy.struck == 3
    publish(plan, storage)
    assert documents_in(tmp_path / "out") == documents_in(dataset)


def test_what_lies_beside_a_file_pins_it_there_too(dataset, upload, tmp_path) -> None:
    """Another index is another source; one that changes during a run is named."""
    source = CASES[0].made(dataset, tmp_path)
    url = upload(source)
    imported("megatron", url, tmp_path / "out")
    plan, storage = planned("megatron", url, tmp_path / "other")
    change_index(source)
    upload(source)
    bare_ids._read_index.cache_clear()  # a worker process has not read it
    with pytest.raises(SourceError, match="changed since the run began"):
        do_parts(plan, storage)
    with pytest.raises(ConfigMismatchError, match="was made from other sources"):
        planned("megatron", url, tmp_path / "out")
