"""What do packed rows cost: padding, documents cut, planning, opening, and the rate of batches?

Run: python -m benchmarks.reading.packing [--documents 1e8] [--length 2048] [--dataset FOLDER]
         [--rate] [--picture FILE.png [--olmo PYTHON]]
Lengths are log-normal (mean 1,100 tokens) unless a dataset is named. Planning is measured from
arrays of lengths to the file on disk, with the most memory that the process had. `--rate` compares
batches of packed rows with plain ones on the same shards, and those with masks. `--olmo` names an
interpreter that has `ai2-olmo-core`, whose packing is drawn too.
"""

import argparse
import json
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from streaming_ext.reading.documents import Documents, split_documents
from streaming_ext.reading.packing import PackingPlan, plan_groups, write_plan

BLOCK = 1 << 20  # documents made at once
BUFFER = 1000  # documents that TRL packs at once
FILE = 50_000  # documents of a file, which OLMo-core packs by itself


def log_normal(count: int) -> Iterator[Documents]:
    """Documents one behind the other, of web-like lengths."""
    rng = np.random.default_rng(0)
    start = 0
    for first in range(0, count, BLOCK):
        lengths = np.maximum(2, rng.lognormal(6.5, 1.0, min(BLOCK, count - first))).astype(np.int64)
        ends = start + np.cumsum(lengths)
        yield Documents(ends - lengths, lengths)
        start = int(ends[-1])


def of_dataset(folder: Path, split: str) -> list[Documents]:
    """The documents of a published dataset."""
    from streaming_ext.order.settings import OrderSettings
    from streaming_ext.training.arguments import DataLocation
    from streaming_ext.training.opening import open_streams

    (cache,) = open_streams(OrderSettings(split=split), DataLocation(local=folder))
    return list(split_documents(cache).all())


