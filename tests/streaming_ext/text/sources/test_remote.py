"""Source files in S3 and behind https:// URLs: listed with their versions, read as listed."""

import threading
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import (
    StorageError,
    TransientStorageError,
    UsageError,
)
from streaming_ext.format.spec import ReadOptions
from streaming_ext.store.patience import Retry
from streaming_ext.text import fetch as fetch_module
from streaming_ext.text.fetch import fetch, worth_fetching
from streaming_ext.text.listing import list_sources
from streaming_ext.text.readers.parquet import ParquetFormat
from streaming_ext.text.sources import SourceFile, objects
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from tests.servers.fault_proxy import Faults, fault_proxy
from tests.servers.scripted import Answer, scripted
from tests.servers.storage.swift import SwiftServer, s3_client


class TestS3:
    def test_nothing_matches(self, bucket: str) -> None:
        for pattern in ("none", "a/*.csv", "a/x.parque"):
            with pytest.raises(UsageError, match="no file matches|no such file"):
                list_sources([f"s3://{bucket}/{pattern}"])
        with pytest.raises(StorageError, match="nonesuch.*NoSuchBucket"):
            list_sources(["s3://nonesuch/a"])

    def test_cuts_at_any_byte(
        self, bucket: str, s3: SwiftServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = bytes(range(256)) * 8000
        client = s3_client(s3.url)
        client.put_object(Bucket=bucket, Key="big.parquet", Body=data)
        client.close()
        monkeypatch.setattr(objects, "_CHUNK_BYTES", 2**19)
        with fault_proxy(s3.port) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
            (source,) = list_sources([f"s3://{bucket}/big.parquet"])
            for number, cut in enumerate((3, 400, 70_000, 600_000)):
                proxy.inflict(Faults(cut_down=cut, times=2))
                path, _ = fetch(source, tmp_path / str(number))
                assert path.read_bytes() == data
                assert proxy.struck == 2


class TestColumn:
    """Only the text's bytes come, where the rest is large; what is read of it is the same."""

    def test_only_the_column_is_needed(self, tmp_path: Path) -> None:
        table = pa.table({"s": [{"text": "no", "b": 1}] * 9, "a.b": ["x" * 99] * 9, "c": [1] * 9})
        pq.write_table(table, tmp_path / "x.parquet", row_group_size=3)
        (source,) = list_sources([str(tmp_path / "x.parquet")])
        file, options = SourceFileBytes(source), ReadOptions(columns=("a.b",))
        metadata = pq.read_metadata(tmp_path / "x.parquet")
        chunks = [metadata.row_group(group).column(2) for group in range(3)]
        assert [chunk.path_in_schema for chunk in chunks] == ["a.b"] * 3
        assert [block.size for block in ParquetFormat().blocks(file, options)] == [
            chunk.total_uncompressed_size for chunk in chunks
        ]
        head, *wanted, footer = ParquetFormat().needed(file, options, None)
        assert (head, footer[1]) == ((0, 4), source.size)
        assert [end - start for start, end in wanted] == [
            chunk.total_compressed_size for chunk in chunks
        ]
        with pytest.raises(UsageError, match="no column 'text'"):
            ParquetFormat().blocks(file, ReadOptions())

    def test_a_hash_is_given_up_only_for_much(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fetch_module, "SMALLEST_FILE", 100)
        monkeypatch.setattr(fetch_module, "_MERGE_BYTES", 5)
        plain, hashed = (SourceFile(url="s3://b/x", size=100, version=version)
                         for version in ("etag:1", "sha256:1"))  # fmt: skip
        assert worth_fetching(plain, [(50, 60), (0, 47)]) == [(0, 60)]
        assert worth_fetching(plain, [(0, 90)]) is None
        assert worth_fetching(hashed, [(0, 60)]) is None
        assert worth_fetching(hashed, [(0, 20), (30, 35)]) == [(0, 20), (30, 35)]
        small = SourceFile(url="s3://b/x", size=99)
        assert worth_fetching(small, [(0, 1)]) is None


class TestWeb:
    def test_many_are_looked_at_at_once(self) -> None:
        """The server answers the others when it is requested several of them."""
        several = threading.Barrier(4)

        def answer(_: str, path: str, headers: Mapping[str, str]) -> Answer:
            assert headers["Range"] == "bytes=0-0"
            if path != "/0.jsonl":
                try:
                    several.wait(30)
                except threading.BrokenBarrierError:
                    return Answer(404)
            sent = {"ETag": f'"{path}"', "Content-Range": f"bytes 0-0/{10 + int(path[1])}"}
            return Answer(206, b"x", sent)

        with scripted(answer) as server:
            found = list_sources([server.url + "/{0..8}.jsonl"])
        assert [source.size for source in found] == list(range(10, 19))

    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("http://host/x.parquet?token=planted-secret", "must not hold a query"),
            ("https://me:planted-secret@host/x.parquet", "must not hold credentials"),
            ("http://host/*.parquet", "cannot be listed"),
        ],
    )
    def test_refusals(self, url: str, words: str) -> None:
        with pytest.raises(UsageError, match=words) as caught:
            list_sources([url])
        assert "planted" not in str(caught.value)

    def test_no_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Retry, "usual", lambda: Retry(attempts=2, first_pause=0.05))
        with pytest.raises(TransientStorageError, match="127.0.0.1:9"):
            list_sources(["http://127.0.0.1:9/x.parquet"])


@pytest.mark.parametrize("key", ["data/../../etc/x.parquet", "data/./x.parquet", "../x.parquet"])
def test_keys_that_lead_out_of_their_folder_are_refused(
    s3: SwiftServer, bucket: str, key: str
) -> None:
    client = s3_client(s3.url)
    client.put_object(Bucket=bucket, Key=key, Body=b"PAR1")
    client.close()
    with pytest.raises(UsageError, match="leads out of its folder"):
        list_sources([f"s3://{bucket}/**/*.parquet"])
