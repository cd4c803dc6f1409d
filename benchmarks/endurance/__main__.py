"""FineWeb-Edu in small, sharded to S3 while everything around it fails: nothing is lost.

    python -m benchmarks.endurance [--files 2410] [--rounds 6] [--seed 0]

The command `shardmill shard` reads 2,410 files from a real S3 server and writes to it, with a real
Prefect server, while faults drawn at random strike all along; whenever it ends before its work is
done, the same command is given again. What comes out must be, byte for byte, what an undisturbed
run makes on the local disk.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks import common
from benchmarks.endurance import schedule
from benchmarks.endurance.command import Command
from benchmarks.endurance.fineweb import FILES, upload, write_sources
from benchmarks.endurance.inflict import inflict
from benchmarks.endurance.redone import work_redone
from benchmarks.endurance.schedule import Fault
from benchmarks.endurance.site import BUCKET, Site, enter_own_mounts, open_site
from streaming_ext.format.layout import MANIFEST
from tests.command_line import assert_same_dataset
from tests.servers.storage.swift import download_all

_LOOK_SECONDS = 0.2
_REST = 4.0  # times what a look took
_COMMANDS_A_FAULT = 2


@dataclass(slots=True)
class Passed:
    """One run to its end: seconds, bytes to and from S3, commands, and what befell it."""

    seconds: float = 0.0
    megabytes_up: float = 0.0
    megabytes_down: float = 0.0
    commands: int = 0
    faults: dict[str, int] = field(default_factory=lambda: dict.fromkeys(schedule.KINDS, 0))
    struck: dict[str, int] = field(default_factory=lambda: dict.fromkeys(schedule.KINDS, 0))


def shard(
    site: Site,
    sources: str,
    output: str,
    options: Sequence[object],
    *,
    faults: Sequence[Fault] = (),
    seed: int = 0,
) -> Passed:
    """Give the command until its work is done, with these faults; it may have ended before all."""
    ending = sum(fault.kind in schedule.ENDING for fault in faults)
    arguments = ["shard", sources, "--output", output, *options]
    logs = site.folder / f"logs-{Path(output).name}"
    command = Command(arguments, site.environment, logs, 1 + _COMMANDS_A_FAULT * ending)
    waiting, rng, passed = list(faults), random.Random(seed), Passed()
    up, down, began = site.wire.bytes_up, site.wire.bytes_down, time.monotonic()
    command.start()
    try:
        while not command.is_done():
            asked = time.monotonic()
            recorded = site.recorded(Path(output).name) if waiting else 0
            # Listing thousands of records is work for the server too.
            time.sleep(max(_LOOK_SECONDS, _REST * (time.monotonic() - asked)))
            while waiting and recorded >= waiting[0].at:
                kind = waiting.pop(0).kind
                if struck := inflict(kind, site, command, rng):
                    passed.faults[kind] += 1
                    passed.struck[kind] += struck
    finally:
        command.stop()
    passed.seconds = time.monotonic() - began
    passed.megabytes_up = (site.wire.bytes_up - up) / 1e6
    passed.megabytes_down = (site.wire.bytes_down - down) / 1e6
    passed.commands = command.starts
    print(f"{output}: {passed.seconds:.1f} s, {passed.commands} commands", flush=True)
    return passed


def endure(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    """The undisturbed runs, the disturbed one, and what it cost; stops where bytes differ."""
    link = args.link and args.link * 1e6
    with open_site(folder, link) as site:
        kinds = [kind for kind in schedule.KINDS if site.bounded or kind != schedule.FULL]
        size = write_sources(folder / "sources", args.files, args.seed)
        sources = upload(folder / "sources", site.s3.url, BUCKET)
        print(f"{args.files} files, {size / 1e6:.1f} MB", flush=True)
        options = ["--tokenizer", args.tokenizer or common.default_tokenizer()]
        options += ["--pattern", "gpt2", "--holdout-fraction", 0.01, "--sequence-length", 512]
        options += ["--workers", args.workers]
        expected = args.expected or folder / "expected"
        runs: dict[str, Passed] = {}
        if not (expected / MANIFEST).exists():
            runs["undisturbed, to the local disk"] = shard(site, sources, str(expected), options)
        site.calm()
        output = f"s3://{BUCKET}/disturbed"
        faults = schedule.draw(args.files, args.rounds, kinds, random.Random(args.seed))
        scratch = ["--scratch", site.scratch]
        runs["disturbed, to S3"] = disturbed = shard(
            site, sources, output, options + scratch, faults=faults, seed=args.seed
        )
        site.calm()
        copy = download_all(site.s3.url, BUCKET, "disturbed", folder / "copy")
        assert_same_dataset(expected, copy)
        print("the same bytes", flush=True)
        redone = work_redone(site.prefect.url, "disturbed", copy)
        print(redone, flush=True)
        if args.compare_time:
            output = f"s3://{BUCKET}/calm"
            runs["undisturbed, to S3"] = shard(site, sources, output, options + scratch)
    print_tables(runs, disturbed, asdict(redone))
    return {
        "files": args.files,
        "source_bytes": size,
        "left_out": [kind for kind in schedule.KINDS if kind not in kinds],
        "runs": {name: asdict(run) for name, run in runs.items()},
        "redone": asdict(redone),
    }


def print_tables(runs: dict[str, Passed], disturbed: Passed, redone: dict[str, float]) -> None:
    """Faults by kind; runs beside each other; work redone."""
    rows = [(kind, disturbed.faults[kind], disturbed.struck[kind]) for kind in schedule.KINDS]
    total = ("all", sum(disturbed.faults.values()), sum(disturbed.struck.values()))
    print(common.table(("fault", "times", "processes, servers or connections"), [*rows, total]))
    columns = ("run", "seconds", "commands", "MB to S3", "MB from S3")
    shown = [
        (
            name,
            f"{run.seconds:.1f}",
            run.commands,
            f"{run.megabytes_up:.1f}",
            f"{run.megabytes_down:.1f}",
        )
        for name, run in runs.items()
    ]
    print(f"\n{common.table(columns, shown)}")
    print(
        f"\nTokenized again, at most: {redone['attempts']} times, {redone['files']} files, "
        f"{redone['share']:.2%} of the text."
    )


def main() -> None:
    """Read the command line and go through it all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--rounds", type=int, default=6, help="of faults, ten each")
    parser.add_argument("--seed", type=int, default=0, help="of sources and faults")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--link", type=float, help="MB/s to S3 and back; default: unbounded")
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument(
        "--expected",
        type=Path,
        help="folder for the undisturbed dataset; kept, and used again",
    )
    parser.add_argument(
        "--compare-time",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run undisturbed to S3 too, for the time",
    )
    parser.add_argument("--result", type=Path, help="file to keep the result in, as JSON")
    args = parser.parse_args()
    enter_own_mounts()
    # Whoever stops this ends its servers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    with tempfile.TemporaryDirectory(prefix="shardmill-endurance-") as name:
        result = endure(args, Path(name))
    common.save(args.result, **result)
    if result["left_out"]:
        print(f"Left out: {result['left_out']}; `unshare` is not allowed here.", file=sys.stderr)


if __name__ == "__main__":
    main()
