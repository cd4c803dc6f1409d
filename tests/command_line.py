"""Running `shardmill` as a user does, in processes, and looking at what it leaves."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from streaming_ext.format.schema import content_hash
from tests.warm import WARM, start_module
from tests.warm.nursery import NURSERY

MODULE = "flows.cli"
Ended = subprocess.CompletedProcess[str]
# For what is sure to come: some seconds on an idle machine, more on one that does much else.
PATIENCE_SECONDS = 240.0
LONGEST_SECONDS = 500.0  # of any command; the test ends a little later
WORKER = "tasks.core.workers.worker"


@dataclass(frozen=True)
class CommandLine:
    """Runs commands with an environment; `shard` fills in source and tokenizer.

    Attributes:
        env: of the commands, the whole of it.
        tokenizer: of `shard`.
        sources: of `shard`.
        shard_size: of `shard`.
        workers: of `shard`.
        warm: whether processes are forked from one that has imported Prefect. Otherwise, and with
            a prefix, each is a new `python -P -m flows.cli`.
    """

    env: Mapping[str, str]
    tokenizer: Path
    sources: Path
    shard_size: str = "16KiB"
    workers: int = 1
    warm: bool = WARM

    def where(self, **env: str) -> "CommandLine":
        """The same with more in its environment."""
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
        """Arguments that shard the session's small files; options override or add to these."""
        chosen = self._options | options
        named = [(f"--{name.replace('_', '-')}", value) for name, value in chosen.items()]
        return ["shard", "--output", output, *(word for pair in named for word in pair)]

    def shard_config(self, output: Path | str, **options: object) -> dict[str, object]:
        """The same as the configuration that a deployment takes."""
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
        """Shard the session's small files, or what the options say, to the end."""
        return self.run(*self.shard_arguments(output, **options))


def _words(arguments: Iterable[object]) -> list[str]:
    return [str(argument) for argument in arguments]


def succeeded(ended: Ended) -> Ended:
    """A command that ended with exit code 0."""
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


def refused(ended: Ended, *said: str, code: int = 2) -> Ended:
    """A command that ended with an error, for wrong usage by default, and said all of `said`."""
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
    """What a command wrote to standard output and error, when it has ended.

    Raises:
        AssertionError: it did not in time, with what each of its threads was at.
    """
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler writes where it stands
        stdout, stderr = process.communicate()
        raise AssertionError(f"not ended within {seconds} s:\n{stdout}\n{stderr}") from None


def ended_as(
    process: "subprocess.Popen[str]", code: int = 0, *, seconds: float = PATIENCE_SECONDS
) -> tuple[str, str]:
    """Standard output and error of a command that has ended with an exit code."""
    stdout, stderr = output_of(process, seconds=seconds)
    assert process.returncode == code, stdout + stderr
    return stdout, stderr


def kill_group(run: "subprocess.Popen[str]") -> None:
    """kill -9 of a started command and all of its group, if it has not ended; it is collected."""
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.communicate()


def workers_of(pid: int) -> list[psutil.Process]:
    """The worker processes of a run, started anew or forked."""
    try:
        children = processes_below(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return []
    forked = WORKER.rpartition(".")[2]
    return [child for child in children if WORKER in _command_line(child) or _name(child) == forked]


def processes_below(process: psutil.Process) -> list[psutil.Process]:
    """The processes that one has started, and these in turn; without what is there for forks."""
    return [child for child in process.children(recursive=True) if _name(child) != NURSERY]


def holds(run: "subprocess.Popen[str]", output: Path) -> bool:
    """Whether a run has begun on a local output; its workers are started before."""
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
    """Whether a process still runs; one that only waits to be collected does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(
    condition: Callable[[], object],
    run: "subprocess.Popen[str] | None" = None,
    *,
    seconds: float = PATIENCE_SECONDS,
) -> None:
    """Wait until a condition holds, or a command has ended.

    It is asked often where an answer costs nothing, and more rarely where a server gives it.

    Raises:
        AssertionError: it did not in time.
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
    """The hash of each file of a dataset, but of the reports of its runs."""
    return {
        file.relative_to(root).as_posix(): content_hash(file.read_bytes())
        for file in sorted(root.rglob("*"))
        if file.is_file() and not file.is_relative_to(root / "runs")
    }


def changed_at(output: Path, pattern: str = "parts/*.json") -> dict[str, int]:
    """The time at which each of some files was written."""
    return {file.name: file.stat().st_mtime_ns for file in output.glob(pattern)}


def assert_same_dataset(one: Path, other: Path) -> None:
    """Both folders hold the same files with the same bytes, `runs/` aside."""
    found = file_hashes(one)
    assert found == file_hashes(other)
    assert "manifest.json" in found


def assert_same_text(one: Path, other: Path) -> None:
    """The same shards and lists of documents, from sources that may have lain elsewhere."""
    for folder in ("train", "holdout", "documents"):
        assert file_hashes(one / folder) == file_hashes(other / folder) != {}


def in_kernel(*cells: str, env: dict[str, str], folder: Path) -> str:
    """Run the cells of a notebook in a kernel of their own; returns what they print."""
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
