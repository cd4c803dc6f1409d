"""Run `shardmill` in processes, as a user does, and look at what it leaves."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from streaming_ext.format.schema import content_hash
from tests.warm import WARM, start_module
from tests.warm.nursery import NURSERY

MODULE = "flows.cli"
Ended = subprocess.CompletedProcess[str]
# The limit for what is sure to happen: within seconds on an idle machine, later on a busy one.
PATIENCE_SECONDS = 240.0
LONGEST_SECONDS = 500.0  # for any command; the test's own limit is a little longer
WORKER = "tasks.core.workers.worker"


@dataclass(frozen=True)
class CommandLine:
    """Runs commands with an environment; `shard` fills in source and tokenizer.

    Attributes:
        env: the whole environment of the commands.
        tokenizer: the tokenizer of `shard`.
        sources: the sources of `shard`.
        shard_size: the shard size of `shard`.
        workers: the number of workers of `shard`.
        warm: True if processes are forked from one that has imported Prefect. Otherwise, and with
            a prefix, each is a new `python -P -m flows.cli`.
    """

    env: Mapping[str, str]
    tokenizer: Path
    sources: Path
    shard_size: str = "16KiB"
    workers: int = 1
    warm: bool = WARM

    def where(self, **env: str) -> "CommandLine":
        """Return the same command line with more in its environment."""
        return replace(self, env={**self.env, **env})

    def run(self, *arguments: object) -> Ended:
        """Run a command to its end."""
        with start_module(MODULE, _words(arguments), self.env, warm=self.warm) as process:
            try:
                stdout, stderr = output_of(process, seconds=LONGEST_SECONDS)
            except BaseException:
                process.kill()
                raise
        return Ended(process.args, process.returncode, stdout, stderr)

    def start(self, *arguments: object, prefix: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
        """Start a command in a process group of its own."""
        return start_module(
            MODULE,
            _words(arguments),
            self.env,
            warm=self.warm,
            new_session=True,
            prefix=prefix,
        )

    def shard_arguments(self, output: Path | str, **options: object) -> list[object]:
        """Return arguments to shard the session's small files; options replace or add some."""
        chosen = self._options | options
        named = [(f"--{name.replace('_', '-')}", value) for name, value in chosen.items()]
        return ["shard", "--output", output, *(word for pair in named for word in pair)]

    def shard_config(self, output: Path | str, **options: object) -> dict[str, object]:
        """Return the same arguments as the configuration that a deployment takes."""
        places = {"output": str(output), "tokenizer": str(self.tokenizer)}
        return {**self._options, "sources": [str(self.sources)], **places, **options}

    @property
    def _options(self) -> dict[str, object]:
        return {
            "sources": self.sources,
            "tokenizer": self.tokenizer,
            "pattern": "gpt2",
            "sequence_length": 128,
            "shard_size": self.shard_size,
            "holdout_fraction": 0.1,
            "workers": self.workers,
        }

    def shard(self, output: Path | str, **options: object) -> Ended:
        """Run `shard` on the session's small files, or as the options say, to its end."""
        return self.run(*self.shard_arguments(output, **options))


def _words(arguments: Iterable[object]) -> list[str]:
    return [str(argument) for argument in arguments]


def succeeded(ended: Ended) -> Ended:
    """Check that a command ended with exit code 0, and return it."""
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


def refused(ended: Ended, *said: str, code: int = 2) -> Ended:
    """Check that a command failed, by default for wrong usage, and that it said all of `said`."""
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    for words in said:
        assert words in ended.stderr
    return ended


def run_program(
    *words: object, env: Mapping[str, str] | None = None, folder: Path | None = None
) -> Ended:
    """Run any program to its end, by default in this process's environment and folder."""
    return subprocess.run(
        _words(words), env=env, cwd=folder, capture_output=True, text=True, check=False
    )


