"""Spans of remote files fetch their own bytes once, and hold the documents of the file."""

import json
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text import fetch as module
from streaming_ext.text.fetch import came_unchecked, fetch, remove_fetched, worth_fetching
from streaming_ext.text.formats import format_of
from streaming_ext.text.listing import list_sources
from streaming_ext.text.sources import SourceFile
from tests.servers.storage.swift import SwiftServer, s3_client

TEXT = ReadOptions()
TEXTS = [f"{row} " * (row % 700) for row in range(2000)]


@pytest.fixture(params=[".jsonl", ".parquet"])
def remote(
    request: pytest.FixtureRequest, bucket: str, s3: SwiftServer, tmp_path: Path
) -> SourceFile:
    """A file of `TEXTS` in a store, with another column of the same size."""
    path = tmp_path / f"x{request.param}"
    table = pa.table({"text": TEXTS, "other": [text[::-1] for text in TEXTS]})
    if request.param == ".parquet":
        pq.write_table(table, path, row_group_size=100, compression="none", use_dictionary=False)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    client = s3_client(s3.url)
    client.put_object(Bucket=bucket, Key=path.name, Body=path.read_bytes())
    client.close()
    (source,) = list_sources([f"s3://{bucket}/{path.name}"])
    return source


def texts_of(source: SourceFile, path: Path, span: tuple[int, int]) -> list[str]:
    read = format_of(source.url).read(path, TEXT, name=source.url, span=span)
    return [text for batch in read for text in batch.texts.to_pylist()]


def test_a_span_fetches_its_own_bytes(
    remote: SourceFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MERGE_BYTES", 1000)
    cuts = [remote.size * n // 4 for n in range(5)]
    texts, came = [], []
    for span in pairwise(cuts):
        path, fetched = fetch(remote, tmp_path / "scratch", options=TEXT, span=span)
        assert path.stat().st_size == remote.size
        assert path.stat().st_blocks * 512 < remote.size * 0.45  # the rest is a hole
        texts += texts_of(remote, path, span)
        came.append(fetched)
        assert came_unchecked(path)  # no server sends the hash of a span
        assert fetch(remote, tmp_path / "scratch", options=TEXT, span=span) == (path, 0)
        remove_fetched(path)
    assert texts == TEXTS
    fraction = 0.5 if remote.url.endswith(".parquet") else 1.0  # the text's column alone
    footers = 4 * (2 * 2**17 + 2**16) if fraction < 1 else 4 * 2**18  # footers hold long texts
    assert sum(came) < remote.size * fraction * 1.1 + footers
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_hash_is_given_up_only_for_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALLEST_FILE", 100)
    monkeypatch.setattr(module, "_MERGE_BYTES", 5)
    plain, hashed = (
        SourceFile(url="s3://b/x", size=100, version=version) for version in ("etag:1", "sha256:1")
    )
    assert worth_fetching(plain, [(50, 60), (0, 47)]) == [(0, 60)]
    assert worth_fetching(plain, [(0, 90)]) is None
    assert worth_fetching(hashed, [(0, 60)]) is None
    assert worth_fetching(hashed, [(0, 20), (30, 35)]) == [(0, 20), (30, 35)]
    assert worth_fetching(SourceFile(url="s3://b/x", size=99), [(0, 1)]) is None
