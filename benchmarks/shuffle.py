"""The cost of a global shuffle: a run with it beside one without, the second phase beside `cp`.

The second phase compresses, `cp` does not. So its limit stands beside it: as many processes
that read the raw shards, compress, hash and write them, and do nothing else. With `--terashuf` a
run on JSON Lines is compared with that program and an unshuffled run on what it wrote. A shuffled
run does all that an unshuffled one does, so the ratio has a limit, which is printed beside it:
that of a shuffle that takes no time.

The plot shows how its order compares with a permutation drawn by NumPy: how far neighbours of the
sources lie from each other in the dataset, and how the sources mix in windows of it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks import common
from benchmarks.make_corpus import make_corpus
from streaming_ext.format.compression import Compression, decompress
from streaming_ext.format.reading import read_manifest, read_record
from streaming_ext.format.schema import content_hash
from streaming_ext.format.shuffled import document_keys
from streaming_ext.store import LocalStorage

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DOCUMENT_BYTES = 33  # of a document in a run, beside its ids
_ID_BYTES = 2
_FLAGS = ("-std=c++11", "-O3")  # of terashuf's Makefile
_SOURCES, _DOCUMENTS, _WINDOW = 8, 20_000, 200  # of the plot


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=1000, help="text of the corpus")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--scratch", type=Path, default=common.CACHE / "scratch")
    parser.add_argument("--options", nargs="*", default=[], help="of `shardmill shard`, for all")
    parser.add_argument("--terashuf", type=Path, help="its program, or the folder of its source")
    parser.add_argument("--terashuf-memory", type=float, default=4.0, help="GB, 4 as it has it")
    parser.add_argument("--plot", type=Path, help="make this picture, and measure nothing")
    parser.add_argument("--result", type=Path, help="file to keep the result in, as JSON")
    args = parser.parse_args()
    if args.plot:
        plot(args.plot)
        return
    args.tokenizer = args.tokenizer or common.default_tokenizer()
    found = measure(args)
    if args.terashuf:
        found["terashuf"] = beside_terashuf(args, _corpus(args))
    common.save(args.result, **found)


def _corpus(args: argparse.Namespace) -> list[Path]:
    return make_corpus(
        args.scratch / "shuffle-corpus",
        files=args.files,
        megabytes=args.megabytes / args.files,
        share=0.005,
    )


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Both runs in alternating rounds; returns all figures, in seconds and shares."""
    files = _corpus(args)
    output = args.scratch / "shuffle-output"
    merge: list[float] = []
    copied: list[float] = []
    limit: list[float] = []
    memory: list[int] = []

    backed = int(4e6 * args.megabytes)

    def run(*options: str) -> common.Sharded:
        common.back_memory(backed)
        return common.shard(
            files, output, args.tokenizer, *args.options, *options, workers=args.workers
        )

    plain: list[float] = []

    def shuffled() -> float:
        done = run("--shuffle", "documents", "--compression", "none")
        plain.append(done.record["merge_seconds"])
        done = run("--shuffle", "documents")
        size = sum(
            _ID_BYTES * part["tokens"] + _DOCUMENT_BYTES * part["documents"]
            for part in done.record["parts"]
        )
        merge.append(done.record["merge_seconds"])
        common.back_memory(backed)
        copied.append(copy_seconds(size, args.scratch))
        common.back_memory(backed)
        limit.append(packing_seconds(output, args.scratch, workers=args.workers))
        memory.append(max(size for samples in done.measured.worker_memory() for _, size in samples))
        return done.seconds

    contenders = {"unshuffled": lambda: run().seconds, "shuffled": shuffled}
    seconds = common.rounds(contenders, args.rounds)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    figures = {
        "times as long": middle["shuffled"] / middle["unshuffled"],
        "second phase, s": statistics.median(merge),
        "cp of the same bytes, s": statistics.median(copied),
        "reading, packing and writing alone, s": statistics.median(limit),
        "second phase, of cp's rate": statistics.median(copied) / statistics.median(merge),
        "second phase without compression, of cp's rate": statistics.median(copied)
        / statistics.median(plain),
        "its limit, of cp's rate": statistics.median(copied) / statistics.median(limit),
        "second phase, of its limit's rate": statistics.median(limit) / statistics.median(merge),
        "largest worker, MiB": max(memory) / 2**20,
    }
    for name, value in {**middle, **figures}.items():
        print(f"| {name} | {value:.2f} |")
    return {
        "seconds": seconds,
        "merge": merge,
        "merge, not compressed": plain,
        "cp": copied,
        "limit": limit,
        "figures": figures,
    }


