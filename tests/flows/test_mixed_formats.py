"""A run over a file of each format: killed, resumed, checked, read."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from tasks.core.synthetic import make_documents
from tests.command_line import assert_same_text, kill_group, succeeded, wait_for
from tests.flows.conftest import manifest_of, undisturbed_by
from tests.streaming_ext.text.packed import write_documents, write_rows

NAMES = ["0.jsonl", "1.jsonl.gz", "2.ndjson.zst", "3.json", "4.cbor", "5.arrow", "6.tar",
         "7.parquet", "8.json.bz2", "9.cbor.xz", "10.avro", "11.csv.gz", "12.tsv"]  # fmt: skip
OPTIONS = {"engine": "reference", "workers": 2, "shard_size": "64KiB"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    """The same documents in files of each format, and in Parquet."""
    mixed, parquet = tmp_path_factory.mktemp("mixed"), tmp_path_factory.mktemp("parquet")
    documents = make_documents(150 * len(NAMES), seed=6)
    for number, name in enumerate(NAMES):
        for path in (mixed / name, parquet / f"{number}.parquet"):
            write_documents(path, documents[number :: len(NAMES)])
    return mixed, parquet


def test_every_format(served, shardmill, folders, tmp_path) -> None:
    mixed, parquet = folders
    undisturbed, output = tmp_path / "undisturbed", tmp_path / "out"
    undisturbed_by(served, undisturbed, shard_size="64KiB", sources=[str(parquet)])
    chosen = {**OPTIONS, "sources": mixed / "*.*"}
    run = served.start(*served.shard_arguments(output, **chosen))
    wait_for(lambda: run.poll() is not None or len(list(output.glob("parts/*"))) >= 4)
    kill_group(run)
    assert list(output.glob("parts/*"))
    succeeded(served.shard(output, **chosen))
    assert_same_text(undisturbed, output)
    verified = succeeded(shardmill("verify", output, "--deep", "--json"))
    assert not json.loads(verified.stdout)["findings"]
    shown = shardmill("inspect", output, "--sample", 0)
    assert "0.jsonl" in shown.stdout, shown.stdout + shown.stderr

    dataset = StreamingTokenDataset(local=output, batch_size=4, dp_rank=0, dp_world_size=1)
    assert sum(len(batch["tokens"]) for batch in StreamingTokenLoader(dataset)) >= 4


def test_columns_of_avro_csv_and_tsv(served, tmp_path) -> None:
    """Conditions and kept columns are those of JSON Lines."""
    rows = [
        {"id": number, "title": "even" if number % 2 == 0 else None, "text": text}
        for number, text in enumerate(make_documents(200, seed=9))
    ]
    options = {"where": "id >= 30 and title == 'even'", "keep_columns": ("title",),
               "part_size": "16KiB", "engine": "reference"}  # fmt: skip
    found = {}
    for name in ("x.jsonl", "x.avro", "x.csv.gz", "x.tsv.zst"):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        write_rows(folder / name, rows)
        output = undisturbed_by(served, folder / "out", sources=[str(folder / name)], **options)
        manifest = manifest_of(output)
        assert (len(manifest.parts) > 1) == (name == "x.jsonl")
        tables = [pq.read_table(file) for file in sorted(output.glob("documents/*.parquet"))]
        found[name] = [
            (row["tokens"], row["column.title"]) for table in tables for row in table.to_pylist()
        ]
    assert len(found["x.jsonl"]) == 85
    assert all(title == "even" for _, title in found["x.jsonl"])
    assert all(one == found["x.jsonl"] for one in found.values())
