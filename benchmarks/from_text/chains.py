"""What does a chain of transforms cost, beside the engine alone, epochraft and datasets?

Run: python -m benchmarks.from_text.chains FOLDER --tokenizer TOKENIZER_JSON
         [--peers PYTHON --epochraft SOURCE] [--runs chain "chain, 2 workers" ...]
FOLDER holds JSON Lines. PYTHON is an interpreter with transformers, datasets, smart_open and
braceexpand, SOURCE a folder with epochraft's package. Each figure is of a process of its own, on
the same files with the same tokenizer of transformers: files, tokenize, an end of text, rows of
1,024, shuffle(1000), batch(8); and the same with a Python map and filter of every document. Tokens
a second by the clock, from the first batch on, of a pass or of so many seconds (--seconds). `cores`
are those that the process and its workers kept busy meanwhile, and tokens a second of each of them
say what a free core would do, also where others work on the machine. A chain tokenizes in two,
`here` in none beside the one that asks, as a worker of a DataLoader does with `max_workers=1`.
`twice` are two processes at once that know nothing of each other: what this machine gives two, to
which two workers can come near. Each round goes through all of them (--rounds), and ratios, by the
clock and by processor time, are medians of those within a round. The last lines put what two
workers gave beside that limit; for these alone:

    --runs "chain, here" chain "chain, here, twice" "chain, 2 workers" --rounds 5
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OURS = (
    "engine",
    "engine, twice",
    "chain",
    "chain, here",
    "chain, here, twice",
    "chain, 1 worker",
    "chain, 2 workers",
    "chain, map and filter",
)
PEERS = ("epochraft", "epochraft, map and filter", "datasets")
LENGTH, BUFFER, BATCH = 1024, 1000, 8


def lower(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "text": sample["text"].replace("\t", " ")}


def not_short(sample: dict[str, Any]) -> bool:
    return len(sample["text"]) > 100


def tokenizer_of(path: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=path, eos_token="<|endoftext|>")  # noqa: S106


def chain(options: argparse.Namespace, source: Callable[..., Any], *, functions: bool) -> Any:
    """The same words for both: who knows the one knows the other."""
    tokenizer = tokenizer_of(options.tokenizer)
    dataset = source(str(Path(options.folder) / options.pattern))
    if functions:
        dataset = dataset.map(lower).filter(not_short)
    threads = 1 if "worker" in options.run else 2
    settings = {"parallel": False} if "here" in options.run else {"max_workers": threads}
    dataset = dataset.tokenize(tokenizer, **settings).ensure_bos_eos(tokenizer)
    return dataset.concat_chunk(LENGTH).shuffle(BUFFER).batch(BATCH)


def engine(options: argparse.Namespace) -> dict[str, Any]:
    import pyarrow as pa

    from streaming_ext.transforms.block import Block
    from streaming_ext.transforms.tokenizers import FastTokenizer

    fast = FastTokenizer.of(tokenizer_of(options.tokenizer))
    assert fast is not None, "the engine does not follow this tokenizer"
    blocks = []
    for path in sorted(Path(options.folder).glob(options.glob)):
        texts = [json.loads(line)["text"] for line in path.open()]
        blocks += [
            Block(columns={"text": pa.array(texts[n : n + 1000], pa.large_string())})
            for n in range(0, len(texts), 1000)
        ]
    fast.tokenize(blocks[0], column="text")
    meet(options)
    began, before, tokens = time.perf_counter(), time.process_time(), 0
    for block in blocks:
        tokens += len(fast.tokenize(block, column="text").columns["input_ids"].values)
        if time.perf_counter() - began > options.seconds:
            break
    seconds = time.perf_counter() - began
    return {
        "tokens": tokens,
        "seconds": seconds,
        "first": 0.0,
        "cores": (time.process_time() - before) / seconds,
    }


def meet(options: argparse.Namespace) -> None:
    """Go on when the twin is here too, where there is one."""
    if options.meeting is not None:
        (options.meeting / str(os.getpid())).touch()
        while len(list(options.meeting.iterdir())) < 2:
            time.sleep(0.001)


def watch(batches: Iterable[Any], options: argparse.Namespace) -> dict[str, Any]:
    began = time.perf_counter()
    first, tokens, before, cores = None, 0, 0.0, 0.0
    for batch in batches:
        if first is None:
            meet(options)
            first, before = time.perf_counter(), processor_seconds()
            continue
        tokens += batch["input_ids"].numel()
        if time.perf_counter() - first > options.seconds:
            break
        if tokens // batch["input_ids"].numel() % 20 == 0:
            used = processor_seconds() - before  # workers may be gone at the end
            cores = used / (time.perf_counter() - first)
    assert first is not None
    return {
        "tokens": tokens,
        "seconds": time.perf_counter() - first,
        "first": first - began,
        "cores": cores,
    }


def processor_seconds() -> float:
    """Of this process and its workers."""
    own = Path("/proc/self/task") / str(os.getpid()) / "children"
    pids = [os.getpid(), *map(int, own.read_text().split())]
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def ours(options: argparse.Namespace) -> dict[str, Any]:
    from streaming_ext.transforms import CheckpointableDataset, CheckpointableLoader

    functions = "filter" in options.run
    dataset = chain(options, CheckpointableDataset.from_files, functions=functions)
    if "worker" in options.run:
        workers = 1 if "1 worker" in options.run else 2
        return watch(CheckpointableLoader(dataset, num_workers=workers), options)
    with dataset.iter() as batches:
        found = watch(batches, options)
        return {**found, "state": len(json.dumps(batches.state_dict()))}


def epochraft(options: argparse.Namespace) -> dict[str, Any]:
    sys.path.insert(0, options.epochraft)
    from epochraft import CheckpointableDataset

    functions = "filter" in options.run
    dataset = chain(options, CheckpointableDataset.from_files, functions=functions)
    return watch(dataset, options)


def datasets(options: argparse.Namespace) -> dict[str, Any]:
    import torch
    from datasets import load_dataset

    tokenizer = tokenizer_of(options.tokenizer)

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        ids = tokenizer(batch["text"])["input_ids"]
        stream = [token for one in ids for token in [*one, tokenizer.eos_token_id]]
        ends = range(LENGTH, len(stream) + 1, LENGTH)
        return {"input_ids": [stream[end - LENGTH : end] for end in ends]}

    files = [str(path) for path in sorted(Path(options.folder).glob(options.glob))]
    loaded = load_dataset("json", data_files=files, split="train", streaming=True)
    rows = loaded.map(encode, batched=True, remove_columns=list(next(iter(loaded))))
    batches = rows.shuffle(seed=1, buffer_size=BUFFER).iter(batch_size=BATCH)
    return watch(({"input_ids": torch.tensor(b["input_ids"])} for b in batches), options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--pattern", default="part_{00..07}.jsonl")
    parser.add_argument("--glob", default="part_*.jsonl")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--peers")
    parser.add_argument("--epochraft")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--runs", nargs="+", choices=[*OURS, *PEERS])
    parser.add_argument("--meeting", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--run", choices=[*OURS, *PEERS], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        work = {"engine": engine, "epochraft": epochraft, "datasets": datasets}
        print(json.dumps(work.get(options.run.partition(",")[0], ours)(options)), flush=True)
        os._exit(0)  # epochraft's threads abort the interpreter when it ends
    rates: dict[str, list[tuple[float, float]]] = {}
    for _ in range(options.rounds):
        for run in options.runs or OURS + (PEERS if options.peers else ()):
            found = measured(options, run)
            rate = sum(one["tokens"] / one["seconds"] for one in found) / 1e6
            of_core = rate / sum(one["cores"] for one in found)
            rates.setdefault(run, []).append((rate, of_core))
            more = [{k: round(v, 2) for k, v in one.items() if k != "tokens"} for one in found]
            print(
                f"{run:26} {rate:7.2f} M tokens/s, {of_core:7.2f} a core",
                *more,
                f"load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    for one, other in (
        ("chain", "engine"),
        ("engine, twice", "engine"),
        ("chain, here, twice", "chain, here"),
        ("chain, here, twice", "chain"),
        ("chain, 2 workers", "chain"),
        ("chain, 2 workers", "chain, here"),
        ("chain, 2 workers", "chain, 1 worker"),
        ("chain, 2 workers", "chain, here, twice"),
        ("chain", "epochraft"),
        ("chain", "datasets"),
        ("chain, map and filter", "epochraft, map and filter"),
    ):
        if {one, other} <= rates.keys():
            clock, core = ratios(rates, one, other)
            print(f"{one} / {other}: {clock:.2f}, by processor time {core:.2f}")
    for alone in ("chain", "chain, here"):
        if {alone, "chain, 2 workers", "chain, here, twice"} <= rates.keys():
            got, _ = ratios(rates, "chain, 2 workers", alone)
            limit, _ = ratios(rates, "chain, here, twice", alone)
            print(
                f"two workers over `{alone}`: {got:.2f}; the limit of this machine, of two "
                f"processes that know nothing of each other: {limit:.2f}; of it "
                f"{got / limit:.0%}"
            )


def ratios(
    rates: dict[str, list[tuple[float, float]]], one: str, other: str
) -> tuple[float, float]:
    """Medians over the rounds: by the clock, and by processor time."""
    each = [
        [a / b for a, b in zip(first, second, strict=True)]
        for first, second in zip(rates[one], rates[other], strict=True)
    ]
    clock, core = (statistics.median(ratio) for ratio in zip(*each, strict=True))
    return clock, core


def measured(options: argparse.Namespace, run: str) -> list[dict[str, Any]]:
    """What a process found, or each of two."""
    python = options.peers if run in PEERS else sys.executable
    command = [python, str(Path(__file__)), *sys.argv[1:], "--run", run]
    environment = {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "HOME": str(Path.home()),
        "PATH": "/usr/bin:/bin",
    }
    with tempfile.TemporaryDirectory() as name:
        if "twice" in run:
            command += ["--meeting", name]
        started = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
            for _ in range(2 if "twice" in run else 1)
        ]
        told = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{run} failed")
    return [json.loads(one.splitlines()[-1]) for one in told]


if __name__ == "__main__":
    main()
