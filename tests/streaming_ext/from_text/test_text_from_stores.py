"""Text from object storage, and in a folder that holds the user's own `flows` and `tasks`."""

import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from streaming_ext.store.patience import Retry
from tests.servers.hub import Dataset, hub_server
from tests.servers.storage.swift import SwiftServer, make_bucket, s3_client
from tests.streaming_ext.from_text.conftest import LENGTH, Open, rows_of
from tests.streaming_ext.from_text.test_text_dataset import rows_read

THEIRS = "raise SystemExit('this is not part of shardmill')\n"
TRAIN = """
import sys

import torch

from streaming_ext import StreamingTextDataset, StreamingTokenLoader


def epoch(workers, how):
    dataset = StreamingTextDataset(
        sources=sys.argv[1], tokenizer=sys.argv[2], pattern="gpt2", local=sys.argv[3],
        cache_limit=int(sys.argv[4]), sequence_length=32, batch_size=8, shuffle=True,
        shuffle_block_size=16, shard_size=2000, num_canonical_nodes=1,
    )
    loader = StreamingTokenLoader(dataset, num_workers=workers, multiprocessing_context=how)
    return torch.cat([batch["tokens"] for batch in loader])


if __name__ == "__main__":
    expected = epoch(0, None)
    assert torch.equal(epoch(2, "spawn"), expected)
    assert not {"prefect", "flows", "tasks"} & set(sys.modules)
    print(len(expected))
"""


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


@pytest.mark.soak
def test_in_a_folder_of_the_users_own(folder: Path, vocabulary: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    for name in ("flows.py", "tasks.py", "flows/__init__.py", "tasks/__init__.py"):
        (theirs / name).parent.mkdir(parents=True, exist_ok=True)
        (theirs / name).write_text(THEIRS)
    (theirs / "train.py").write_text(TRAIN)
    ended = subprocess.run(
        [sys.executable, "train.py", folder, vocabulary, tmp_path / "cache", str(10**6)],
        cwd=theirs, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) * LENGTH > 5_000
