"""The rate of an export to each format, beside `cp` of the same bytes.

    python -m benchmarks.export [--megabytes 4000] [--compression none]

The dataset's shards are compressed, so the bare figure is that of unpacking them with the same
codec and writing what comes out, by as many processes; with `--compression none`, of `cp`. Its
time counts from the start of its processes, as that of an export does, and to the end of `sync`:
what is exported is on disk. Beside `cp`, which hashes nothing, stands the limit: a loop that copies
the same bytes through one buffer, hashes what it reads and what it writes, as an export has to, and
syncs each file. One process does it too: more than that gains with a second one, on
this machine and its disk, is not to be had for an export either.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.make_corpus import make_corpus
from tasks.core.derive.formats import FORMATS

_LEFT_OUT = "runs", "export"
# At least: of the bare figure, of one worker, and times Megatron's preprocess_data.py.
_OF_BARE, _OF_ONE, _OF_MEGATRON = 0.5, 1.7, 20
_UNPACK = """
import sys
from pathlib import Path
from streaming_ext.format.compression import decompress
codec, output, *shards = sys.argv[1:]
with open(output, "wb") as out:
    for shard, size in zip(shards[::2], shards[1::2]):
        data = Path(shard).read_bytes()
        out.write(decompress(data, codec=codec, raw_size=int(size)))
"""

_LIMIT = """
import os, sys
import xxhash
output, *shards = sys.argv[1:]
room = memoryview(bytearray(2**20))
with open(output, "wb", buffering=0) as out:
    written, begun = xxhash.xxh3_128(), 0
    for shard in shards[::2]:
        read = xxhash.xxh3_128()
        with open(shard, "rb", buffering=0) as file:
            while count := file.readinto(room):
                read.update(room[:count])
                written.update(room[:count])
                out.write(room[:count])
                if (end := out.tell()) - begun >= 2**23:  # the disk begins
                    os.posix_fadvise(out.fileno(), begun, end - begun, os.POSIX_FADV_DONTNEED)
                    begun = end
    os.fsync(out.fileno())
"""


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=4000, help="text of the corpus")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--compression", default="zstd:1")
    parser.add_argument("--only", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--scratch", type=Path, default=common.CACHE / "scratch")
    parser.add_argument("--result", type=Path, help="file to keep the result in, as JSON")
    args = parser.parse_args()
    args.tokenizer = args.tokenizer or common.default_tokenizer()
    common.save(args.result, **measure(args))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all contenders in alternating rounds, in MB of output per second."""
    files = make_corpus(
        args.scratch / "export-corpus",
        files=args.files,
        megabytes=args.megabytes / args.files,
        share=0.005,
    )
    dataset = args.scratch / f"export-dataset-{args.compression.replace(':', '-')}"
    if not (dataset / "manifest.json").exists():
        options = ("--compression", args.compression)
        common.shard(files, dataset, args.tokenizer, *options, workers=args.workers)
    manifest = json.loads((dataset / "manifest.json").read_text())
    vocabulary = manifest["spec"]["tokenizer"]["vocab_size"]
    eot = manifest["spec"]["tokenizer"]["eot_id"]
    names = [
        name
        for name in args.only
        if (name not in {"nanogpt", "modded-nanogpt"} or vocabulary <= 2**16)
        and (name != "modded-nanogpt" or eot == 50256)
    ]
    output = args.scratch / "export-output"
    unpack = partial(bare, dataset, output, args.compression)
    contenders = {"bare": partial(unpack, args.workers), "bare, 1 process": partial(unpack, 1)}
    if args.compression == "none":
        contenders["limit"] = partial(unpack, args.workers, limit=True)
    for name in names:
        contenders[name] = partial(export, name, dataset, output, args.workers)
        contenders[f"{name}, 1 worker"] = partial(export, name, dataset, output, 1)
    rates = common.rounds(contenders, args.rounds)
    shutil.rmtree(output, ignore_errors=True)
    middle = {name: statistics.median(values) for name, values in rates.items()}
    rows = [
        (
            name,
            f"{middle[name]:.0f}",
            f"{middle[name] / middle['bare']:.2f}",
            f"{middle[name] / middle['limit']:.2f}" if "limit" in middle else "",
            f"{middle[name] / middle[f'{name}, 1 worker']:.2f}",
        )
        for name in names
    ]
    gain = middle["bare"] / middle["bare, 1 process"]
    print(f"bare: {middle['bare']:.0f} MB/s, {gain:.2f} of what one process does")
    if "limit" in middle:
        print(f"limit: {middle['limit']:.0f} MB/s, {middle['limit'] / middle['bare']:.2f} of bare")
    columns = (
        "format",
        "MB/s",
        f"of bare (at least {_OF_BARE})",
        "of the limit",
        f"of one worker (at least {_OF_ONE}, of {args.workers})",
    )
    print(common.table(columns, rows))
    result = {"rates": rates, "compression": args.compression, "workers": args.workers}
    if common.SHARED is not None and "megatron" in names:
        tokens = sum(split["tokens"] for split in manifest["splits"].values())
        size = common.text_bytes(files)
        ours = middle["megatron"] / 2 * 1e6 / tokens * size / 1e6
        theirs = preprocess(common.SHARED, files[0], output, args.workers)
        print(
            f"megatron: {ours:.0f} MB of text per second, preprocess_data.py {theirs:.1f}: "
            f"{ours / theirs:.0f} times (at least {_OF_MEGATRON})"
        )
        result["preprocess"] = {"ours": ours, "theirs": theirs}
    return result