def planned(
    documents: Iterator[Documents] | list[Documents], count: int, length: int
) -> dict[str, float]:
    """Plan, write, open, and look at what came out."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.plan"
        started, used = time.perf_counter(), time.process_time()
        with path.open("wb") as file:
            groups = plan_groups(documents, count=count, tokens=1100 * count, length=length)
            write_plan(file, groups, length=length)
        seconds, cpu = time.perf_counter() - started, time.process_time() - used
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # nothing is mapped yet
        started = time.perf_counter()
        plan = PackingPlan(path, length=length)
        opening = time.perf_counter() - started
        rows = int(plan.bounds[-1])
        tokens = segments = 0
        for group in range(len(plan.bounds) - 1):
            told = plan.rows_of_group(group)
            tokens += int(told.lengths.sum())
            segments += len(told.lengths)
        return {
            "seconds": seconds,
            "cpu_seconds": cpu,
            "opening": opening,
            "rows": rows,
            "padding": 1 - tokens / (rows * length),
            "bytes": path.stat().st_size,
            "peak_bytes": peak,
            "seconds for 1e9 documents": seconds * 1e9 / count,
            "tokens": tokens,
            "pieces": segments,
        }


def by_concatenation(lengths: np.ndarray, length: int) -> tuple[float, float]:
    """Padding, and the share of documents not longer than a row that are cut."""
    ends = np.cumsum(lengths)
    short = lengths <= length
    cut = ((ends - lengths) // length != (ends - 1) // length) & short
    return 0.0, cut.sum() / short.sum()


def by_buffer(lengths: np.ndarray, length: int, buffer: int = BUFFER) -> tuple[float, float]:
    """The same for best fit decreasing in buffers of 1,000 documents, as TRL packs batches."""
    from streaming_ext.reading.packing import pack_group

    rows = tokens = 0
    for first in range(0, len(lengths), buffer):
        some = lengths[first : first + buffer]
        group = pack_group(np.cumsum(some) - some, some, length=length, key=1)
        rows, tokens = rows + len(group.firsts) - 1, tokens + int(some.sum())
    return 1 - tokens / (rows * length), 0.0


def write_dataset(root: Path) -> None:
    """A dataset of 64 MB of random ids whose documents are known."""
    from tests.streaming_ext.build import build

    rng = np.random.default_rng(0)
    lengths = np.maximum(2, rng.lognormal(6.5, 1.0, 30_000)).astype(int)
    documents = [rng.integers(100, 50_000, length, dtype=np.int32) for length in lengths]
    build(
        root,
        [[("train", ids.tolist()) for ids in documents]],
        sequence_length=2048,
        compression="none",
        shard_samples=4096,
        vocab_size=50_257,
    )


def rates(root: Path) -> dict[str, float]:
    """Million tokens a second, best of seven turns."""
    from benchmarks.reading.peers import BATCH, LENGTH, endless, rate
    from streaming_ext import StreamingTokenDataset, StreamingTokenLoader

    masks = ("targets", "position_ids", "document_ids", "cu_seqlens", "max_seqlen")
    kinds = {
        "plain": (None, ()),
        "packed": ("best_fit", ()),
        "plain with masks": (None, masks),
        "packed with masks": ("best_fit", masks),
        "packed with cu_seqlens": ("best_fit", masks[3:]),
    }
    loops = {}
    for name, (packing, extras) in kinds.items():
        dataset = StreamingTokenDataset(
            local=root,
            batch_size=BATCH,
            sequence_length=LENGTH,
            shuffle=True,
            packing=packing,
            extras=extras,
            dp_rank=0,
            dp_world_size=1,
        )
        loops[name] = endless(lambda dataset=dataset: StreamingTokenLoader(dataset))
    best = dict.fromkeys(kinds, 0.0)
    for _turn in range(7):
        for name, loop in loops.items():
            best[name] = max(best[name], rate(loop, 700))
    return best


def of_olmo(python: str, lengths: np.ndarray, sizes: list[int]) -> dict[str, list[float]]:
    """Shares of padding and of tokens left out by OLMo-core, by length of a row."""
    script = Path(__file__).parents[1] / "peers/olmo_packing.py"
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "lengths.npy", lengths)
        told = subprocess.run(
            [python, script, Path(folder) / "lengths.npy", str(FILE), *map(str, sizes)],
            check=True,
            capture_output=True,
            text=True,
        )
    found: dict[str, list[float]] = json.loads(told.stdout.splitlines()[-1])
    return found


def draw(path: Path, lengths: np.ndarray, olmo: str | None) -> dict[str, dict[str, float]]:
    """Share of documents cut, padding and tokens left out, by length of a row; what is drawn."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    sizes = [512, 1024, 2048, 4096, 8192]
    documents = [Documents(np.cumsum(lengths) - lengths, lengths)]
    ours = [planned(documents, len(lengths), size) for size in sizes]
    cut = {"concatenation": [by_concatenation(lengths, size)[1] for size in sizes]}
    padding = {
        f"in buffers of {BUFFER:,} (as TRL)": [by_buffer(lengths, size)[0] for size in sizes]
    }
    left_out = {}
    if olmo:
        theirs = of_olmo(olmo, lengths, sizes)
        name = f"OLMo-core, files of {FILE:,}"
        padding[name] = [theirs[str(size)][0] for size in sizes]
        left_out[name] = [theirs[str(size)][1] for size in sizes]
    best = 'packing="best_fit"'
    cut[best] = [0.0 for _ in sizes]
    padding[best] = [each["padding"] for each in ours]
    left_out[best] = [1 - each["tokens"] / int(lengths.sum()) for each in ours]
    panels = {
        "% of documents that fit a row and are cut": cut,
        "% of tokens that are padding": padding,
        "% of tokens that are in no row": left_out,
    }
    figure, all_axes = plt.subplots(1, len(panels), figsize=(12, 3.6))
    for axes, (label, kinds) in zip(all_axes, panels.items(), strict=True):
        for name, shares in kinds.items():
            axes.plot(sizes, [100 * share for share in shares], "o-", label=name)
        axes.set_ylabel(label)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("tokens a row")
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    all_axes[1].set_yscale("log")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    return {
        f"{label}: {name}": dict(zip(map(str, sizes), shares, strict=True))
        for label, kinds in panels.items()
        for name, shares in kinds.items()
    }


def main() -> None:
    """Measure what is asked for, print lines and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=float, default=1e7)
    parser.add_argument("--length", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--dataset", type=Path, help="in place of log-normal lengths")
    parser.add_argument("--split", default="train")
    parser.add_argument("--rate", action="store_true")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--olmo", help="a Python that has ai2-olmo-core")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, float]] = {}
    if arguments.rate:
        with tempfile.TemporaryDirectory() as folder:
            root = arguments.dataset or Path(folder) / "dataset"
            if arguments.dataset is None:
                write_dataset(root)
            results["million tokens a second"] = rates(root)
    elif arguments.picture:
        lengths = np.concatenate([each.lengths for each in log_normal(int(arguments.documents))])
        results.update(draw(arguments.picture, lengths, arguments.olmo))
    else:
        for length in arguments.length:
            documents: Iterator[Documents] | list[Documents] = log_normal(int(arguments.documents))
            count = int(arguments.documents)
            if arguments.dataset:
                documents = of_dataset(arguments.dataset, arguments.split)
                count = sum(len(each.lengths) for each in documents)
                lengths = np.concatenate([each.lengths for each in documents])
                print(
                    "cut by concatenation:",
                    by_concatenation(lengths, length)[1],
                    "padding in buffers of 1,000:",
                    by_buffer(lengths, length)[0],
                )
            results[str(length)] = planned(documents, count, length)
    for name, values in results.items():
        print(name, {key: float(f"{value:.5g}") for key, value in values.items()})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
