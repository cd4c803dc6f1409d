"""How soon does training from text begin, or go on in the middle, and how large are its states?

Run: python -m benchmarks.from_text.starts FOLDER --tokenizer FILE [--pattern gpt2]
FOLDER holds JSON Lines, which are cut into 100 files here. Chains (files, tokenize, an end of text,
rows of 1,024, shuffle(1000), batch(8)) and StreamingTextDataset, each row in a process of its own:
from the opening to the first batch of files on disk, of states at 10%, 50% and 90% of a pass, and
of the 100 files behind a web server on loopback, which waits --milliseconds before each answer as a
distant one does. `first batch` has in it what is imported and loaded on the way, such as the
tokenizer, but not torch. Modules are compiled before, as an installation leaves them (else Python
compiles 400 of them in each process, where PYTHONDONTWRITEBYTECODE is set). The text's
dataset was made before; its shards are unpacked, or (`tokens gone`) not. Seconds by the
clock, for which the machine should be idle (`load` says whether it is), and of processor time.
Bounds: a state of 100 KB, 2 s by the clock.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.common import machine

FILES, LENGTH, BATCH = 100, 1024, 8
PLACES = (0.1, 0.5, 0.9)
BOUND_BYTES, BOUND_SECONDS = 100_000, 2.0
CHAINS = ("chain", "chain, remote")
TEXTS = (
    "text, counting",
    "text",
    "text, tokens gone",
    "text, remote, counting",
    "text, remote",
    "text, remote, tokens gone",
)
WARMING = ("chain, remote", "text, remote, counting", "text, remote")


class Handler(SimpleHTTPRequestHandler):
    """Files with a version, and ranges of them."""

    protocol_version = "HTTP/1.1"
    pause = 0.0  # before each answer

    def do_HEAD(self) -> None:
        self._answer(head=True)

    def do_GET(self) -> None:
        self._answer(head=False)

    def _answer(self, *, head: bool) -> None:
        time.sleep(self.pause)
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data, status, size = path.read_bytes(), 200, path.stat().st_size
        headers = {"ETag": f'"{size}"', "Accept-Ranges": "bytes"}
        if span := self.headers.get("Range"):
            first, _, last = span.removeprefix("bytes=").partition("-")
            data, status = data[int(first) : int(last or size) + 1], 206
            end = int(first) + len(data) - 1
            headers["Content-Range"] = f"bytes {first}-{end}/{size}"
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if not head:
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Clients that end leave connections behind."""

    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    server = Server(("127.0.0.1", 0), lambda *request: Handler(*request, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def cut(folder: Path, target: Path) -> None:
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.open("rb")]
    for number in range(FILES):
        (target / f"part-{number:02}.jsonl").write_bytes(b"".join(lines[number::FILES]))


def seconds_to(batches: Any) -> list[float]:
    """By the clock, and of processor time, which other processes do not change so much."""
    began, cpu = time.perf_counter(), time.process_time()
    next(iter(batches()))
    return [time.perf_counter() - began, time.process_time() - cpu]


def chain(options: argparse.Namespace) -> dict[str, Any]:
    from streaming_ext.transforms import CheckpointableDataset

    def dataset() -> CheckpointableDataset:
        files = CheckpointableDataset.from_files(f"{options.url}/part-{{00..99}}.jsonl")
        tokens = files.tokenize(options.tokenizer, pattern=options.pattern, max_workers=2)
        ended = tokens.ensure_bos_eos(options.tokenizer, pattern=options.pattern)
        return ended.concat_chunk(LENGTH).shuffle(1000).batch(BATCH)

    found: dict[str, Any] = {"first batch": seconds_to(dataset)}
    if "remote" in options.run:
        return found
    with dataset().iter() as batches:
        count = sum(1 for _ in batches)
    with dataset().iter() as batches:
        at = 0
        for place in PLACES:
            wanted = int(place * count)
            sum(1 for _ in islice(batches, wanted - at))
            at, state = wanted, batches.state_dict()
            found[f"at {place:.0%}"] = seconds_to(lambda state=state: dataset().iter(state))
            found["state bytes"] = [max(found.get("state bytes", [0])[0], len(json.dumps(state)))]
    return found


def text(options: argparse.Namespace) -> dict[str, Any]:
    from streaming_ext import StreamingTextDataset, StreamingTokenLoader

    def loader() -> StreamingTokenLoader:
        return StreamingTokenLoader(
            StreamingTextDataset(
                sources=f"{options.url}/part-{{00..99}}.jsonl",
                tokenizer=options.tokenizer,
                pattern=options.pattern,
                local=options.cache,
                sequence_length=LENGTH,
                batch_size=BATCH,
                shuffle=True,
                shuffle_seed=17,
            )
        )

    if "counting" in options.run:
        began = time.perf_counter()
        loader()
        return {"counted in": [time.perf_counter() - began]}
    found: dict[str, Any] = {"first batch": seconds_to(loader)}
    for place in PLACES:
        whole = loader()
        whole.skip(int(place * len(whole)))
        state = whole.state_dict()
        if "gone" in options.run:
            forget(options.cache)

        def resumed(state: Any = state) -> StreamingTokenLoader:
            again = loader()
            again.load_state_dict(state)
            return again

        found[f"at {place:.0%}"] = seconds_to(resumed)
        found["state bytes"] = [max(found.get("state bytes", [0])[0], len(json.dumps(state)))]
    return found


def bound(what: str) -> float:
    if what == "counted in":
        return float("inf")
    return BOUND_BYTES if "bytes" in what else BOUND_SECONDS


def forget(cache: Path) -> None:
    for tokens in cache.glob("text-*/.unpacked"):
        while tokens.exists():  # threads of the loader before may still put some there
            shutil.rmtree(tokens, ignore_errors=True)


def measure(
    folder: Path, caches: str, files: Path, url: str, *, runs: Sequence[str]
) -> dict[str, Any]:
    """Do runs, each in a process of its own; returns the figures of the last one."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = kept | {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    found: dict[str, Any] = {}
    for run in runs:
        cache = folder / caches / ("remote" if "remote" in run else "here")
        if "gone" in run:
            forget(cache)
        more = [
            "--run",
            run,
            "--cache",
            str(cache),
            "--url",
            url if "remote" in run else str(files),
        ]
        command = [sys.executable, "-m", "benchmarks.from_text.starts", *sys.argv[1:], *more]
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, env=environment
        )
        found = json.loads(ended.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--pattern")
    parser.add_argument("--milliseconds", type=float, default=20.0)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--run", choices=[*CHAINS, *TEXTS], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps((chain if options.run in CHAINS else text)(options)))
        return
    results: dict[str, Any] = {"machine": machine()}
    Handler.pause = options.milliseconds / 1000
    with tempfile.TemporaryDirectory() as name:
        files = Path(name) / "files"
        files.mkdir()
        cut(options.folder, files)
        with served(files) as url:
            measure(Path(name), "before", files, url, runs=WARMING)
            for run in CHAINS + TEXTS:
                found = results[run] = measure(Path(name), "caches", files, url, runs=[run])
                late = [what for what, value in found.items() if value[0] > bound(what)]
                told = {what: [round(one, 2) for one in value] for what, value in found.items()}
                load = f"load {os.getloadavg()[0]:.1f}"
                print(f"{run:26}", told, load, f"TOO MUCH: {late}" if late else "", flush=True)
    if options.result:
        options.result.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
