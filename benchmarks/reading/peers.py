"""The rate of one rank: Shardmill beside stock StreamingDataLoader, litData and a bare gather.

Run: python -m benchmarks.reading.peers [--folder FOLDER] [--stock-batches N]
litData is measured where it is installed. Every reader gets the same random ids from a warm page
cache, batch 16 by 2048, shuffled, in this process and with one worker; best of three. The readers
in this process take turns, so that all of them meet the machine in the same state. The limit of
masks is the bare gather, and filling as many bytes as the masks have.
"""

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from streaming_ext.format.layout import MANIFEST
from streaming_ext.format.manifest import Manifest, SplitSummary
from streaming_ext.format.mds import MdsFormat
from streaming_ext.format.reading import manifest_of
from streaming_ext.format.schema import FileRecord, content_hash, to_json
from streaming_ext.format.shard import Shard
from streaming_ext.format.spec import DatasetSpec, TokenizerIdentity
from streaming_ext.training.stock import streaming

BATCH, LENGTH, EOT = 16, 2048, 50256
SHARDS, SAMPLES = 16, 8192


def write(root: Path, samples: int = SAMPLES) -> None:
    """A published dataset of random ids: 16 shards of 32 MB, a document about every 700 ids."""
    form = MdsFormat(sequence_length=LENGTH, dtype="uint16", shard_size=1 << 26, compression="none")
    rng = np.random.default_rng(0)
    entries = []
    (root / "train/00000").mkdir(parents=True)
    for number in range(SHARDS):
        tokens = rng.integers(0, EOT, (samples, LENGTH), dtype=np.uint16)
        tokens[rng.random(tokens.shape) < 1 / 700] = EOT
        raw = form.header(samples) + tokens.tobytes()
        name = form.shard_name("train", 0, number)
        (root / "train" / name).write_bytes(raw)
        shard = Shard(
            samples=samples, raw_name=name, raw_bytes=len(raw), raw_hash=content_hash(raw)
        )
        entries.append(shard)
    data = form.index(entries)
    (root / "train/index.json").write_bytes(data)
    tokenizer = TokenizerIdentity(
        kind="tiktoken", name="gpt2", vocab_size=EOT + 1, eot_id=EOT, eot_token="", fingerprint="x"
    )
    spec = DatasetSpec(
        text_column="text",
        sequence_length=LENGTH,
        holdout_fraction=0,
        holdout_seed=0,
        shard_size=1 << 26,
        compression="none",
        tokenizer=tokenizer,
    )
    summary = SplitSummary(
        index=FileRecord.of("train/index.json", data),
        documents=0,
        tokens=0,
        padding=0,
        samples=SHARDS * samples,
        shards=SHARDS,
    )
    manifest = Manifest(spec=spec, parts=(), splits={"train": summary}, tokenizer_files=())
    (root / MANIFEST).write_bytes(to_json(manifest))


