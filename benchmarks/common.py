"""Code that benchmarks share: the machine, running and watching commands, tables."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.synthetic import make_documents, train_vocabulary, write_parquet_files

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("SHARDMILL_BENCH_CACHE", "~/.cache/shardmill-bench")).expanduser()
SCRATCH = CACHE / "scratch"
SHARED = Path(os.environ["SHARDMILL_SHARED"]) if "SHARDMILL_SHARED" in os.environ else None
_TORCH = "torch==2.13.0"  # this wheel is for CPUs; later ones bring gigabytes
_DATASETS = ("datasets==5.2.0", "tokenizers", "tiktoken", "torchdata==0.11.0", _TORCH)
# The packages to install for a peer: the peer itself, and the needs of the scripts.
PEERS: dict[str, tuple[str, ...]] = {
    "mosaicml-streaming": ("mosaicml-streaming==0.13.0", _TORCH, "tiktoken", "pyarrow"),
    "litdata": ("litdata==0.2.76", _TORCH, "tiktoken", "pyarrow"),
    "datasets": _DATASETS,
    "torchdata": _DATASETS,
    "grain": ("grain==0.2.18", _TORCH),
    "datatrove": (
        *("datatrove==0.10.1", "tokenizers", "pyarrow", "humanize", "regex"),
        *("xxhash==3.5.0", "orjson", "spacy"),  # spacy: splits words for its MinHash
    ),
    "dolma": ("dolma==1.2.1", "boto3==1.28.17", "s3fs==2023.6.0", "pyarrow==19.0.1"),
    "megatron-core": ("megatron-core==0.16.1", _TORCH, "pyarrow"),
    "webdataset": ("webdataset==1.0.2", _TORCH),
}
WORKER = "tasks.core.workers.worker"
_WATCH_SECONDS = 0.25


def machine() -> dict[str, str]:
    """Return the processor, cores, memory, system and Python, but no host name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": platform.system(),
        "Python": platform.python_version(),
    }


def parser(about: str | None, **defaults: float) -> argparse.ArgumentParser:
    """Return a parser with `--result` and an option for each number, such as `rounds=3`."""
    made = argparse.ArgumentParser(description=about)
    for name, value in defaults.items():
        made.add_argument(f"--{name}", type=type(value), default=value, help=f"default: {value:g}")
    made.add_argument("--result", type=Path, help="file to keep the result in, as JSON")
    return made


def environment(peer: str) -> Path:
    """Return the Python of an environment that holds a peer; make the environment on first use."""
    requirements = PEERS[peer]
    folder = CACHE / "venvs" / requirements[0].replace("==", "-")
    python, mark = folder / "bin/python", folder / "requirements.json"
    if not mark.exists() or json.loads(mark.read_text()) != list(requirements):
        print(f"installing {' '.join(requirements)} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-I", "-m", "pip", "install", "-q", *requirements], check=True)
        mark.write_text(json.dumps(requirements))
    return python


@dataclass(frozen=True, slots=True)
class Measured:
    """A command that has run.

    Attributes:
        seconds: the seconds from its start to its end.
        cpu_seconds: the processor time of the command and its children.
        output: the text that it printed.
        memory: the most resident bytes of each process, by its id and command line.
    """

    seconds: float
    cpu_seconds: float
    output: str
    memory: dict[str, int]

    def peak(self, name: str = "") -> float:
        """Return the peak memory of a process with `name` in its command line, in MiB."""
        found = (size for command, size in self.memory.items() if name in command)
        return max(found, default=0) / 2**20


def run(command: Sequence[str | Path], *, interval: float | None = None) -> Measured:
    """Run a command to its end, and sample its process tree every `interval` seconds.

    Raises:
        SystemExit: the command failed; its output is shown.
    """
    began, cpu, busy = time.monotonic(), _children_cpu(), _busy()
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_HOME": str(CACHE / "prefect")},
    )
    memory: dict[str, int] = {}
    seen: dict[int, float] = {}
    watch = (process.pid, interval or _WATCH_SECONDS, memory, seen)
    threading.Thread(target=_watch, args=watch, daemon=True).start()
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command[:4]))} ... failed:\n{output[-4000:]}")
    # Exact for children that their parent waits for; datatrove's are only sampled.
    seconds, used = time.monotonic() - began, max(_children_cpu() - cpu, sum(seen.values()))
    others = (_busy() - busy - used) / seconds
    if others > 0.1:
        print(f"others kept {others:.2f} cores busy meanwhile", file=sys.stderr)
    return Measured(seconds, used, output, memory)


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _busy() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def _watch(
    pid: int,
    interval: float,
    memory: dict[str, int],
    cpu_seconds: dict[int, float],
) -> None:
    try:
        parent = psutil.Process(pid)
        while True:
            for process in (parent, *parent.children(recursive=True)):
                try:
                    name = f"{process.pid} {' '.join(process.cmdline())}"
                    size = process.memory_info().rss
                    times = process.cpu_times()
                except psutil.Error:  # it has just ended
                    continue
                memory[name] = max(size, memory.get(name, 0))
                cpu_seconds[process.pid] = times.user + times.system
            time.sleep(interval)
    except psutil.NoSuchProcess:
        return