def export(name: str, dataset: Path, output: Path, workers: int) -> float:
    """Measure MB of output per second, from the first part to the published manifest."""
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-P", "-m", "flows.cli", "export", name, dataset]
    common.run([*command, "--output", output, "--workers", str(workers)])
    (record,) = (output / "runs").glob("*.json")
    size = sum(
        file.stat().st_size
        for file in output.rglob("*")
        if file.is_file() and file.relative_to(output).parts[0] not in _LEFT_OUT
    )
    return size / 1e6 / float(json.loads(record.read_text())["seconds"])


def bare(
    dataset: Path, output: Path, compression: str, workers: int, *, limit: bool = False
) -> float:
    """Measure MB per second of unpacking, `cp`, or the loop that is the limit of an export."""
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    shards = [
        (
            dataset / split / (shard["zip_data"] or shard["raw_data"])["basename"],
            shard["raw_data"]["bytes"],
        )
        for split in json.loads((dataset / "manifest.json").read_text())["splits"]
        for shard in json.loads((dataset / split / "index.json").read_text())["shards"]
    ]
    parts = [shards[number::workers] for number in range(workers)]
    began = time.monotonic()
    commands: list[list[str | Path]] = []
    for number, part in enumerate(parts):
        words = [str(word) for shard in part for word in shard]
        if limit:
            commands.append([sys.executable, "-c", _LIMIT, output / str(number), *words])
        elif compression == "none":
            (output / str(number)).mkdir()
            paths = [path for path, _ in part]
            commands.append(["cp", "--backup=numbered", *paths, output / str(number)])
        else:
            start = [sys.executable, "-c", _UNPACK, compression, output / str(number)]
            commands.append([*start, *words])
    running = [subprocess.Popen(command, cwd=common.ROOT) for command in commands]
    for process in running:
        if process.wait():
            raise SystemExit("the bare contender failed")
    subprocess.run(["sync", "-f", output], check=True)
    seconds = time.monotonic() - began
    return sum(file.stat().st_size for file in output.rglob("*") if file.is_file()) / 1e6 / seconds


def preprocess(shared: Path, file: Path, output: Path, workers: int) -> float:
    """Measure MB of text per second of Megatron's own preprocessing, on one file."""
    shutil.rmtree(output, ignore_errors=True)
    done = common.run(
        [
            sys.executable,
            "-P",
            common.ROOT / "benchmarks/peers.py",
            "megatron_preprocess",
            file,
            "--output",
            output,
            "--tokenizer",
            shared / "data/vocab/gpt2-tokenizer.json",
            "--workers",
            str(workers),
        ]
    )
    told = json.loads(done.output.splitlines()[-1])
    return common.text_bytes([file]) / 1e6 / float(told["seconds"])


if __name__ == "__main__":
    main()
