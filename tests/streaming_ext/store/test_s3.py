"""Features of S3 alone: copies inside the store, and multipart uploads."""

from contextlib import closing
from pathlib import Path

import pytest

from streaming_ext.base.errors import CorruptDatasetError, TransientStorageError
from streaming_ext.store import s3 as s3_module
from tests.servers.fault_proxy import FaultProxy, Faults
from tests.servers.storage.swift import SwiftServer, s3_client
from tests.streaming_ext.store.conftest import Cloud

pytestmark = pytest.mark.parametrize("cloud", ["s3"], indirect=True)


def test_a_copy_in_the_store_has_the_expected_size(cloud: Cloud) -> None:
    storage = cloud.storage()
    storage.put("x", b"short")
    assert storage.adopt(storage, "x", "y", 5)
    assert storage.read("y") == b"short"
    with pytest.raises(CorruptDatasetError, match=f"{storage}/x has 5 bytes, expected 6"):
        storage.adopt(storage, "x", "z", 6)
    with pytest.raises(FileNotFoundError):
        storage.adopt(storage, "w", "z", 6)


class TestMultipart:
    @pytest.fixture(autouse=True)
    def _small_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(s3_module, "CHUNK_BYTES", 5 * 2**20)

    def test_large_files(self, cloud: Cloud, tmp_path: Path) -> None:
        data = bytes(range(256)) * (13 * 2**12)
        (tmp_path / "x").write_bytes(data)
        storage = cloud.storage()
        storage.put_file("x", tmp_path / "x")
        assert storage.read("x") == data
        assert storage.adopt(storage, "x", "y", len(data))
        assert storage.read("y") == data

    def test_a_failed_upload_leaves_nothing_open(
        self, cloud: Cloud, s3: SwiftServer, proxy: FaultProxy, tmp_path: Path
    ) -> None:
        (tmp_path / "x").write_bytes(bytes(26 * 2**20))
        # Only the second of the first two connections sends a chunk.
        proxy.inflict(Faults(bytes_per_second=2**23, cut_up=2**20, times=2))
        with pytest.raises(TransientStorageError):
            cloud.storage(attempts=1).put_file("train/00000/shard.00000.mds", tmp_path / "x")
        assert proxy.struck == 2
        with closing(s3_client(s3.url)) as client:
            assert "Uploads" not in client.list_multipart_uploads(Bucket=cloud.bucket)
        assert cloud.storage().list() == {}