def shardmill(*words: object, interval: float | None = None) -> Measured:
    """Run a Shardmill command as a user does."""
    return run([sys.executable, "-P", "-m", "flows.cli", *map(str, words)], interval=interval)


def peer(
    function: str, *words: object, env: str | None = None, interval: float | None = None
) -> tuple[dict[str, Any], Measured]:
    """Run a function of `peers.py`; return its last line and the measurement."""
    python = environment(env) if env else Path(sys.executable)
    command = [python, "-P", ROOT / "benchmarks/peers.py", function, *map(str, words)]
    done = run(command, interval=interval)
    return json.loads(done.output.splitlines()[-1]), done


def fresh(folder: Path) -> Path:
    """Remove a folder, and return its path."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def shard(
    files: Iterable[Path],
    output: Path,
    *options: str,
    workers: int = 2,
    interval: float | None = None,
) -> tuple[dict[str, Any], Measured]:
    """Run the pipeline into a new folder; return the report of the run and the measurement.

    The `seconds` of the report count from the first file to the published manifest.
    """
    words = ["shard", *files, "--output", fresh(output), "--tokenizer", default_tokenizer()]
    words += ["--pattern", "gpt2", "--workers", workers, *options]
    measured = shardmill(*words, interval=interval)
    (record,) = (output / "runs").glob("*.json")
    return json.loads(record.read_text()), measured


def as_lines(parquet: Path, folder: Path) -> Path:
    """Write the texts of a Parquet file as JSON Lines in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{parquet.stem}.jsonl"
    with path.open("w") as file:
        for batch in pq.ParquetFile(parquet).iter_batches(1000, columns=["text"]):
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())
    return path


def default_tokenizer() -> Path:
    """Return GPT-2's rank file if `SHARED` is set, else a small one that is trained here."""
    return SHARED / "data/vocab/r50k_base.tiktoken" if SHARED else _made_up() / "made_up.tiktoken"


def json_tokenizer() -> Path:
    """Return GPT-2's tokenizer.json.

    Raises:
        SystemExit: `SHARED` is not set.
    """
    if SHARED is None:
        raise SystemExit("This peer needs a tokenizer.json: set SHARDMILL_SHARED.")
    return SHARED / "data/vocab/gpt2-tokenizer.json"


def default_documents() -> list[Path]:
    """Return Parquet files of real documents if `SHARED` is set, else of made-up ones."""
    return sorted((SHARED / "data/parquet" if SHARED else _made_up()).glob("*.parquet"))


def _made_up() -> Path:
    folder = CACHE / "made-up"
    vocabulary = folder / "made_up.tiktoken"
    if not vocabulary.exists():
        write_parquet_files(folder, num_files=4, documents_per_file=1000, seed=0)
        train_vocabulary(make_documents(1000, seed=0), 8192, vocabulary)
    return folder


def text_bytes(files: Iterable[Path]) -> int:
    """Return the bytes of text in Parquet files."""
    tables = (pq.read_table(path, columns=["text"]) for path in files)
    return sum(pc.sum(pc.binary_length(table["text"])).as_py() for table in tables)


def back_memory(size: float) -> None:
    """Touch `size` bytes of memory, at most half of the free memory, and give it back.

    A virtual machine gets a page from its host when it first touches the page. This may take
    seconds per gigabyte and does not last, so the run that writes more files would pay for it.
    """
    size = min(int(size), psutil.virtual_memory().available // 2)
    code = "import sys, numpy; numpy.ones(int(sys.argv[1]), numpy.uint8)"
    subprocess.run([sys.executable, "-c", code, str(size)], check=True)


def pool_seconds(work: Callable[[Any], object], items: Sequence[Any], workers: int) -> float:
    """Measure the seconds that processes take for all items, without their start-up."""
    with multiprocessing.Pool(workers) as pool:
        pool.map(_nothing, range(workers), chunksize=1)
        began = time.monotonic()
        pool.map(work, items, chunksize=1)
        return time.monotonic() - began


def _nothing(_: int) -> None:
    pass


def rounds(
    contenders: dict[str, Callable[[], float]], count: int, *, backed: float = 0
) -> dict[str, list[float]]:
    """Measure each contender once per round; before, touch `backed` bytes (see `back_memory`)."""
    values: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(count):
        for name, measure in contenders.items():
            if backed:
                back_memory(backed)
            values[name].append(measure())
            print(f"round {number + 1}, {name}: {values[name][-1]:.4g}", file=sys.stderr)
    return values


def medians(values: dict[str, list[float]]) -> dict[str, float]:
    """Return the median of each contender."""
    return {name: statistics.median(each) for name, each in values.items()}


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    shown: list[Sequence[object]] = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in row)} |" for row in shown)


def save(path: Path | None, **result: object) -> None:
    """Keep a result as JSON, with the machine."""
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")
