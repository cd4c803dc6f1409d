"""The seconds of `shardmill shard` for one small file, the whole command: start, work and end.

python -m benchmarks.start                             # without a server, and with one
python -m benchmarks.start --beside ../older/.venv/bin/shardmill --rounds 10
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.common import default_documents, default_tokenizer, save, table


def once(program: Path, file: Path, tokenizer: Path, env: dict[str, str]) -> tuple[float, float]:
    """Seconds of the clock, and of processors in all processes of the command."""
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        subprocess.run(
            [
                program,
                "shard",
                file,
                "--output",
                Path(folder) / "out",
                "--tokenizer",
                tokenizer,
                "--pattern",
                "gpt2",
                "--holdout-fraction",
                "0.01",
            ],
            env=env,
            cwd=folder,
            check=True,
            capture_output=True,
        )
        seconds = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, used


def main() -> None:
    """Time the programs in turn; the first round warms up and does not count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=Path, action="append", default=[])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--api", help="URL of a Prefect server that runs, to time that too")
    parser.add_argument("--result", type=Path)
    arguments = parser.parse_args()
    file = min(default_documents(), key=lambda file: file.stat().st_size)
    tokenizer = default_tokenizer()
    programs = [Path(sys.executable).with_name("shardmill"), *arguments.beside]
    rows: dict[str, list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory())
        clean = {name: value for name, value in os.environ.items() if "PREFECT_" not in name}
        clean |= {"PREFECT_HOME": home, "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
        for number in range(arguments.rounds + 1):
            for program in programs:
                for name, env in (
                    ("no server", clean),
                    ("server", clean | {"PREFECT_API_URL": arguments.api or ""}),
                ):
                    if name == "no server" or arguments.api:
                        measured = once(program, file, tokenizer, env)
                        if number:
                            rows.setdefault(f"{program}, {name}", []).append(measured)
    found = {
        name: {
            "seconds": statistics.median(one for one, _ in measured),
            "from": min(one for one, _ in measured),
            "to": max(one for one, _ in measured),
            "of processors": statistics.median(used for _, used in measured),
        }
        for name, measured in rows.items()
    }
    print(
        table(
            ("command", "seconds", "from", "to", "of processors"),
            [(name, *(f"{value:.2f}" for value in row.values())) for name, row in found.items()],
        )
    )
    save(arguments.result, seconds=found)


if __name__ == "__main__":
    main()
