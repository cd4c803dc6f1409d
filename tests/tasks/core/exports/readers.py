"""Readers of exports as trainers read them, written from the descriptions of the formats."""

import csv
import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from tests.streaming_ext.build import EOT
from tests.tasks.core.exports.exporting import PARTS, Documents

Reader = Callable[[Path, str], list[list[int]]]


def cut(ids: np.ndarray, eot: int = EOT) -> list[list[int]]:
    """Return the documents of a stream, each with the end-of-text id after it."""
    found: list[list[int]] = [[]]
    for token in ids.tolist():
        found[-1].append(token)
        if token == eot:
            found.append([])
    assert found.pop() == []
    return found


def cut_before(ids: np.ndarray, eot: int = EOT) -> list[list[int]]:
    """Return the documents of a stream; the end-of-text id before each is moved to its end."""
    assert ids[0] == eot
    return cut(np.roll(ids, -1), eot)


def read_nanogpt(root: Path, split: str) -> list[list[int]]:
    return cut(np.fromfile(root / {"train": "train.bin", "holdout": "val.bin"}[split], "<u2"))


def read_llmc_file(file: Path) -> np.ndarray:
    """Read a file as `llmc/dataloader.h` does: the size must be exact."""
    head = np.fromfile(file, "<i4", 256)
    dtype = {(20240520, 1): "<u2", (20240801, 7): "<u4"}[tuple(head[:2].tolist())]
    assert not head[3:].any()
    ids = np.fromfile(file, dtype, offset=1024)
    assert file.stat().st_size == 1024 + int(head[2]) * np.dtype(dtype).itemsize
    return ids


def read_llmc(root: Path, split: str, *, prefix: str = "text", eot: int = EOT) -> list[list[int]]:
    name = {"train": "train", "holdout": "val"}[split]
    files = sorted(root.glob(f"{prefix}_{name}_*.bin"))
    return cut_before(np.concatenate([read_llmc_file(file) for file in files]), eot)


def read_megatron_pair(prefix: Path) -> list[list[int]]:
    """Read a pair of files as `IndexedDataset` does."""
    index = Path(f"{prefix}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    version, code, sequences, documents = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    dtype = {8: np.dtype("<u2"), 4: np.dtype("<i4")}[code]
    lengths = np.frombuffer(index, "<i4", sequences, 34)
    offsets = np.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
    numbers = np.frombuffer(index, "<i8", documents, 34 + 12 * sequences)
    assert len(index) == 34 + 12 * sequences + 8 * documents
    assert numbers.tolist() == list(range(sequences + 1))
    assert offsets.tolist() == (np.cumsum([0, *lengths[:-1]]) * dtype.itemsize).tolist()
    data = Path(f"{prefix}.bin").read_bytes()
    assert len(data) == int(lengths.sum()) * dtype.itemsize
    return [
        np.frombuffer(data, dtype, length, offset).tolist()
        for length, offset in zip(lengths.tolist(), offsets.tolist(), strict=True)
    ]


def read_megatron(root: Path, split: str) -> list[list[int]]:
    files = sorted((root / split).glob("*.bin"))
    return [ids for file in files for ids in read_megatron_pair(file.with_suffix(""))]


def read_parquet(root: Path, split: str) -> list[list[int]]:
    files = sorted((root / split).glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file)["input_ids"].to_pylist()]


def read_litdata(root: Path, split: str) -> list[list[int]]:
    """Read ids as `TokensLoader` finds them, and by the offsets of the items."""
    index = json.loads((root / split / "index.json").read_text())
    (data_format,) = index["config"]["data_format"]
    dtype = {"no_header_numpy:5": "<u2", "no_header_numpy:6": "<u4"}[data_format]
    found = []
    for chunk in index["chunks"]:
        data = (root / split / chunk["filename"]).read_bytes()
        assert len(data) == chunk["chunk_bytes"]
        (items,) = np.frombuffer(data, "<u4", 1).tolist()
        offsets = np.frombuffer(data, "<u4", items + 1, 4).tolist()
        assert (items, offsets[0], offsets[-1]) == (
            chunk["chunk_size"],
            4 * (items + 2),
            len(data),
        )
        ids = [np.frombuffer(data[start:end], dtype).tolist() for start, end in pairwise(offsets)]
        assert sum(map(len, ids)) == chunk["dim"]
        found += ids
    return found


