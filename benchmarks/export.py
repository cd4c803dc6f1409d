"""The rate of an export to each format, compared with unpacking the same shards.

The bare figure is the rate of unpacking the shards with the same codec and writing the result, by
as many processes. Its time counts from the start of its processes, as for an export, to the end of
`sync`, as an export is on disk when it ends. The bare contender also runs with one process: its
gain from a second one, on this machine and disk, is the most that an export can gain.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks import common
from benchmarks.corpus import make_corpus
from tasks.core.derive.formats import FORMATS

_UNPACK = """
import sys
from pathlib import Path
from streaming_ext.format.compression import decompress
output, *shards = sys.argv[1:]
with open(output, "wb") as out:
    for shard, size in zip(shards[::2], shards[1::2]):
        data = Path(shard).read_bytes()
        out.write(decompress(data, codec="zstd:1", raw_size=int(size)))
"""


def main() -> None:
    """Measure all contenders in alternating rounds, in MB of output per second."""
    parser = common.parser(__doc__, megabytes=1040.0, files=8, rounds=1, workers=2)
    parser.add_argument("--only", nargs="+", choices=FORMATS, default=list(FORMATS))
    args = parser.parse_args()
    files = make_corpus(args.megabytes, args.files)
    dataset, output = common.SCRATCH / "export-dataset", common.SCRATCH / "export-output"
    record, _ = common.shard(files, dataset, "--compression", "zstd:1")
    contenders = {}
    for workers in {args.workers, 1}:
        contenders[f"bare, {workers}"] = partial(bare, dataset, output, workers)
        for name in args.only:
            contenders[f"{name}, {workers}"] = partial(export, name, dataset, output, workers)
    rates = common.rounds(contenders, args.rounds)
    common.fresh(output)
    middle = common.medians(rates)
    rows = []
    for name in ("bare", *args.only):
        rate = middle[f"{name}, {args.workers}"]
        others = (middle[f"bare, {args.workers}"], middle[f"{name}, 1"])
        rows.append((name, f"{rate:.0f}", *(f"{rate / other:.2f}" for other in others)))
    print(common.table(("format", "MB/s", "of bare", "of one worker"), rows))
    if "megatron" in args.only:  # two bytes per token
        text = middle[f"megatron, {args.workers}"] / 2 / record["tokens"] * common.text_bytes(files)
        print(f"megatron: {text:.0f} MB of text per second")
    common.save(args.result, rates=rates)


def export(name: str, dataset: Path, output: Path, workers: int) -> float:
    """Measure MB of output per second, from the first part to the published manifest."""
    words = (dataset, "--output", common.fresh(output), "--workers", workers)
    common.shardmill("export", name, *words)
    (record,) = (output / "runs").glob("*.json")
    size = sum(
        file.stat().st_size
        for file in output.rglob("*")
        if file.is_file() and file.relative_to(output).parts[0] not in {"runs", "export"}
    )
    return size / 1e6 / float(json.loads(record.read_text())["seconds"])


def bare(dataset: Path, output: Path, workers: int) -> float:
    """Measure MB per second of unpacking."""
    common.fresh(output).mkdir(parents=True)
    shards = [
        (dataset / split / shard["zip_data"]["basename"], shard["raw_data"]["bytes"])
        for split in json.loads((dataset / "manifest.json").read_text())["splits"]
        for shard in json.loads((dataset / split / "index.json").read_text())["shards"]
    ]
    began = time.monotonic()
    running = []
    for number in range(workers):
        words = [str(word) for shard in shards[number::workers] for word in shard]
        command = [sys.executable, "-c", _UNPACK, output / str(number), *words]
        running.append(subprocess.Popen(command, cwd=common.ROOT))
    if any(process.wait() for process in running):
        raise SystemExit("the bare contender failed")
    subprocess.run(["sync", "-f", output], check=True)
    seconds = time.monotonic() - began
    return sum(file.stat().st_size for file in output.iterdir()) / 1e6 / seconds


if __name__ == "__main__":
    main()