def plot(picture: Path) -> None:
    """Draw the order by key beside a permutation by NumPy."""
    from matplotlib.figure import Figure

    sources = np.repeat(np.arange(_SOURCES), _DOCUMENTS // _SOURCES)
    places = np.tile(np.arange(_DOCUMENTS // _SOURCES), _SOURCES)
    orders = {
        "shardmill --shuffle documents": np.argsort(document_keys(0, sources, places)),
        "NumPy's permutation": np.random.default_rng(0).permutation(_DOCUMENTS),
        "sources in order": np.arange(_DOCUMENTS),
    }
    figure = Figure(figsize=(9, 5.6), layout="constrained")
    panels = figure.subplots(2, len(orders), sharex="row", sharey="row")
    for column, (name, order) in enumerate(orders.items()):
        _draw_displacement(panels[0][column], order)
        _draw_mix(panels[1][column], sources[order])
        panels[0][column].set_title(name, fontsize=10)
    panels[0][0].set_ylabel("pairs of neighbours")
    panels[1][0].set_ylabel("windows")
    figure.savefig(picture, dpi=110)


def _draw_displacement(axes: Axes, order: npt.NDArray[np.int64]) -> None:
    distances = np.abs(np.diff(np.argsort(order)))
    edges = np.linspace(0, _DOCUMENTS, 41)
    axes.hist(distances, edges, color="#4a8fd4")
    expected = (edges[1:] - edges[:-1]) * 2 * (_DOCUMENTS - (edges[1:] + edges[:-1]) / 2)
    axes.plot((edges[1:] + edges[:-1]) / 2, expected / _DOCUMENTS, color="#e08d3c", linewidth=1)
    axes.set_yscale("log")
    axes.set_xlabel("distance of neighbours", fontsize=9)


def _draw_mix(axes: Axes, sources: npt.NDArray[np.int64]) -> None:
    shares = (sources.reshape(-1, _WINDOW) == 0).sum(axis=1)
    axes.hist(shares, np.arange(-0.5, _WINDOW + 2, 2), color="#3aa394")
    axes.set_yscale("log")
    axes.set_xlabel(
        f"documents of the first of {_SOURCES} sources\nin a window of {_WINDOW}", fontsize=9
    )


def copy_seconds(size: int, folder: Path) -> float:
    """Measure the seconds of `cp` until a file of `size` bytes is on the disk."""
    source, target = folder / "cp-source", folder / "cp-target"
    source.write_bytes(np.random.default_rng(0).bytes(size))
    subprocess.run(["sync", source], check=True)
    began = time.monotonic()
    subprocess.run(["cp", source, target], check=True)
    subprocess.run(["sync", target], check=True)
    seconds = time.monotonic() - began
    source.unlink()
    target.unlink()
    return seconds


def packing_seconds(dataset: Path, folder: Path, *, workers: int) -> float:
    """Measure processes that read, hash, compress and write the raw shards of a dataset.

    Their start is not counted; the raw shards are as lately written as runs are when they are read.

    Args:
        dataset: as it was published.
        folder: the folder to work in.
        workers: the number of processes.
    """
    storage = LocalStorage(dataset)
    manifest = read_manifest(storage)
    raw = folder / "raw-shards"
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir()
    paths = []
    for part in manifest.parts:
        for split, held in read_record(storage, part.part).splits.items():
            for shard in held.shards:
                data = (dataset / split / shard.name).read_bytes()
                if shard.zip_name is not None:
                    data = decompress(
                        data, codec=manifest.spec.compression, raw_size=shard.raw_bytes
                    )
                paths.append(raw / f"{split}-{shard.raw_name.replace('/', '-')}")
                paths[-1].write_bytes(data)
    os.sync()
    seconds = common.pool_seconds(partial(_pack, manifest.spec.compression), paths, workers)
    shutil.rmtree(raw)
    return seconds


def _pack(codec: str, path: Path) -> None:
    data = path.read_bytes()
    content_hash(data)
    if compression := Compression.parse(codec):
        data = compression.compress(data)
        content_hash(data)
    with path.with_suffix(".packed").open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def beside_terashuf(args: argparse.Namespace, files: list[Path]) -> dict[str, Any]:
    """Both ways in alternating rounds; prints and returns seconds and memory, in bytes."""
    program = built(args.terashuf, args.scratch)
    folder = args.scratch / "shuffle-lines"
    lines = [common.as_lines(file, folder / f"{file.stem}.jsonl") for file in files]
    shuffled, output = args.scratch / "terashuf.jsonl", args.scratch / "shuffle-output"
    memory: dict[str, list[int]] = {"terashuf": [], "shuffled": [], "unshuffled": []}

    def terashuf() -> float:
        script = f'cat "$@" | TMPDIR={args.scratch} MEMORY={args.terashuf_memory} {program}'
        done = common.run(["sh", "-c", f"{script} >{shuffled}", "sh", *lines], interval=0.05)
        found = [samples for name, samples in done.memory.items() if str(program) in name]
        memory["terashuf"].append(max(size for samples in found for _, size in samples))
        return done.seconds

    def run(kind: str, sources: list[Path], *options: str) -> float:
        done = common.shard(
            sources, output, args.tokenizer, *args.options, *options, workers=args.workers
        )
        memory[kind].append(
            sum(max(size for _, size in samples) for samples in done.measured.worker_memory())
        )
        return done.seconds

    contenders = {
        "terashuf": terashuf,
        "unshuffled": lambda: run("unshuffled", [shuffled], "--part-size", "128MiB"),
        "shuffled": lambda: run("shuffled", lines, "--shuffle", "documents"),
    }
    seconds = common.rounds(contenders, args.rounds)
    shuffled.unlink()
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    both = middle["terashuf"] + middle["unshuffled"]
    memory["both"] = [max(*memory["terashuf"], *memory["unshuffled"])]  # one after the other
    for name, value in {**middle, "both": both}.items():
        words = "terashuf, then unshuffled" if name == "both" else name
        print(f"| {words}, JSON Lines | {value:.2f} s | {max(memory[name]) / 2**20:.0f} MiB |")
    times, limit = both / middle["shuffled"], both / middle["unshuffled"]
    print(f"| terashuf and unshuffled, times shuffled | {times:.2f} | |")
    print(f"| the same, were our shuffle to cost nothing | {limit:.2f} | |")
    return {"seconds": seconds, "memory": memory, "times": times, "limit": limit}


def built(path: Path, folder: Path) -> Path:
    """The program at a path, or what a compiler makes of the source in a folder.

    Raises:
        SystemExit: there is no compiler.
    """
    if path.is_file():
        return path.resolve()
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise SystemExit("no compiler for terashuf: install g++, or name the program itself")
    program = folder.resolve() / "terashuf"
    subprocess.run([compiler, *_FLAGS, "-o", program, path / "terashuf.cc"], check=True)
    return program


if __name__ == "__main__":
    main()