def read_nanotron(root: Path, split: str) -> list[list[int]]:
    found = []
    for file in sorted((root / split).glob("*.ds")):
        first, count, words = Path(f"{file}.metadata").read_text().splitlines()
        ids = np.fromfile(file, {"2": "<u2", "4": "<u4"}[first.rpartition("|")[2]])
        ends = np.fromfile(f"{file}.index", "<u8")
        assert len(ids) == int(count) == ends[-1]
        assert words == (f"{count} T" if len(ids) < 1000 else f"{len(ids) / 1000:.3g} kT")
        found += [part.tolist() for part in np.split(ids, ends[:-1].astype(int))]
    return found


def read_olmo(root: Path, split: str) -> list[list[int]]:
    found = []
    for file in sorted((root / split).glob("*.npy")):
        with gzip.open(file.with_suffix(".csv.gz"), "rt") as listed:
            rows = list(csv.reader(listed))
        part = int(file.stem[-5:])
        ids = np.fromfile(file, f"<u{file.stat().st_size // int(rows[-1][1])}")
        for start, end, name, source, row in rows:
            assert name.startswith(f"{split}-0000")
            assert source == f"mem://source-{part}.parquet"
            found.append(ids[int(start) : int(end)].tolist())
            assert PARTS[part][int(row)][0] == split
        assert int(rows[-1][1]) == len(ids)
    return found


def read_tars(root: Path, split: str) -> list[dict[str, bytes]]:
    """Return the samples of a split's tars in order, as `webdataset` puts members together.

    Check that the lists for `wids` and Energon name the same tars and count the same samples.
    """
    samples: dict[str, dict[str, bytes]] = {}
    listed = json.loads((root / split / "index.json").read_text())["shardlist"]
    counts = json.loads((root / ".nv-meta/.info.json").read_text())["shard_counts"]
    files = sorted((root / split).glob("*.tar"))
    for file, entry in zip(files, listed, strict=True):
        begins = []
        with tarfile.open(file, format=tarfile.USTAR_FORMAT) as opened:
            for member in opened:
                key, _, field = member.name.partition(".")
                if key not in samples:
                    begins.append(member.offset)
                    samples[key] = {}
                assert list(samples)[-1] == key
                assert field not in samples[key]
                extracted = opened.extractfile(member)
                assert extracted is not None
                samples[key][field] = extracted.read()
            end = opened.offset
        offsets = np.fromfile(f"{file}.idx", "<u8").tolist()
        assert offsets == [*begins, end]
        assert entry == {
            "url": file.name,
            "nsamples": len(begins),
            "filesize": file.stat().st_size,
        }
        assert counts[f"{split}/{file.name}"] == len(begins)
    return list(samples.values())


def array_of(data: bytes) -> np.ndarray:
    """Return the array of a `.npy`, which must be byte for byte what `numpy.save` writes."""
    found: np.ndarray = np.load(io.BytesIO(data))
    again = io.BytesIO()
    np.save(again, found)
    assert again.getvalue() == data
    return found


def read_webdataset(root: Path, split: str) -> list[list[int]]:
    rows = [array_of(sample["npy"]) for sample in read_tars(root, split)]
    assert {row.shape for row in rows} == {(8,)}
    # A lone end-of-text id is padding.
    return [held for held in cut(np.concatenate(rows)) if held != [EOT]]


READERS: dict[str, Reader] = {
    "nanogpt": read_nanogpt,
    "llmc": read_llmc,
    "megatron": read_megatron,
    "parquet": read_parquet,
    "litdata": read_litdata,
    "nanotron": read_nanotron,
    "olmo": read_olmo,
    "webdataset": read_webdataset,
}


def read(name: str, root: Path) -> Documents:
    """Return the documents of each split of an export."""
    return {split: READERS[name](root, split) for split in ("train", "holdout")}
