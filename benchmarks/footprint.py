"""The overhead of `shardmill shard`: the seconds of its start, and the memory of a worker.

The start is the time of the whole command on the smallest file, which takes almost no time itself.
Memory is sampled with one file of several sizes, with many files, and with one document.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import common
from benchmarks.corpus import make_corpus


def one_document(megabytes: float) -> list[Path]:
    """Make a file with a single document, which joins real documents."""
    path = common.SCRATCH / f"document-{megabytes:g}.parquet"
    texts = pa.concat_tables(map(pq.read_table, make_corpus(megabytes, 1)))["text"]
    pq.write_table(pa.table({"text": ["\n".join(texts.to_pylist())]}), path)
    return [path]


def main() -> None:
    """Measure and print the tables."""
    parser = common.parser(__doc__, rounds=10, document=200.0)
    sizes = {"type": float, "nargs": "+", "help": "of one file"}
    parser.add_argument("--megabytes", **sizes, default=[500, 1500])
    parser.add_argument("--many", type=float, default=1000, help="megabytes of 20 files")
    args = parser.parse_args()
    output = common.SCRATCH / "footprint"
    smallest = min(common.default_documents(), key=lambda file: file.stat().st_size)
    seconds = common.rounds(
        {"start": lambda: common.shard([smallest], output)[1].seconds}, args.rounds
    )
    texts = {f"a file of {size:g} MB": make_corpus(size, 1) for size in args.megabytes}
    texts[f"20 files, {args.many:g} MB"] = make_corpus(args.many, 20)
    texts[f"a document of {args.document:g} MB"] = one_document(args.document)
    peaks = {
        name: common.shard(files, output, interval=0.02)[1].peak(common.WORKER)
        for name, files in texts.items()
    }
    print(f"start: {common.medians(seconds)['start']:.2f} s")
    rows = [(name, f"{peak:.0f}") for name, peak in peaks.items()]
    print(common.table(("text", "largest worker, MiB"), rows))
    common.save(args.result, seconds=seconds["start"], peak_mib=peaks)


if __name__ == "__main__":
    main()
