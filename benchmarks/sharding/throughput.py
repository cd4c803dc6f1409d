"""The MB of text per second that become shards, beside the bare limit and the peers.

All contenders get the same files, the slow peers only the first few of them; files are in the
page cache; values are medians of alternating rounds. Seconds leave start-up out: for the pipeline
they are those of its run record, for a peer those from its first read to its last write.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import common

PEERS = common.ROOT / "benchmarks/peers.py"
OURS, BARE, DATATROVE, STOCK = "shardmill", "bare limit", "datatrove", "MDSWriter + tiktoken"
_TORCH = "torch==2.13.0"  # this one's wheel is for processors; later ones bring gigabytes
_HUGGING_FACE = ("datasets==5.2.0", "tokenizers", "tiktoken")
_STREAMING = ("mosaicml-streaming==0.13.0", _TORCH, "tiktoken", "pyarrow")
_LITDATA = ("litdata==0.2.76", _TORCH, "tiktoken", "pyarrow")
_DATATROVE = ("datatrove==0.10.1", "tokenizers", "pyarrow", "humanize", "regex", "xxhash", "orjson")
_DOLMA = ("dolma==1.2.1", "boto3==1.28.17", "s3fs==2023.6.0", "pyarrow==19.0.1")


@dataclass(frozen=True, slots=True)
class Peer:
    """A function of `peers.py`; without requirements it runs in this environment, on all files."""

    name: str
    requirements: tuple[str, ...] = ()
    vocabulary: str = "tiktoken"
    workers: int | None = None
    lines: bool = False  # whether it reads JSON Lines too


CONTENDERS = {
    BARE: Peer("bare_limit"),
    "gigatoken to .bin": Peer("gigatoken_bin"),
    DATATROVE: Peer("datatrove_tokenizer", _DATATROVE, "json", lines=True),
    f"{STOCK}, 1 process": Peer("mds_writer", _STREAMING, workers=1),
    STOCK: Peer("mds_writer", _STREAMING),
    "datasets.map": Peer("datasets_map", _HUGGING_FACE, "json"),
    "nanoGPT's prepare.py": Peer("nanogpt_prepare", _HUGGING_FACE),
    "Megatron's preprocess_data.py": Peer("megatron_preprocess", _HUGGING_FACE, "json", lines=True),
    "litData optimize": Peer("litdata_optimize", _LITDATA),
    "dolma tokens": Peer("dolma_tokens", _DOLMA, "json"),
}


class Benchmark:
    """The contenders over one corpus."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.files: list[Path] = sorted(args.corpus.glob("*.parquet"))
        self.few = self.files[: args.peer_files]
        self.sizes = {path: common.text_bytes([path]) for path in self.files}
        self.facts: dict[str, dict[str, float]] = {}
        self.scratch = args.scratch / "throughput"
        self.given = {path: path for path in self.files}
        if args.lines:
            folder = args.scratch / "throughput-lines"
            self.given = {
                path: common.as_lines(path, folder / f"{path.stem}.jsonl") for path in self.files
            }

    def ours(self) -> float:
        """Measure MB of text per second of the pipeline."""
        output = self.scratch / "ours"
        files = self.given.values()
        sharded = common.shard(files, output, self.args.tokenizer, workers=self.args.workers)
        record, measured = sharded.record, sharded.measured
        self._keep(OURS, measured, tokens=record["tokens"], shard_bytes=record["shard_bytes"])
        self.facts[OURS]["startup"] = measured.seconds - sharded.seconds
        return sum(self.sizes.values()) / 1e6 / sharded.seconds

    def peer(self, name: str) -> float:
        """Measure MB of text per second of a peer."""
        peer, output = CONTENDERS[name], self.scratch / CONTENDERS[name].name
        files, python = self.files, Path(sys.executable)
        if peer.requirements:
            files = self.few
            python = common.environment(peer.requirements, self.args.cache)
        vocabulary = self.args.tokenizer
        if peer.vocabulary == "json":
            vocabulary = self.args.hf_tokenizer
        shutil.rmtree(output, ignore_errors=True)
        workers = peer.workers or self.args.workers
        given = [self.given[path] for path in files]
        command = [python, "-P", PEERS, peer.name, *given, "--output", output]
        command += ["--tokenizer", vocabulary, "--workers", str(workers)]
        measured = common.run(command)
        result = json.loads(measured.output.splitlines()[-1])
        self._keep(name, measured, **{k: v for k, v in result.items() if k != "seconds"})
        return sum(self.sizes[path] for path in files) / 1e6 / float(result["seconds"])

    def _keep(self, name: str, measured: common.Measured, **facts: float) -> None:
        if measured.others > 0.1:
            print(f"{name}: others kept {measured.others:.2f} cores busy", file=sys.stderr)
        busiest = max(measured.others, self.facts.get(name, {}).get("others_max", 0))
        cpu = {"cpu_seconds": measured.cpu_seconds, "others_max": busiest}
        self.facts[name] = {**facts, **cpu, "wall_seconds": measured.seconds}

    def check(self) -> str:
        """Compare ids with datatrove's, and the size of the shards with stock MDSWriter's."""
        output, lines = self.scratch / "check", []
        shard = functools.partial(
            common.shard, self.few, output, self.args.tokenizer, "--holdout-fraction", "0"
        )
        if DATATROVE in self.facts:
            shard("--compression", "none")
            theirs = sorted((self.scratch / CONTENDERS[DATATROVE].name).glob("tokens/*.ds"))
            ids = sum(same_ids(output / "train" / f"{n:05}", ds) for n, ds in enumerate(theirs))
            lines.append(f"All {ids:,} ids are those of datatrove.")
        if stock := self.facts.get(STOCK):
            ratio = shard().record["shard_bytes"] / stock["shard_bytes"]
            lines.append(f"Shards take {ratio:.4f} of the bytes that stock MDSWriter makes.")
        return "\n".join(lines)

    def report(self, values: dict[str, list[float]]) -> str:
        """The table."""
        medians = {name: statistics.median(rates) for name, rates in values.items()}
        rows = []
        for name, rate in medians.items():
            spread = f"{min(values[name]):.1f} to {max(values[name]):.1f}"
            ratio = f"{medians[OURS] / rate:.2f}" if OURS in medians else ""
            workers = (name in CONTENDERS and CONTENDERS[name].workers) or self.args.workers
            rows.append((name, f"{rate:.1f}", f"{rate / workers:.1f}", spread, ratio))
        columns = ("contender", "MB/s", "MB/s per core", "from, to", "shardmill is times")
        return common.table(columns, rows)


