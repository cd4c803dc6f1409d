"""The MB of text per second that become shards, compared with the bare limit and with peers.

All contenders get the same files, but slow peers only the first few; files are in the page cache;
values are medians of alternating rounds. Seconds do not include start-up: for the pipeline they are
from the report of the run, for a peer they are from its first read to its last write. The last line
includes start-up: it is of the whole command, and of a process that reads the first batch.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import common
from benchmarks.corpus import make_corpus

OURS, DATATROVE = "shardmill", "datatrove"
_FIRST_BATCH = """
import sys
from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
next(iter(StreamingTokenLoader(StreamingTokenDataset(local=sys.argv[1], batch_size=16))))
"""


class Peer(NamedTuple):
    """A function of `peers.py`; without `env`, it runs in this environment, on all files."""

    function: str
    env: str | None = None
    reads_json: bool = False  # it needs the vocabulary as a tokenizer.json


CONTENDERS = {
    "bare limit": Peer("bare_limit"),
    "gigatoken to .bin": Peer("gigatoken_bin"),
    DATATROVE: Peer("datatrove_tokenizer", "datatrove", reads_json=True),
    "MDSWriter + tiktoken": Peer("mds_writer", "mosaicml-streaming"),
    "datasets.map": Peer("datasets_map", "datasets", reads_json=True),
    "nanoGPT's prepare.py": Peer("nanogpt_prepare", "datasets"),
    "Megatron's preprocess_data.py": Peer("megatron_preprocess", "datasets", reads_json=True),
    "litData optimize": Peer("litdata_optimize", "litdata"),
    "dolma tokens": Peer("dolma_tokens", "dolma", reads_json=True),
}


def same_ids(part: Path, other: Path) -> int:
    """Compare a part's raw shards with another tool's flat file of ids; return the number of ids.

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
    """Return the flat ids of an uncompressed shard, which begin with its first sample."""
    start = int(np.fromfile(path, np.uint32, 1, offset=4)[0])
    return np.fromfile(path, np.uint16, offset=start)


def main() -> None:
    """Measure and print the table."""
    parser = common.parser(__doc__, megabytes=1040.0, files=8, rounds=3, workers=2)
    parser.add_argument("--peer-files", type=int, default=2, help="files for the slow peers")
    names = [OURS, *CONTENDERS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    args = parser.parse_args()
    files = make_corpus(args.megabytes, args.files)
    few, scratch = files[: args.peer_files], common.SCRATCH / "throughput"
    facts: dict[str, dict[str, float]] = {}
    to_first_batch: list[float] = []

    def rate(name: str) -> float:
        peer = CONTENDERS.get(name, Peer(OURS))
        own = few if peer.env else files
        output = scratch / peer.function
        if name == OURS:
            told, measured = common.shard(own, output, workers=args.workers)
            read = common.run([sys.executable, "-c", _FIRST_BATCH, output])
            to_first_batch.append(measured.seconds + read.seconds)
        else:
            vocabulary = common.json_tokenizer() if peer.reads_json else common.default_tokenizer()
            words = [
                "--output",
                common.fresh(output),
                "--tokenizer",
                vocabulary,
                "--workers",
                args.workers,
            ]
            told, measured = common.peer(peer.function, *own, *words, env=peer.env)
        facts[name] = {"tokens": told["tokens"], "cpu_seconds": measured.cpu_seconds}
        return common.text_bytes(own) / 1e6 / float(told["seconds"])

    values = common.rounds({name: partial(rate, name) for name in args.only}, args.rounds)
    common.save(
        args.result, megabytes_per_second=values, facts=facts, to_first_batch=to_first_batch
    )
    rows = [
        (name, f"{middle:.1f}", f"{min(values[name]):.1f} to {max(values[name]):.1f}")
        for name, middle in common.medians(values).items()
    ]
    print(common.table(("contender", "MB/s", "from, to"), rows))
    if to_first_batch:
        seconds = common.medians({OURS: to_first_batch})[OURS]
        print(f"{args.megabytes:.0f} MB of text: {seconds:.1f} s from Parquet to the first batch")
    if DATATROVE in facts:
        options = ("--holdout-fraction", "0", "--compression", "none")
        common.shard(few, scratch / "check", *options)
        theirs = sorted((scratch / "datatrove_tokenizer").glob("tokens/*.ds"))
        parts = [scratch / "check/train" / f"{number:05}" for number in range(len(theirs))]
        print(f"All {sum(map(same_ids, parts, theirs)):,} ids are those of datatrove.")
    common.fresh(scratch)


if __name__ == "__main__":
    main()
