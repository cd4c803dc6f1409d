"""Source files in S3 and behind https:// URLs: listed with their versions, read as listed."""

import random
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
from streaming_ext.text.documents.streams import CODECS
from streaming_ext.text.fetch import fetch, worth_fetching
from streaming_ext.text.formats import format_of
from streaming_ext.text.listing import list_sources
from streaming_ext.text.readers import json_lines
from streaming_ext.text.readers.parquet import ParquetFormat
from streaming_ext.text.sources import SourceFile, objects
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from tasks.core.config import ShardConfig
from tasks.core.shard.sources import check_sources
from tests.servers.fault_proxy import Faults, fault_proxy
from tests.servers.scripted import Answer, scripted
from tests.servers.storage.swift import SwiftServer, s3_client
from tests.streaming_ext.text.packed import pack

KEYS = ("a/x.parquet", "a/deep/y.parquet", "a/.hidden/z.parquet", "a/notes.txt", "b/x.parquet",
        "a2/x.parquet")  # fmt: skip


@pytest.fixture
def filled(bucket: str, s3: SwiftServer) -> str:
    client = s3_client(s3.url)
    for key in KEYS:
        client.put_object(Bucket=bucket, Key=key, Body=key.encode())
    client.close()
    return bucket


class TestS3:
    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("a", ["a/deep/y.parquet", "a/x.parquet"]),
            ("a/", ["a/deep/y.parquet", "a/x.parquet"]),
            ("a/*", ["a/notes.txt", "a/x.parquet"]),
            ("*/x.parquet", ["a/x.parquet", "a2/x.parquet", "b/x.parquet"]),
            ("a/**/[xy].parquet", ["a/deep/y.parquet", "a/x.parquet"]),
            ("{a,b}/?.parquet", ["a/x.parquet", "b/x.parquet"]),
            ("a/notes.txt", ["a/notes.txt"]),
        ],
    )
    def test_patterns(self, filled: str, pattern: str, expected: list[str]) -> None:
        found = list_sources([f"s3://{filled}/{pattern}"])
        assert [source.url for source in found] == [f"s3://{filled}/{key}" for key in expected]
        assert [source.size for source in found] == [len(key) for key in expected]
        assert all((source.version or "").startswith("etag:") for source in found)

    def test_nothing_matches(self, filled: str) -> None:
        for pattern in ("none", "a/*.csv", "a/x.parque"):
            with pytest.raises(UsageError, match="no file matches|no such file"):
                list_sources([f"s3://{filled}/{pattern}"])
        with pytest.raises(StorageError, match="nonesuch.*NoSuchBucket"):
            list_sources(["s3://nonesuch/a"])

    def test_cuts_at_any_byte(
        self, filled: str, s3: SwiftServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = bytes(range(256)) * 8000
        client = s3_client(s3.url)
        client.put_object(Bucket=filled, Key="big.parquet", Body=data)
        client.close()
        monkeypatch.setattr(objects, "_CHUNK_BYTES", 2**19)
        with fault_proxy(s3.port) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
            (source,) = list_sources([f"s3://{filled}/big.parquet"])
            for number, cut in enumerate((3, 400, 70_000, 600_000)):
                proxy.inflict(Faults(cut_down=cut, times=2))
                path, _ = fetch(source, tmp_path / str(number))
                assert path.read_bytes() == data
                assert proxy.struck == 2


class TestColumn:
    """Only the text's bytes come, where the rest is large; what is read of it is the same."""

    @pytest.mark.parametrize(("noise", "saved"), [(100_000, True), (300, False)])
    def test_s3(
        self,
        bucket: str,
        s3: SwiftServer,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        noise: int,
        saved: bool,
    ) -> None:
        monkeypatch.setattr(fetch_module, "SMALLEST_FILE", 1000)
        monkeypatch.setattr(fetch_module, "_MERGE_BYTES", 100)
        monkeypatch.setattr(fetch_module, "_CHUNK_BYTES", 5000)
        rng = random.Random(1)
        rows = [{"id": rng.randbytes(noise), "text": rng.randbytes(3000).hex(), "n": i}
                for i in range(20)]  # fmt: skip
        file = tmp_path / "x.parquet"
        pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=4, compression="zstd")
        client = s3_client(s3.url)
        client.put_object(Bucket=bucket, Key="x.parquet", Body=file.read_bytes())
        client.close()
        (source,) = list_sources([f"s3://{bucket}/x.parquet"])
        path, fetched = fetch(source, tmp_path / "scratch", options=ReadOptions())
        assert path.stat().st_size == source.size
        assert (fetched < source.size / 5) == saved
        ours = [
            text
            for batch in ParquetFormat().read(path, ReadOptions())
            for text in batch.texts.to_pylist()
        ]
        assert ours == [row["text"] for row in rows]
        assert (path.read_bytes() == file.read_bytes()) != saved

    def test_only_the_column_is_needed(self, tmp_path: Path) -> None:
        table = pa.table({"s": [{"text": "no", "b": 1}] * 9, "a.b": ["x" * 99] * 9, "c": [1] * 9})
        pq.write_table(table, tmp_path / "x.parquet", row_group_size=3)
        (source,) = list_sources([str(tmp_path / "x.parquet")])
        look = ParquetFormat().look(SourceFileBytes(source), ReadOptions(columns=("a.b",)))
        metadata = pq.read_metadata(tmp_path / "x.parquet")
        chunks = [metadata.row_group(group).column(2) for group in range(3)]
        assert [chunk.path_in_schema for chunk in chunks] == ["a.b"] * 3
        assert [(block.rows, block.size) for block in look.blocks] == [
            (3, chunk.total_uncompressed_size) for chunk in chunks
        ]
        assert look.needed is not None
        head, *wanted, footer = look.needed
        assert (head, footer[1]) == ((0, 4), source.size)
        assert [end - start for start, end in wanted] == [
            chunk.total_compressed_size for chunk in chunks
        ]
        with pytest.raises(UsageError, match="no column 'text'"):
            ParquetFormat().look(SourceFileBytes(source), ReadOptions())

    def test_a_hash_is_given_up_only_for_much(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fetch_module, "SMALLEST_FILE", 100)
        monkeypatch.setattr(fetch_module, "_MERGE_BYTES", 5)
        plain, hashed = (SourceFile(url="s3://b/x", size=100, version=version)
                         for version in ("etag:1", "sha256:1"))  # fmt: skip
        assert worth_fetching(plain, [(50, 60), (0, 47)]) == [(0, 60)]
        assert worth_fetching(plain, [(0, 90)]) is None
        assert worth_fetching(plain, None) is None
        assert worth_fetching(hashed, [(0, 60)]) is None
        assert worth_fetching(hashed, [(0, 20), (30, 35)]) == [(0, 20), (30, 35)]
        small = SourceFile(url="s3://b/x", size=99)
        assert worth_fetching(small, [(0, 1)]) is None


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".xz"])
def test_json_lines_from_s3(
    bucket: str, s3: SwiftServer, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "_BLOCK_BYTES", 3000)
    monkeypatch.setattr(fetch_module, "SMALLEST_FILE", 1000)
    texts = [random.Random(row).randbytes(300).hex() for row in range(40)]
    lines = "".join(f'{{"text": "{text}"}}\n' for text in texts)
    pack(lines.encode(), tmp_path / "x", CODECS.get(suffix, "none"))
    client = s3_client(s3.url)
    client.put_object(Bucket=bucket, Key=f"in/x.jsonl{suffix}", Body=(tmp_path / "x").read_bytes())
    client.close()
    config = ShardConfig(sources=(f"s3://{bucket}/in",), output="o", tokenizer="t")
    (source,) = check_sources(config)
    with pytest.raises(UsageError, match="no column 'body'"):
        check_sources(config.model_copy(update={"text_column": ("body",)}))
    reads = format_of(source.url)
    file, options = SourceFileBytes(source), ReadOptions()
    look = reads.look(file, options)
    assert look is not None
    assert (len(look.blocks) > 5) == (not suffix)
    assert texts == [
        text
        for block in look.blocks
        for batch in reads.read(file, options, span=block.span, batch_bytes=1000)
        for text in batch.texts.to_pylist()
    ]
    path, fetched = fetch(source, tmp_path / "scratch", options=options)
    assert fetched == source.size
    read = reads.read(path, options, name=source.url)
    assert [text for batch in read for text in batch.texts.to_pylist()] == texts


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