def rate(batches: Iterator[Any], count: int) -> float:
    """Measure million tokens per second over `count` batches, after a tenth as many to warm up."""
    for _ in range(count // 10 + 1):
        next(batches)
    started = time.perf_counter()
    for _ in range(count):
        next(batches)
    return count * BATCH * LENGTH / (time.perf_counter() - started) / 1e6


def endless(make: Callable[[], Any]) -> Iterator[Any]:
    """Epoch after epoch."""
    loader = make()
    while True:
        yield from loader


def shardmill(root: Path, workers: int, extras: tuple[str, ...] = ()) -> Iterator[Any]:
    """The loader of this project."""
    dataset = StreamingTokenDataset(
        local=root, batch_size=BATCH, shuffle=True, extras=extras, dp_rank=0, dp_world_size=1
    )
    return endless(lambda: StreamingTokenLoader(dataset, num_workers=workers))


def shards(root: Path) -> Iterator[bytes]:
    """The ids of each shard, without its head."""
    samples = manifest_of((root / MANIFEST).read_bytes(), where=MANIFEST).splits["train"].samples
    for path in sorted((root / "train/00000").iterdir()):
        yield path.read_bytes()[-samples // SHARDS * LENGTH * 2 :]


def gather(root: Path) -> Iterator[Any]:
    """Rows at random from one flat memory map, widened to int64: the least that can be done."""
    flat = root / "flat.bin"
    if not flat.exists():
        with flat.open("wb") as file:
            for shard in shards(root):
                file.write(shard)
    rows = np.memmap(flat, np.uint16, "r").reshape(-1, LENGTH)
    ids = np.random.default_rng(1).permutation(len(rows)).reshape(-1, BATCH)
    while True:
        for batch in ids:
            yield torch.from_numpy(np.take(rows, batch, axis=0).astype(np.int64))


def gather_and_fill(root: Path) -> Iterator[Any]:
    """The bare gather, and what masks write at least: targets, position_ids and document_ids."""
    arrays = [np.empty((BATCH, LENGTH), kind) for kind in (np.int64, np.int32, np.int32)]
    for number, batch in enumerate(gather(root)):
        for array in arrays:
            array.fill(number)
        yield batch


def stock(root: Path, workers: int) -> Iterator[Any]:
    """mosaicml-streaming's own dataset and loader on the same shards."""
    dataset = streaming.StreamingDataset(
        local=str(root / "train"), shuffle=True, batch_size=BATCH, num_canonical_nodes=1
    )
    return endless(
        lambda: streaming.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers)
    )


def litdata(root: Path, workers: int) -> Iterator[Any]:
    """litData's TokensLoader on its own format, uint16 out."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
    from litdata.streaming.writer import BinaryWriter

    folder = root / "litdata"
    if not folder.exists():
        folder.mkdir()
        loader = TokensLoader(block_size=LENGTH)
        writer = BinaryWriter(str(folder), chunk_size=SAMPLES * LENGTH, item_loader=loader)
        for number, shard in enumerate(shards(root)):
            ids = np.frombuffer(shard, np.uint16)
            writer.add_item(number, torch.from_numpy(ids.copy()))
        writer.done()
        writer.merge()
    dataset = StreamingDataset(
        str(folder), item_loader=TokensLoader(block_size=LENGTH), shuffle=True
    )
    return endless(lambda: StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers))


def main() -> None:
    """Measure all, print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of each of 16 shards")
    parser.add_argument("--batches", type=int, default=3000)
    parser.add_argument("--stock-batches", type=int, default=100)
    parser.add_argument("--only", nargs="+", metavar="READER", help="some of them, by name")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    root = arguments.folder or Path(tempfile.mkdtemp(prefix="shardmill-reading-"))
    if not (root / MANIFEST).exists():
        write(root, arguments.samples)
    masks = ("targets", "position_ids", "document_ids")
    varlen = ("cu_seqlens", "max_seqlen")
    many = arguments.batches
    runs: dict[str, tuple[Callable[[], Iterator[Any]], int]] = {
        "bare gather, in process": (lambda: gather(root), many),
        "shardmill, in process": (lambda: shardmill(root, 0), many),
        "shardmill, 1 worker": (lambda: shardmill(root, 1), many),
        "shardmill, 2 workers": (lambda: shardmill(root, 2), many),
        "shardmill with cu_seqlens, in process": (lambda: shardmill(root, 0, varlen), many),
        "shardmill with cu_seqlens, 1 worker": (lambda: shardmill(root, 1, varlen), many),
        "shardmill with targets, in process": (lambda: shardmill(root, 0, masks[:1]), many),
        "shardmill with masks, in process": (lambda: shardmill(root, 0, masks), many),
        "shardmill with masks, 1 worker": (lambda: shardmill(root, 1, masks), many),
        "limit of masks, in process": (lambda: gather_and_fill(root), many),
        "stock, in process": (lambda: stock(root, 0), arguments.stock_batches),
    }
    if find_spec("litdata") is None:
        print("litdata is not installed: left out")
    else:
        runs["litdata, in process"] = (lambda: litdata(root, 0), many // 3)
        runs["litdata, 1 worker"] = (lambda: litdata(root, 1), many // 3)
    if arguments.only:
        runs = {name: run for name, run in runs.items() if name in arguments.only}
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _attempt in range(3):
        for name, (make, count) in runs.items():
            batches = make()
            rates[name].append(rate(batches, count))
            close = getattr(batches, "close", None)
            if close is not None:
                close()
    results = {name: max(values) for name, values in rates.items()}
    for name, values in rates.items():
        print(f"{name:40s} {max(values):6.0f} million tokens/s, of {sorted(map(round, values))}")
    print(
        json.dumps(
            {
                "machine": platform.machine(),
                "python": platform.python_version(),
                "torch": torch.__version__,
                "mtok_per_s": results,
            }
        )
    )


if __name__ == "__main__":
    main()
