"""A new output is one small class; nothing else changes."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from streaming_ext.format.mds import MdsFormat, Samples
from streaming_ext.format.reading import read_manifest
from streaming_ext.format.shard import Shard, ShardTable, TokenArray
from streaming_ext.format.spec import FORMATS, DatasetSpec, TokenizerIdentity
from streaming_ext.store import LocalStorage
from tasks.core.check.decode import decode_samples
from tasks.core.check.verify import verify
from tasks.core.config import ShardConfig
from tasks.core.synthetic import make_documents
from tests.tasks.core.build_dataset import build_dataset

ROOT = Path(__file__).parents[3]
LENGTH = 64


class FlatFormat(MdsFormat):
    """One file per part and split, with nothing but ids, end to end."""

    samples_per_shard = 2**40

    def require_possible(self) -> None: ...

    def shard_name(self, split: str, part: int, number: int) -> str:
        return f"{part:05}/shard.{number:05}.flat"

    def raw_size(self, num_samples: Samples) -> Samples:
        return num_samples * self.sample_bytes

    def header(self, num_samples: int) -> bytes:
        return b""

    def tokens_of(self, raw: bytes | memoryview, num_samples: int) -> TokenArray:
        found: TokenArray = np.frombuffer(raw, self.id_type).reshape(num_samples, LENGTH)
        return found

    def index(self, shards: Iterable[Shard]) -> bytes:
        return json.dumps([shard.model_dump() for shard in shards]).encode()

    def table(self, index: bytes, *, where: str) -> ShardTable:
        shards = [Shard(**values) for values in json.loads(index)]
        return ShardTable.of_shards(shards, sample_tokens=LENGTH, dtype=self.dtype)


class FlatConfig(ShardConfig):
    """The configuration that an option for this format would give."""

    def spec(self, tokenizer: TokenizerIdentity) -> DatasetSpec:
        return super().spec(tokenizer).model_copy(update={"output_format": "flat"})


def test_a_toy_output_is_written_published_verified_shown_and_read(
    tmp_path, vocabulary, monkeypatch
) -> None:
    monkeypatch.setitem(FORMATS, "flat", FlatFormat)
    texts = [text[:300] for text in make_documents(30, seed=3)]
    root = build_dataset(
        tmp_path,
        [texts[:18], texts[18:]],
        kind=FlatConfig,
        tokenizer=str(vocabulary),
        sequence_length=LENGTH,
        compression="none",
    )
    storage = LocalStorage(root)
    manifest = read_manifest(storage)
    assert manifest.spec.output_format == "flat"
    files = storage.list("train")
    assert [*files] == [
        "train/00000/shard.00000.flat",
        "train/00001/shard.00000.flat",
        "train/index.json",
    ]
    report = verify(storage, deep=True, deep_documents=30)
    assert report.findings == ()
    assert report.checked.documents == 30
    assert report.checked.retokenized > 20
    (first,) = decode_samples(storage, "train", [0])
    assert texts[0].startswith(first.excerpts[0].text)
    dataset = StreamingTokenDataset(
        local=root, batch_size=4, shuffle=True, extras=["sequence_ids"], dp_rank=0, dp_world_size=1
    )
    rows = {
        int(number): ids.tolist()
        for batch in StreamingTokenLoader(dataset)
        for number, ids in zip(batch["sequence_ids"], batch["tokens"], strict=True)
    }
    ids = np.concatenate([np.fromfile(root / path, "<u2") for path in [*files][:2]])
    assert rows == {n: row for n, row in enumerate(ids.reshape(-1, LENGTH).tolist()) if n in rows}
    assert len(rows) == dataset.size // 4 * 4


def test_the_usual_output_stands_in_no_file(tmp_path, vocabulary) -> None:
    """Datasets that were made before there was a choice keep their bytes."""
    root = build_dataset(tmp_path, [["One document."]], tokenizer=str(vocabulary))
    assert b"output_format" not in (root / "manifest.json").read_bytes()
    assert b"output_format" not in (root / "parts/00000.json").read_bytes()


OWN = {  # files that may name MDS: its own, and the lists that name it
    "streaming_ext/format/mds.py",
    "streaming_ext/format/mds_foreign.py",
    "streaming_ext/format/mds_index.py",
    "streaming_ext/format/webdataset.py",  # a tar holds as many samples as such a shard
    "streaming_ext/format/spec.py",  # formats of outputs, and of sets that are imported
    "streaming_ext/text/formats.py",
    "streaming_ext/text/token_sets/mds_shards.py",
}


NAMES_MDS = re.compile(r"""\.mds import|["']mds["']|["'][^"'\n ]*\.mds\b""")


def test_nothing_else_names_mds() -> None:
    found = {
        str(file.relative_to(ROOT))
        for folder in ("streaming_ext", "tasks", "flows")
        for file in (ROOT / folder).rglob("*.py")
        if NAMES_MDS.search(file.read_text())
    }
    assert found <= OWN
    assert len(found) >= 4  # the check sees what it looks for
