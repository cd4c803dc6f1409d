"""The cost of a global shuffle: a run with a shuffle, compared with a run without.

The limit of the second phase is the time of as many processes that only read raw shards, compress,
hash and write them. With `--terashuf`, a run on JSON Lines is compared with that program and an
unshuffled run on its output. A shuffled run does all the work of an unshuffled one, so this ratio
has a limit, which is printed beside it: the ratio if the shuffle took no time.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import common
from benchmarks.corpus import make_corpus
from streaming_ext.format.compression import Compression
from streaming_ext.format.schema import content_hash

_CODEC = "zstd:1"
_OUTPUT = common.SCRATCH / "shuffle-output"


def main() -> None:
    """Measure and print the tables."""
    parser = common.parser(__doc__, megabytes=1040.0, files=8, rounds=3, workers=2)
    parser.add_argument("--terashuf", type=Path, help="its program: measure runs beside it")
    args = parser.parse_args()
    files = make_corpus(args.megabytes, args.files)
    merge: list[float] = []
    contenders = (beside_terashuf if args.terashuf else alone)(args, files, merge)
    seconds = common.rounds(contenders, args.rounds, backed=4e6 * args.megabytes)
    middle = common.medians(seconds)
    phase = common.medians({"merge phase": merge})
    figures = {**middle, **phase, "times": middle["shuffled"] / middle["unshuffled"]}
    if args.terashuf:
        both = middle["terashuf"] + middle["unshuffled"]
        figures |= {"both, times shuffled": both / middle["shuffled"]}
        figures |= {"the same, were our shuffle to cost nothing": both / middle["unshuffled"]}
    else:
        figures["merge phase, of its limit"] = middle["limit"] / phase["merge phase"]
    print(common.table(("", "s"), [(name, f"{value:.2f}") for name, value in figures.items()]))
    common.save(args.result, seconds=seconds, merge=merge, figures=figures)


def run(args: argparse.Namespace, merge: list[float], files: list[Path], *options: str) -> float:
    """Measure seconds of a run, and of its second phase."""
    options = ("--compression", _CODEC, *options)
    record, _ = common.shard(files, _OUTPUT, *options, workers=args.workers)
    if "--shuffle" in options:
        merge.append(record["merge_seconds"])
    return float(record["seconds"])


def alone(
    args: argparse.Namespace, files: list[Path], merge: list[float]
) -> dict[str, Callable[[], float]]:
    """Return both runs, and the limit of the second phase, on a dataset's raw shards."""
    raw = common.SCRATCH / "shuffle-raw"
    common.shard(files, raw, "--shuffle", "documents", "--compression", "none")
    shards = sorted(raw.rglob("*.mds"))
    pack = partial(common.pool_seconds, _pack, shards, args.workers)
    return {
        "unshuffled": partial(run, args, merge, files),
        "shuffled": partial(run, args, merge, files, "--shuffle", "documents"),
        "limit": pack,
    }


def _pack(path: Path) -> None:
    data = path.read_bytes()
    content_hash(data)
    compression = Compression.parse(_CODEC)
    assert compression is not None
    data = compression.compress(data)
    content_hash(data)
    with path.with_suffix(".packed").open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def beside_terashuf(
    args: argparse.Namespace, files: list[Path], merge: list[float]
) -> dict[str, Callable[[], float]]:
    """Return the runs with and without terashuf, on JSON Lines."""
    lines = [common.as_lines(file, common.SCRATCH / "shuffle-lines") for file in files]
    shuffled, temporary = common.SCRATCH / "terashuf.jsonl", common.SCRATCH / "terashuf"
    temporary.mkdir(exist_ok=True)
    script = f'cat "$@" | TMPDIR={temporary} {args.terashuf.resolve()} >{shuffled}'
    return {
        "terashuf": lambda: common.run(["sh", "-c", script, "sh", *lines]).seconds,
        "unshuffled": partial(run, args, merge, [shuffled], "--part-size", "128MiB"),
        "shuffled": partial(run, args, merge, lines, "--shuffle", "documents"),
    }


if __name__ == "__main__":
    main()
