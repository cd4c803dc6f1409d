"""How far `shardmill plan` is from the run that follows: tokens, disk, time.

python -m benchmarks.estimate corpus            # as benchmarks.make_corpus makes it
python -m benchmarks.estimate corpus --rounds 3 --sample-size 32MiB
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import default_documents, default_tokenizer, run, save, shard, table


def estimate(files: list[Path], tokenizer: Path, workers: int, *options: str) -> dict[str, Any]:
    """What `shardmill plan` says."""
    command: list[str | Path] = [sys.executable, "-P", "-m", "flows.cli", "plan", *files, "--json"]
    command += ["--tokenizer", tokenizer, "--pattern", "gpt2", "--workers", str(workers), *options]
    output = run(command).output
    found: dict[str, Any] = json.loads(output[output.index("{") :])
    return found


def main() -> None:
    """Estimate, run, compare; the median of some rounds, in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, nargs="?", help="folder; default: the documents")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sample-size", default="64MiB")
    parser.add_argument("--sample-files", default="4")
    parser.add_argument("--result", type=Path)
    arguments = parser.parse_args()
    files = sorted(arguments.corpus.glob("*.parquet")) if arguments.corpus else default_documents()
    tokenizer = default_tokenizer()
    options = ("--sample-size", arguments.sample_size, "--sample-files", arguments.sample_files)
    rows: dict[str, list[tuple[float, float, float | None]]] = {}
    for number in range(arguments.rounds):
        found = estimate(
            files, tokenizer, arguments.workers, *options, "--sample-seed", str(number)
        )
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "out"
            made = shard(files, output, tokenizer, workers=arguments.workers)
            manifest = json.loads((output / "manifest.json").read_text())
            shutil.rmtree(output / "runs")
            size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
        documents = sum(split["documents"] for split in manifest["splits"].values())
        for name, one, really in (
            ("documents", found["documents"], documents),
            ("tokens", found["tokens"], made.record["tokens"]),
            ("text", found["text_bytes"], made.record["text_bytes"]),
            ("shards", found["shard_bytes"], made.record["shard_bytes"]),
            ("output", {"value": found["cost"]["output"], "error": None}, size),
            ("seconds", {"value": found["cost"]["seconds"], "error": None}, made.seconds),
        ):
            rows.setdefault(name, []).append((one["value"], float(really), one["error"]))
    shown = []
    for name, values in rows.items():
        off = [one / really - 1 for one, really, _ in values]
        said = [error for _, _, error in values if error is not None]
        shown.append(
            (
                name,
                f"{statistics.median(one for one, _, _ in values):,.4g}",
                f"{statistics.median(really for _, really, _ in values):,.4g}",
                ", ".join(f"{each:+.2%}" for each in off),
                ", ".join(f"±{each:.2%}" for each in said),
            )
        )
    print(table(("", "estimate", "run", "off by", "said"), shown))
    save(arguments.result, rows=rows, files=len(files))


if __name__ == "__main__":
    main()