def same_ids(part: Path, other: Path) -> int:
    """Compare a part's raw shards with another tool's flat file of ids; returns how many.

    Raises:
        SystemExit: they differ.
    """
    ours = np.concatenate([raw_shard_ids(path) for path in sorted(part.glob("*.mds"))])
    theirs = np.fromfile(other, np.uint16)
    padding = ours[len(theirs) :]
    if not (np.array_equal(ours[: len(theirs)], theirs) and (padding == theirs[-1]).all()):
        raise SystemExit(f"{part} and {other} hold different ids.")
    return len(theirs)


def raw_shard_ids(path: Path) -> np.ndarray:
    """The flat ids of an uncompressed shard: they begin where its first sample does."""
    start = int(np.fromfile(path, np.uint32, 1, offset=4)[0])
    return np.fromfile(path, np.uint16, offset=start)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="folder of Parquet files, from make_corpus")
    parser.add_argument(
        "--lines", action="store_true", help="the same as JSON Lines, of those that read them"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--peer-files", type=int, default=2, help="files for the slow peers")
    parser.add_argument(
        "--only", nargs="*", choices=[OURS, *CONTENDERS], default=[OURS, *CONTENDERS]
    )
    parser.add_argument("--tokenizer", type=Path, help="rank file")
    parser.add_argument(
        "--hf-tokenizer", type=Path, help="the same as a tokenizer.json; some peers need it"
    )
    parser.add_argument("--scratch", type=Path, default=common.CACHE / "scratch")
    parser.add_argument("--cache", type=Path, default=common.CACHE)
    parser.add_argument("--result", type=Path, help="file to keep the result in, as JSON")
    args = parser.parse_args()
    args.tokenizer = args.tokenizer or common.default_tokenizer()
    if args.hf_tokenizer is None and common.SHARED:
        args.hf_tokenizer = common.SHARED / "data/vocab/gpt2-tokenizer.json"
    benchmark = Benchmark(args)
    contenders = {
        name: benchmark.ours if name == OURS else functools.partial(benchmark.peer, name)
        for name in args.only
        if name == OURS
        or (
            (args.hf_tokenizer or CONTENDERS[name].vocabulary != "json")
            and (CONTENDERS[name].lines or not args.lines)
        )
    }
    values = common.rounds(contenders, args.rounds)
    common.save(args.result, megabytes_per_second=values, facts=benchmark.facts)
    print(benchmark.report(values))
    print(f"\n{benchmark.check()}")
    shutil.rmtree(benchmark.scratch)


if __name__ == "__main__":
    main()
