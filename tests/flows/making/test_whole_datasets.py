"""`shardmill copy` and `merge` as a user runs them, and object storage."""

import json
import re
from pathlib import Path

from streaming_ext.store import open_storage
from streaming_ext.store.s3 import S3
from tasks.core.check.export import compare_copy
from tasks.core.check.verify import verify
from tests.command_line import file_hashes, refused, succeeded
from tests.tasks.core.build_dataset import build_dataset
from tests.tasks.core.exports.exporting import content
from tests.tasks.core.moving.moved import copied, merged


def assert_summarized(said: str, output: Path, *datasets: Path) -> None:
    """Check the closing summary of a command that made one dataset from others."""
    manifests = [json.loads((each / "manifest.json").read_text()) for each in datasets]
    splits = [split for manifest in manifests for split in manifest["splits"].values()]
    facts = dict(re.findall(r"^(\w+) +(\S.*)$", said, re.MULTILINE))
    assert re.fullmatch(r"[1-9]\d*", facts["parts"])
    assert facts["tokens"] == f"{sum(split['tokens'] for split in splits):,}"
    assert re.fullmatch(r"[\d.]+ [kM]?B", facts["written"])
    assert re.fullmatch(r"(0:\d\d:\d\d|[\d.]+ s) \([\d.,]+ MB/s\)", facts["time"])
    made = json.loads((output / "manifest.json").read_text())
    assert f"{output}: {len(made['parts'])} parts, {facts['tokens']} tokens; holdout " in said
    assert re.search(r"; holdout \d+ samples, train [\d,]+ samples$", said, re.MULTILINE)


def test_copy_and_merge(served, dataset, tmp_path, shardmill) -> None:
    output = tmp_path / "copy"
    ended = succeeded(served.run("copy", dataset, output, "--workers", 2))
    assert_summarized(ended.stdout, output, dataset)
    assert file_hashes(output) == file_hashes(dataset)
    both = tmp_path / "both"
    ended = succeeded(served.run("merge", dataset, output, "--output", both, "--repeats"))
    assert_summarized(ended.stdout, both, dataset, output)
    compared = succeeded(shardmill("copy", dataset, output, "--verify-only", "--json"))
    assert json.loads(compared.stdout)["sound"]
    (output / "train/index.json").unlink()
    lost = refused(shardmill("copy", dataset, output, "--verify-only"), code=1)
    assert "train/index.json\n  missing" in lost.stdout
    refused(served.run("copy", dataset, dataset), "the dataset itself")


def test_object_storage(bucket, tmp_path, vocabulary, monkeypatch) -> None:
    """From disk to store, from store to store, a merge inside the store, and back to disk."""
    texts = [[f"Document {number}." * 40 for number in range(20)]] * 2
    local = build_dataset(tmp_path / "one", texts, tokenizer=str(vocabulary), shard_size=2**16)
    one, two, both = (f"s3://{bucket}/{name}" for name in ("one", "two", "both"))
    copied(local, one)
    copied(one, two)
    assert compare_copy(open_storage(one), open_storage(two), workers=4).sound
    requested: list[str] = []
    copy = S3.copy

    def noted(self: S3, bucket: str, key: str, to: str) -> bool:
        requested.append(to)
        return copy(self, bucket, key, to)

    with monkeypatch.context() as patch:
        patch.setattr(S3, "copy", noted)
        merged([one, two], both, repeats=True)
    expected = tmp_path / "both"
    merged([local, local], expected, repeats=True)
    assert {f"both/{path}" for path in content(expected) if "/shard." in path} <= set(requested)
    copied(both, tmp_path / "back")
    assert content(tmp_path / "back") == content(expected)
    assert verify(open_storage(str(expected))).sound
