"""The cost of leaving out copies: runs with `--deduplicate` beside runs without, in alternation.

On a corpus without copies, and on the same one of which three documents of ten are copies of
others, spread over all files. Whatever leaves out copies has to know of all texts before it packs
tokens: the limit is a run without, and as many processes that hash the texts, write the ids to
scratch and read them back, each hashed on its way. Seconds are those of the whole command, as
somebody waits for it; beside them stand those from the first file to the published manifest.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from benchmarks import common
from benchmarks.make_corpus import make_corpus

_COPIES = 0.3
_PIECE_BYTES = 2**23
_ID_BYTES = 2


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=1000, help="text of each corpus")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--scratch", type=Path, default=common.CACHE / "scratch")
    parser.add_argument("--options", nargs="*", default=[], help="of `shardmill shard`, for all")
    parser.add_argument("--result", type=Path, help="file to keep the result in, as JSON")
    args = parser.parse_args()
    args.tokenizer = args.tokenizer or common.default_tokenizer()
    common.save(args.result, **measure(args))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All runs in alternating rounds; returns seconds and ratios."""
    each = args.megabytes / args.files
    plain = make_corpus(
        args.scratch / "deduplicate-corpus", files=args.files, megabytes=each, share=0.005
    )
    copies = with_copies(plain, args.scratch / "deduplicate-copies")
    output = args.scratch / "deduplicate-output"
    memory: list[int] = []

    def seconds(name: str, files: list[Path], *options: str) -> float:
        done = common.shard(
            files, output, args.tokenizer, *args.options, *options, workers=args.workers
        )
        memory.append(max(size for samples in done.measured.worker_memory() for _, size in samples))
        if not options:
            texts.append(done.record["text_bytes"])
            ids.append(_ID_BYTES * done.record["tokens"])
        inside.setdefault(name, []).append(done.seconds)
        return done.measured.seconds

    texts: list[int] = []
    ids: list[int] = []
    inside: dict[str, list[float]] = {}
    corpora = {"no copies": plain, "30% copies": copies}
    kinds: dict[str, tuple[str, ...]] = {
        "without": (),
        "exact": ("--deduplicate", "exact"),
        "normalized": ("--deduplicate", "normalized"),
    }
    contenders: dict[str, Callable[[], float]] = {
        name: partial(seconds, name, files, *options)
        for corpus, files in corpora.items()
        for kind, options in kinds.items()
        for name in [f"{corpus}, {kind}"]
    }
    contenders["texts and ids once more"] = lambda: once_more(
        texts[0], ids[0], args.scratch, workers=args.workers
    )
    found = common.rounds(contenders, args.rounds, backed=int(4e6 * args.megabytes))
    middle = {name: statistics.median(values) for name, values in found.items()}
    more = middle.pop("texts and ids once more")
    within = {name: statistics.median(values) for name, values in inside.items()}
    for each_kind in (middle, within):
        each_kind["no copies, limit"] = each_kind["no copies, without"] + more

    def told(kind: dict[str, float], name: str) -> tuple[str, str]:
        without = kind[f"{name.partition(',')[0]}, without"]
        return f"{kind[name]:.2f} s", f"{kind[name] / without:.3f}"

    columns = "run", "whole command", "of a run without", "inside", "of a run without"
    rows = [(name, *told(middle, name), *told(within, name)) for name in middle]
    print(common.table(columns, rows))
    print(f"largest worker: {max(memory) / 2**20:.0f} MiB")
    return {"seconds": found, "inside": inside, "memory": memory}


def once_more(texts: int, ids: int, folder: Path, *, workers: int) -> float:
    """Measure processes that hash texts, and write and read ids, without their start.

    Args:
        texts: bytes of all texts.
        ids: bytes of all ids.
        folder: the folder to write to.
        workers: the number of processes.
    """
    work = partial(_pass, texts // workers, ids // workers, folder)
    return common.pool_seconds(work, range(workers), workers)


def _pass(texts: int, ids: int, folder: Path, number: int) -> None:
    piece = np.random.default_rng(number).bytes(_PIECE_BYTES)
    for _ in range(texts // _PIECE_BYTES):
        xxhash.xxh3_128_digest(piece)
    path = folder / f"once-more-{number}"
    with path.open("wb", buffering=0) as out:
        for _ in range(ids // _PIECE_BYTES):
            out.write(piece)
            xxhash.xxh3_64_digest(piece)
    read = bytearray(_PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(read):
            xxhash.xxh3_64_digest(read)
    path.unlink()


def with_copies(files: list[Path], folder: Path) -> list[Path]:
    """The same files, with some documents replaced by others from anywhere."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / file.name for file in files]
    if all(path.exists() for path in paths):
        return paths
    texts = pa.concat_arrays([pq.read_table(file)["text"].combine_chunks() for file in files])
    drawn = np.random.default_rng(0)
    chosen = np.arange(len(texts))
    replaced = drawn.random(len(texts)) < _COPIES
    originals = np.flatnonzero(~replaced)
    chosen[replaced] = drawn.choice(originals, int(replaced.sum()))
    first = 0
    for file, path in zip(files, paths, strict=True):
        rows = pq.ParquetFile(file).metadata.num_rows
        table = pa.table({"text": texts.take(pa.array(chosen[first : first + rows]))})
        pq.write_table(table, path, compression="zstd", row_group_size=1000)
        first += rows
    return paths


if __name__ == "__main__":
    main()
