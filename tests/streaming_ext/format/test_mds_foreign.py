"""Plain MDS sets that other tools wrote, compared with what stock StreamingDataset reads."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from streaming_ext.base.errors import CorruptDatasetError, NotADatasetError, SourceError, UsageError
from streaming_ext.format.spec import IdOptions, ReadOptions
from streaming_ext.text.formats import format_of
from streaming_ext.text.token_sets.token_set import IdsAsTheyAre
from streaming_ext.training.stock import streaming

LENGTH, COUNT = 8, 50
BYTES = {"tokens": "bytes"}
MIXED = {"attention_mask": "ndarray:uint8", "id": "int", "text": "str", "tokens": "ndarray:int32"}


def samples_of(columns: dict[str, str], dtype: str, count: int = COUNT) -> list[dict[str, Any]]:
    """Return samples like those that llm-foundry's converters and other tools write."""
    rng = np.random.default_rng(0)
    samples = []
    for number in range(count):
        ids = rng.integers(0, 60_000, LENGTH).astype(dtype)
        whole = {
            "attention_mask": np.ones(LENGTH, np.uint8),
            "id": number,
            "text": "x" * (number % 7),
            "tokens": ids.tobytes() if columns["tokens"] == "bytes" else ids,
        }
        samples.append({name: whole[name] for name in columns})
    return samples


def write(
    root: Path, columns: dict[str, str], samples: list[dict[str, Any]], **settings: Any
) -> Path:
    usual = {"size_limit": 1000, "hashes": ["xxh128"]}
    with streaming.MDSWriter(out=str(root), columns=columns, **(usual | settings)) as writer:
        for sample in samples:
            writer.write(sample)
    return root


def opened(root: Path, **settings: Any) -> StreamingTokenDataset:
    usual = {"split": None, "batch_size": 5, "dp_rank": 0, "dp_world_size": 1}
    return StreamingTokenDataset(local=root, **(usual | settings))


def ours(root: Path, **settings: Any) -> list[list[int]]:
    loader = StreamingTokenLoader(opened(root, **settings))
    return [row for batch in loader for row in batch["tokens"].tolist()]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # stock's files
@pytest.mark.parametrize(
    ("columns", "dtype", "named", "compression"),
    [
        (BYTES, "int64", "int64", None),
        (BYTES, "uint16", "uint16", "zstd:3"),
        ({"tokens": "ndarray:int32"}, "int32", None, None),
        ({"tokens": "ndarray"}, "uint16", None, "zstd:3"),
        ({"tokens": f"ndarray:int64:{LENGTH}"}, "int64", None, None),
        (MIXED, "int32", None, "zstd:3"),
        (MIXED | {"tokens": "bytes"}, "int64", "int64", None),
        (MIXED | {"tokens": f"ndarray:uint32:{LENGTH}"}, "uint32", None, "zstd:3"),
    ],
)
def test_the_samples_are_those_that_stock_reads(
    tmp_path, columns, dtype, named, compression
) -> None:
    root = write(tmp_path / "set", columns, samples_of(columns, dtype), compression=compression)
    assert len(list(root.glob("shard.*"))) > 1
    assert ours(root, token_dtype=named) == ours(root, token_dtype=named, sequence_length=LENGTH)
    flat = np.array(ours(root, token_dtype=named)).reshape(-1)
    longer = np.array(ours(root, token_dtype=named, sequence_length=20)).reshape(-1)
    assert (longer == flat[: len(longer)]).all()
    stock = streaming.StreamingDataset(
        remote=str(root), local=str(tmp_path / "stock"), batch_size=1
    )
    expected = [
        np.frombuffer(stock[number]["tokens"], dtype).tolist()
        if columns["tokens"] == "bytes"
        else stock[number]["tokens"].tolist()
        for number in range(COUNT)
    ]
    assert flat.reshape(COUNT, LENGTH).tolist() == expected


def test_what_is_unknown_is_said(tmp_path) -> None:
    root = write(tmp_path / "set", BYTES, samples_of(BYTES, "int64"))
    said = " ".join(opened(root, token_dtype="int64").unknown)
    for words in ("end-of-text id", "one length", "type of an id, taken as int64", "hash"):
        assert words in said


def test_masks_of_a_set_whose_end_the_user_names(tmp_path) -> None:
    samples = [{"tokens": np.array([1, 2, 9, 3, 4, 5, 6, 9], np.int64).tobytes()}] * 5
    root = write(tmp_path / "set", BYTES, samples)
    dataset = opened(
        root, token_dtype="int64", batch_size=2, eot_id=9, extras=["position_ids", "cu_seqlens"]
    )
    batch = next(iter(StreamingTokenLoader(dataset)))
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 4]] * 2
    assert batch["cu_seqlens"].tolist() == [0, 3, 8, 11, 16]


