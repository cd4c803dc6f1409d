"""`--output-format webdataset`: tars with the rows, the order and the promises of MDS shards."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from streaming_ext.base.errors import CorruptDatasetError, UsageError
from streaming_ext.format.reading import read_manifest
from streaming_ext.format.record import PartRecord
from streaming_ext.format.webdataset import WebdatasetFormat
from streaming_ext.store import LocalStorage
from tasks.core.check.decode import decode_samples
from tasks.core.check.verify import verify
from tasks.core.reading.dataset_files import read_records
from tasks.core.synthetic import make_documents
from tests.tasks.core.build_dataset import build_dataset
from tests.tasks.core.exports.exporting import content, exported
from tests.tasks.core.imports.importing import documents_in, imported
from tests.tasks.core.moving.moved import merged

LENGTH = 64


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, vocabulary: Path) -> dict[str, Path]:
    """The same texts as MDS and as tars."""
    texts = [text[:500] for text in make_documents(40, seed=3)]
    found = {}
    for name in ("mds", "webdataset"):
        found[name] = build_dataset(
            tmp_path_factory.mktemp(name),
            [texts[:24], texts[24:]],
            tokenizer=str(vocabulary),
            sequence_length=LENGTH,
            output_format=name,
            shard_size=2048,
        )
    return found


def rows_in_tars(split: Path) -> list[list[int]]:
    """Return rows as WebDataset readers find them: tars in order, each member a sample."""
    found, keys = [], []
    for file in sorted(split.rglob("*.tar")):
        with tarfile.open(file) as tar:
            for member in tar:
                extracted = tar.extractfile(member)
                assert extracted is not None
                found.append(np.load(io.BytesIO(extracted.read())).tolist())
                keys.append(member.name)
    assert len({*keys}) == len(keys)
    assert all(key.endswith(".npy") and key.count(".") == 1 for key in keys)
    return found


def test_no_two_tars_have_one_name(both, tmp_path, vocabulary) -> None:
    """Caches of `webdataset` and `wids` know a tar by its name, and would mix up two of them."""
    texts = [text[:500] for text in make_documents(20, seed=4)]
    other = build_dataset(
        tmp_path,
        [texts],
        tokenizer=str(vocabulary),
        sequence_length=LENGTH,
        output_format="webdataset",
        shard_size=2048,
    )
    merged([both["webdataset"], other], tmp_path / "merged")
    for root, parts in ((both["webdataset"], 2), (tmp_path / "merged", 3)):
        names = [file.name for file in root.rglob("*.tar")]
        assert len({*names}) == len(names) > 2 * parts
        folders = {file.parent.relative_to(root).as_posix() for file in root.rglob("*.tar")}
        assert len(folders) == 2 * parts
        assert verify(LocalStorage(root)).findings == ()


def batches_of(root: Path, split: str) -> list[Any]:
    dataset = StreamingTokenDataset(
        local=root,
        split=split,
        batch_size=4,
        shuffle=True,
        extras=["sequence_ids"],
        dp_rank=0,
        dp_world_size=1,
    )
    return [
        (batch["sequence_ids"].tolist(), batch["tokens"].tolist())
        for batch in StreamingTokenLoader(dataset)
    ]


@pytest.mark.parametrize("split", ["train", "holdout"])
def test_training_sees_the_same_rows_in_the_same_order(both, split) -> None:
    mds, tars = (batches_of(both[name], split) for name in ("mds", "webdataset"))
    assert tars == mds
    assert tars
    numbered = [pair for ids, rows in tars for pair in zip(ids, rows, strict=True)]
    unshuffled = {number: row for number, row in numbered if number >= 0}
    held = rows_in_tars(both["webdataset"] / split)
    assert {number: held[number] for number in unshuffled} == unshuffled


def test_it_is_recorded_and_checked_as_any_dataset(both) -> None:
    storage = LocalStorage(both["webdataset"])
    manifest = read_manifest(storage)
    assert manifest.spec.output_format == "webdataset"
    assert manifest.spec.compression == "none"
    report = verify(storage, deep=True, deep_documents=40)
    assert report.findings == ()
    assert report.checked.retokenized == 40
    (first,) = decode_samples(storage, "train", [0])
    assert first.excerpts
    ours, theirs = (records(both[name]) for name in ("webdataset", "mds"))
    for part, record in ours.items():
        for split, held in record.splits.items():
            other = theirs[part].splits[split]
            assert [shard.samples for shard in held.shards] == [s.samples for s in other.shards]
            assert (held.tokens, held.padding) == (other.tokens, other.padding)
        assert record.documents == theirs[part].documents
    assert sum(len(record.splits["train"].shards) for record in ours.values()) > 4


def records(root: Path) -> dict[int, PartRecord]:
    return read_records(LocalStorage(root))


def test_wids_reads_its_index(both) -> None:
    root = both["webdataset"] / "train"
    index = json.loads((root / "index.json").read_bytes())
    assert (index["__kind__"], index["wids_version"]) == ("wids-shard-index-v1", 1)
    assert len(index["shardlist"]) > 1
    for listed in index["shardlist"]:
        file = root / listed["url"]
        assert file.stat().st_size == listed["filesize"]
        with tarfile.open(file) as tar:
            assert len(tar.getnames()) == listed["nsamples"]


def test_damage_is_found(both) -> None:
    form = read_manifest(LocalStorage(both["webdataset"])).spec.shard_format
    tar = sorted((both["webdataset"] / "train").rglob("*.tar"))[0].read_bytes()
    samples = (len(tar) - 1024) // (form.raw_size(2) - form.raw_size(1))
    assert form.tokens_of(tar, samples).shape == (samples, LENGTH)
    for raw, count in ((tar[:-1], samples), (tar, samples - 1), (bytes(len(tar)), samples)):
        with pytest.raises(CorruptDatasetError, match="not a tar of"):
            form.tokens_of(raw, count)
    for index in (b"[]", b"{", b'{"shardlist": [{"shard": {"samples": 1}}]}'):
        with pytest.raises(CorruptDatasetError, match="no list of tars"):
            form.table(index, where="index.json")


def test_exports_and_imports_of_it(both, vocabulary, tmp_path) -> None:
    """Exports of tars equal those of MDS shards; an import may make tars too."""
    files = [content(exported(both[name], tmp_path / name, "olmo")) for name in both]
    one, other = ({k: v for k, v in each.items() if k.endswith(".npy")} for each in files)
    assert one == other
    assert len(one) == 4
    options = {
        "tokenizer": str(vocabulary),
        "pattern": "gpt2",
        "holdout_fraction": 0,
        "output_format": "webdataset",
        "sequence_length": LENGTH,
    }
    back = imported("olmo", tmp_path / "mds" / "train", tmp_path / "back", **options)
    assert documents_in(back)["train"] == documents_in(both["mds"])["train"]


def test_what_readers_do_not_unpack_is_refused() -> None:
    def form(compression: str) -> WebdatasetFormat:
        return WebdatasetFormat(
            sequence_length=8, dtype="uint16", shard_size=4096, compression=compression
        )

    form("gz:6").require_possible()
    with pytest.raises(UsageError, match=r"--compression zstd:1: readers of WebDataset"):
        form("zstd:1").require_possible()
