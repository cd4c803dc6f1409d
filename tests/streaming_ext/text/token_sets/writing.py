"""Small files of token sets, written by hand from their formats, and a reader for tests."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from streaming_ext.format.spec import IdOptions, ReadOptions, TokenSetName
from streaming_ext.text.formats import format_of
from streaming_ext.text.token_sets.token_set import IdsAsTheyAre
from streaming_ext.training.stock import streaming

EOT = 9
Documents = list[list[int]]


def options(name: TokenSetName, **more: Any) -> ReadOptions:
    return ReadOptions(ids=IdOptions(set_format=name, eot_id=EOT, vocab_size=10, **more))


def read(
    path: Path, chosen: ReadOptions, span: tuple[int, int] | None = None, batch_bytes: int = 20
) -> Documents:
    """Return the documents of a file, read in batches of five ids."""
    found: Documents = []
    row = 0
    for batch in format_of(str(path), chosen).read(
        path, chosen, span=span, batch_bytes=batch_bytes
    ):
        encoded = IdsAsTheyAre().encode(batch.texts)
        assert batch.rows.tolist() == list(range(row, row + batch.num_rows))
        assert batch.nulls == 0
        row += batch.num_rows
        found += [ids.tolist() for ids in np.split(encoded.ids, encoded.offsets[1:-1])]
    return found


def write_llmc(path: Path, ids: list[int]) -> Path:
    head = np.zeros(256, "<i4")
    head[:3] = 20240520, 1, len(ids)
    path.write_bytes(head.tobytes() + np.array(ids, "<u2").tobytes())
    return path


def write_megatron(prefix: Path, ids: list[int], starts: list[int]) -> Path:
    """Write documents that begin at some positions, each of them one sequence."""
    lengths = np.diff([*starts, len(ids)])
    head = b"MMIDIDX\0\0" + np.uint64(1).tobytes() + bytes([8])
    head += np.array([len(starts), len(starts) + 1], "<u8").tobytes()
    offsets = 2 * np.array(starts)
    numbers = np.arange(len(starts) + 1)
    chunks = (lengths.astype("<i4"), offsets.astype("<i8"), numbers.astype("<i8"))
    prefix.with_suffix(".idx").write_bytes(head + b"".join(each.tobytes() for each in chunks))
    np.array(ids, "<u2").tofile(prefix.with_suffix(".bin"))
    return prefix.with_suffix(".bin")


def write_mds(folder: Path, *, samples: int = 3, **more: Any) -> Path:
    """Write a shard of three samples, and an index that may say something else."""
    columns = {"tokens": "ndarray:uint16:4"}
    with streaming.MDSWriter(out=str(folder), columns=columns, exist_ok=True) as writer:
        for ids in ([1, 2, 3, 9], [4, 5, 6, 9], [7, 8, 1, 9]):
            writer.write({"tokens": np.array(ids, "<u2")})
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["samples"] = samples
    index["shards"][0]["raw_data"] |= more
    (folder / "index.json").write_text(json.dumps(index))
    return folder / "shard.00000.mds"


def bare(ids: list[int], dtype: str = "<u2", name: str = "x.bin") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        np.array(ids, dtype).tofile(folder / name)
        return folder / name

    return make


def megatron(folder: Path) -> Path:
    return write_megatron(folder / "x", [1, 2, 9, 3, 4], [0, 3])


def llmc(folder: Path) -> Path:
    return write_llmc(folder / "x_000.bin", [9, 1, 2])