def test_an_end_of_text_that_cannot_be_is_refused(tmp_path, open_raw) -> None:
    samples = [{"tokens": np.array([1, 2, 9, 3], np.uint16).tobytes()}] * 5
    root = write(tmp_path / "set", BYTES, samples)
    with pytest.raises(UsageError, match="`eot_id` is 70000, and the ids .* uint16, 0 to 65,535"):
        ours(root, token_dtype="uint16", eot_id=70_000)
    with pytest.raises(UsageError, match="`eot_id` is -1"):
        ours(root, token_dtype="uint16", eot_id=-1)
    with pytest.raises(UsageError, match="`eot_id` is 5, and the dataset says that 99 ends"):
        open_raw(eot_id=5)
    assert open_raw(eot_id=99).eot_id == 99


@pytest.mark.parametrize(
    ("columns", "named", "said"),
    [
        (BYTES, None, "Pass it as token_dtype= .*--dtype.*: int64"),
        (BYTES, "float32", "may be uint16"),
        (BYTES, "int32", r"shard.*64 bits and not .*Pass int64 as token_dtype="),
        (BYTES, "uint16", r"shard.*64 bits and not .*Pass int64 as token_dtype="),
        ({"tokens": "ndarray:int64"}, "int32", "says int64"),
    ],
)
def test_a_type_of_ids_that_is_missing_or_wrong_is_refused(tmp_path, columns, named, said) -> None:
    samples = samples_of(columns, "int64")
    root = write(tmp_path / "set", columns, samples, compression="zstd:3")
    with pytest.raises(UsageError, match=said):
        ours(root, token_dtype=named)


@pytest.mark.parametrize("at", [3, COUNT - 2])
@pytest.mark.parametrize("columns", [BYTES, MIXED, {"tokens": "ndarray"}])
def test_samples_that_vary_are_refused_by_shard_and_sample(tmp_path, columns, at) -> None:
    samples = samples_of(columns, "int32")
    samples[at]["tokens"] = samples[at]["tokens"][:-4]
    root = write(tmp_path / "set", columns, samples)
    with pytest.raises(
        CorruptDatasetError, match=r"shard\.0000\d\.mds.*sample \d+ (holds|differs)"
    ):
        ours(root, token_dtype="int32" if columns is BYTES else None)


def test_a_shard_of_another_length_is_refused(tmp_path) -> None:
    samples = samples_of(BYTES, "int64")
    shards = []
    shorter = [{"tokens": sample["tokens"][:-8]} for sample in samples]
    for name, chosen in (("a", samples), ("b", shorter)):
        root = write(tmp_path / name, BYTES, chosen, size_limit=1 << 20)
        (entry,) = json.loads((root / "index.json").read_text())["shards"]
        entry["raw_data"]["basename"] = f"{name}.mds"
        (tmp_path / f"{name}.mds").write_bytes((root / "shard.00000.mds").read_bytes())
        shards.append(entry)
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    with pytest.raises(CorruptDatasetError, match=r"b\.mds.*8 int64 ids"):
        ours(tmp_path, token_dtype="int64")


@pytest.mark.parametrize("columns", [{"text": "str"}, {"tokens": "str"}, {"tokens": "pkl"}])
def test_sets_without_token_ids_are_refused(tmp_path, columns) -> None:
    (name,) = columns
    root = write(tmp_path / "set", columns, [{name: "text"}] * 3)
    with pytest.raises((CorruptDatasetError, NotADatasetError), match="tokens|encoding"):
        ours(root)


@pytest.mark.parametrize("place", [0, 5, 9, 80, 204, 206])
def test_a_shard_that_lies_is_refused(tmp_path, place) -> None:
    """A count, an offset and a sample's own size are checked before ids are read."""
    root = write(tmp_path / "set", BYTES, samples_of(BYTES, "int64"), size_limit=1 << 20, hashes=[])
    (path,) = root.glob("shard.*")
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(CorruptDatasetError, match=r"shard\.00000\.mds"):
        ours(root, token_dtype="int64")


@pytest.mark.parametrize(
    ("encoding", "compression", "dtype"),
    [("ndarray:int64", None, None), ("ndarray:uint16:8", "zstd", None), ("bytes", "gz", "int64")],
)
def test_documents_of_such_a_set_can_be_imported(tmp_path, encoding, compression, dtype) -> None:
    """Documents continue from shard to shard; the last one, without an end, counts too."""
    documents = [[length] * length for length in range(1, 43)]
    ids = [token for document in documents for token in [*document, 99]][:-1]
    assert len(ids) % 8 == 0
    rows = np.array(ids, "u2" if "uint16" in encoding else "i8").reshape(-1, 8)
    samples = [{"tokens": row.tobytes() if encoding == "bytes" else row} for row in rows]
    write(tmp_path, {"tokens": encoding}, samples, compression=compression, size_limit=600)
    chosen = ReadOptions(ids=IdOptions(set_format="mds", eot_id=99, vocab_size=100, dtype=dtype))
    files = sorted(tmp_path.glob("*.mds*"))
    assert len(files) > 3
    found = [
        document.tolist()
        for file in files
        for batch in format_of(str(file), chosen).read(file, chosen)
        for encoded in [IdsAsTheyAre().encode(batch.texts)]
        for document in np.split(encoded.ids, encoded.offsets[1:-1])
    ]
    assert found == documents
    files[1].write_bytes(files[1].read_bytes()[:-1])
    with pytest.raises(SourceError, match="bytes, the index says"):
        list(format_of(str(files[1]), chosen).read(files[1], chosen))
