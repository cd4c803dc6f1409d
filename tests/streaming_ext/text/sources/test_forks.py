"""Readers used before a fork, then by four processes at once: each gets its own bytes."""

import json
import multiprocessing
import random
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from streaming_ext.text.listing import list_sources
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.source_bytes import SourceFileBytes, open_reader
from streaming_ext.transforms.checkpointable import CheckpointableDataset
from tests.servers.scripted import Answer, scripted
from tests.streaming_ext.text.sources.conftest import locate

SIZE = 4 * 2**20
READERS = 4
READS = 63  # per reader: more than a thousand over the four kinds of sources
DATA = random.Random(26).randbytes(SIZE)


def answer_ranges(method: str, _: str, headers: Mapping[str, str]) -> Answer:
    """Answer like a web server with ranges."""
    sent = {"ETag": '"e"', "Accept-Ranges": "bytes"}
    if method == "HEAD":
        return Answer(200, DATA, sent)
    first, last = headers["Range"].removeprefix("bytes=").split("-")
    start, end = int(first), int(last) + 1
    sent["Content-Range"] = f"bytes {start}-{end - 1}/{SIZE}"
    return Answer(206, DATA[start:end], sent)


@pytest.fixture(params=["disk", "web", "s3", "hub"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourceFile]:
    if request.param == "web":
        with scripted(answer_ranges) as server:
            yield from list_sources([f"{server.url}/x.jsonl"])
    elif request.param == "disk":
        (tmp_path / "x.jsonl").write_bytes(DATA)
        yield from list_sources([str(tmp_path / "x.jsonl")])
    else:
        with locate(request.param, request) as location:
            location.put("x.jsonl", DATA)
            yield from list_sources(location.named("x.jsonl"))


_inherited: list[Any] = []


def inherit(*given: Any) -> None:
    """Keep objects that the parent process has used already."""
    _inherited[:] = given


def read_many(seed: int) -> int:
    """Return the number of reads with wrong bytes; all readers start each read together."""
    file, together = _inherited
    rng, wrong = random.Random(seed), 0
    for _ in range(READS):
        start = rng.randrange(SIZE)
        end = min(start + rng.choice([1, 1000, 2**18, 2**18]), SIZE)
        together.wait(60)
        wrong += file.read(start, end) != DATA[start:end]
    return wrong


def test_four_forked_readers_get_their_own_bytes(source: SourceFile) -> None:
    file = SourceFileBytes(source)
    assert file.read(10, 2**18) == DATA[10 : 2**18]
    if source.remote:
        with ThreadPoolExecutor(8) as threads:  # leaves several connections open
            list(threads.map(lambda _: open_reader(source).headers(), range(8)))
    forks = multiprocessing.get_context("fork")
    given = file, forks.Barrier(READERS)
    with ProcessPoolExecutor(READERS, forks, inherit, given) as readers:
        assert list(readers.map(read_many, range(READERS))) == [0] * READERS
    assert file.read(0, SIZE) == DATA  # the children took no connection away


def test_reads_of_ranges_use_one_connection(tmp_path: Path) -> None:
    with scripted(answer_ranges) as server:
        (source,) = list_sources([f"{server.url}/x.jsonl"])
        reader = open_reader(source)
        for start in range(0, SIZE, 2**18):
            assert reader.read(start, start + 2**18) == DATA[start : start + 2**18]
        reader.headers()
        assert b"".join(reader.stream(5)) == DATA[5:]
        assert len(server.asked) == SIZE // 2**18 + 3
        assert server.connections == 1


def test_a_loader_of_four_forks_reads_the_hub_and_s3_at_once(
    request: pytest.FixtureRequest,
) -> None:
    rng = random.Random(4)
    texts = [rng.randbytes(rng.randrange(4000)).hex() for _ in range(400)]
    with locate("hub", request) as hub, locate("s3", request) as s3:
        for number in range(4):
            lines = [json.dumps({"text": text}) for text in texts[number::4]]
            (hub, s3)[number % 2].put(f"{number}.jsonl", "\n".join(lines).encode())
        chain = CheckpointableDataset.from_files([*hub.named("*.jsonl"), *s3.named("*.jsonl")])
        assert next(iter(chain))["text"] in texts  # connections are open before the forks
        loader = DataLoader(chain, None, num_workers=4, multiprocessing_context="fork")
        assert sorted(sample["text"] for sample in loader) == sorted(texts)