def output_of(process: "subprocess.Popen[str]", *, seconds: float) -> tuple[str, str]:
    """Return what a command wrote to standard output and error, once it has ended.

    Raises:
        AssertionError: it did not end in time; the message says where each of its threads stood.
    """
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler reports where it stands
        stdout, stderr = process.communicate()
        raise AssertionError(f"not ended within {seconds} s:\n{stdout}\n{stderr}") from None


def ended_as(
    process: "subprocess.Popen[str]", code: int = 0, *, seconds: float = PATIENCE_SECONDS
) -> tuple[str, str]:
    """Return standard output and error of a command that has ended with an exit code."""
    stdout, stderr = output_of(process, seconds=seconds)
    assert process.returncode == code, stdout + stderr
    return stdout, stderr


def kill_group(run: "subprocess.Popen[str]") -> None:
    """Kill a started command and its group with `kill -9`, if it has not ended, and collect it."""
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.communicate()


def workers_of(pid: int) -> list[psutil.Process]:
    """Return the worker processes of a run, started anew or forked."""
    try:
        children = processes_below(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return []
    forked = WORKER.rpartition(".")[2]
    return [child for child in children if WORKER in _command_line(child) or _name(child) == forked]


def processes_below(process: psutil.Process) -> list[psutil.Process]:
    """Return the descendants of a process, except the one from which programs are forked."""
    return [child for child in process.children(recursive=True) if _name(child) != NURSERY]


def holds(run: "subprocess.Popen[str]", output: Path) -> bool:
    """Return whether a run has begun on a local output; its workers start before that."""
    lock = output / "runs/.lock"
    return lock.is_file() and f'"pid":{run.pid},' in lock.read_text()


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process still runs; one that only waits to be collected does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def within_a_minute() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 60


def wait_for(
    condition: Callable[[], object],
    run: "subprocess.Popen[str] | None" = None,
    *,
    seconds: float = PATIENCE_SECONDS,
) -> None:
    """Wait until a condition holds, or a command has ended.

    The pause is short if the condition is answered fast, and longer if a server has to answer.

    Raises:
        AssertionError: neither happened in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        if condition() or (run is not None and run.poll() is not None):
            return
        answered = time.monotonic()
        assert answered < deadline, f"not within {seconds} s"
        time.sleep(min(max(0.02, 4 * (answered - asked)), 0.25))


def file_hashes(root: Path) -> dict[str, str]:
    """Return the hash of each file of a dataset, except the reports of its runs."""
    return {
        file.relative_to(root).as_posix(): content_hash(file.read_bytes())
        for file in sorted(root.rglob("*"))
        if file.is_file() and not file.is_relative_to(root / "runs")
    }


def changed_at(output: Path, pattern: str = "parts/*.json") -> dict[str, int]:
    """Return the time at which each file of a pattern was written."""
    return {file.name: file.stat().st_mtime_ns for file in output.glob(pattern)}


def assert_same_dataset(one: Path, other: Path) -> None:
    """Check that both folders hold the same files with the same bytes, `runs/` aside."""
    found = file_hashes(one)
    assert found == file_hashes(other)
    assert "manifest.json" in found


def assert_same_text(one: Path, other: Path) -> None:
    """Check for the same shards and lists of documents; the sources may have lain elsewhere."""
    for folder in ("train", "holdout", "documents"):
        assert file_hashes(one / folder) == file_hashes(other / folder) != {}


def in_kernel(*cells: str, env: dict[str, str], folder: Path) -> str:
    """Run the cells of a notebook in a kernel of their own, and return what they print."""
    from jupyter_client.manager import start_new_kernel

    printed: list[str] = []

    def keep(message: dict[str, dict[str, str]]) -> None:
        content = message["content"]
        printed.extend(str(content[name]) for name in ("text", "evalue", "data") if name in content)

    manager, client = start_new_kernel(kernel_name="python3", env=env, cwd=str(folder))
    try:
        for cell in cells:
            client.execute_interactive(cell, output_hook=keep, timeout=240)
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    return "".join(printed)
