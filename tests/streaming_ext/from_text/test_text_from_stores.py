"""Text from object storage and from the Hub."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from streaming_ext.store.patience import Retry
from tests.servers.hub import Dataset, hub_server
from tests.servers.storage.swift import SwiftServer, make_bucket, s3_client
from tests.streaming_ext.from_text.conftest import Open, rows_of
from tests.streaming_ext.from_text.test_text_dataset import rows_read


def test_from_object_storage(
    open_text: Open, folder: Path, reference, texts, s3: SwiftServer, tmp_path: Path
) -> None:
    bucket = make_bucket(s3.url)
    client = s3_client(s3.url)
    data = (folder / "1.jsonl").read_bytes()
    client.put_object(Bucket=bucket, Key="in/1.jsonl", Body=data)
    client.close()
    settings = {"sources": f"s3://{bucket}/in/{{1..1}}.jsonl", "local": tmp_path, "batch_size": 1}
    dataset = open_text(**settings)
    assert dataset.reader.num_shards > 1
    assert (rows_read(dataset, workers=1) == rows_of(reference, texts[1:2])).all()
    assert not list(tmp_path.glob("text-*/.making"))


def test_from_the_hub_with_faults_in_the_middle(
    open_text: Open, folder: Path, reference, texts, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Requests that are refused for a while, and answers that are cut, change no row."""
    monkeypatch.setattr(Retry, "usual", lambda: Retry(attempts=5, first_pause=0.02))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with hub_server() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        hub.datasets["org/text"] = Dataset()
        hub.datasets["org/text"].commit({path.name: path.read_bytes() for path in folder.iterdir()})
        hub.retry_after, hub.busy, hub.cuts = "0", 2, [700, 900]
        settings = {"sources": "hf://datasets/org/text/*.jsonl", "local": tmp_path / "cache",
                    "batch_size": 1}  # fmt: skip
        dataset = open_text(**settings)
        assert not hub.busy
        assert not hub.cuts
        listed = hub.requests["tree"]
        assert (rows_read(dataset, workers=2) == rows_of(reference, texts)).all()
        assert hub.requests["tree"] == listed  # nothing is listed once a worker
