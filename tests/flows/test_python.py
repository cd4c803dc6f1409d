"""The functions in a script, a coroutine or a notebook; commands without standard streams."""

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import shardmill
from streaming_ext.base.errors import UsageError
from tests.command_line import CommandLine, in_kernel, run_program, succeeded
from tests.servers.prefect.server import runs_named

# The first run fails, the second works; `shard` finds its error only inside the flow.
MAKE = """
import asyncio
import shardmill

def make():
    try:
        print("made", shardmill.shard(**{refused!r}))
    except Exception as error:
        print("raised", type(error).__name__, error)
    print("made", shardmill.export(**{wanted!r}))

async def make_in_a_coroutine():
    make()
"""
# Prefect answers differently if an event loop runs.
WAYS = {
    "script": "make()",
    "coroutine": "asyncio.run(make_in_a_coroutine())",
    "cell": "make()",
    "awaited cell": "await make_in_a_coroutine()",
}
TRAIN = """
from torch.utils.data import DataLoader
import shardmill
from streaming_ext import StreamingTokenLoader

def train(config, *contexts):
    dataset = shardmill.shard(**config).open(local="cache", batch_size=4)
    for context in contexts:
        how = {"num_workers": 1, "multiprocessing_context": context}
        ours, plain = StreamingTokenLoader(dataset, **how), DataLoader(dataset, batch_size=4, **how)
        for loader in (ours, plain):
            try:
                raise LookupError  # forks inherit the error that is being handled
            except LookupError:
                print("read", context, sum(1 for _ in loader), len(ours))
"""

INTERRUPTED = """
import os, signal, time
from pathlib import Path
from threading import Thread
import shardmill

def interrupt(scratch):
    while not [*scratch.glob("*/documents/*.parquet")]:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)

def make(config, scratch):
    Thread(target=interrupt, args=[Path(scratch)], daemon=True).start()
    try:
        shardmill.shard(**config)
    except KeyboardInterrupt as stop:
        print("raised", type(stop))
"""


def printed_by(program: str, last: str, command: CommandLine, folder: Path, *, cell: bool) -> str:
    """Return what a script, or the cells of a notebook, print."""
    if cell:
        return in_kernel(program, last, env=dict(command.env), folder=folder)
    (folder / "program.py").write_text(f"{program}\nif __name__ == '__main__':\n    {last}\n")
    ended = succeeded(run_program(sys.executable, "program.py", env=command.env, folder=folder))
    return ended.stdout + ended.stderr


@pytest.mark.parametrize("way", WAYS)
def test_a_run_ends_alike_with_and_without_an_event_loop(served, dataset, tmp_path, way) -> None:
    refused = served.shard_config(dataset, sequence_length=256)
    wanted = {"format": "nanogpt", "dataset": str(dataset), "output": str(tmp_path / "out")}
    program = MAKE.format(refused=refused, wanted=wanted)
    printed = printed_by(program, WAYS[way], served, tmp_path, cell="cell" in way)
    assert "raised ConfigMismatchError" in printed
    assert "the output has 128, this run asks for 256" in printed
    assert printed.count(f"made Export('{tmp_path}/out'") == 1
    assert "made Dataset" not in printed
    assert (tmp_path / "out/export.json").is_file()
    assert "never awaited" not in printed
    assert "ipywidgets" not in printed
    assert "\x1b[2K" not in printed  # no bar is drawn if a line cannot be erased


@pytest.mark.parametrize(
    ("cell", "contexts"), [(False, (None, "fork", "spawn", "forkserver")), (True, (None,))]
)
def test_a_process_that_made_a_dataset_trains_on_it(served, tmp_path, cell, contexts) -> None:
    """Forked workers leave out Prefect's exit hooks, because a fork lacks Prefect's threads."""
    last = f"train({served.shard_config(tmp_path / 'out')!r}, *{contexts!r})"
    printed = printed_by(TRAIN, last, served, tmp_path, cell=cell)
    lines = [line.split()[1:] for line in printed.splitlines() if line.startswith("read ")]
    assert [found for _, found, _ in lines] == [planned for *_, planned in lines]
    assert len(lines) == 2 * len(contexts), printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("cell", [False, True])
def test_ctrl_c_raises_what_it_raises_elsewhere(slow, tmp_path, cell) -> None:
    config = slow.shard_config(tmp_path / "out", engine="reference")
    last = f"make({config!r}, {str(tmp_path / '.out.scratch')!r})"
    printed = printed_by(INTERRUPTED, last, slow, tmp_path, cell=cell)
    assert "raised <class 'KeyboardInterrupt'>" in printed
    assert not (tmp_path / "out/manifest.json").exists()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(served, dataset, tmp_path, closed) -> None:
    """No file gets a closed stream's number; it is no error if nobody reads the output."""
    program = [sys.executable, "-P", "-m", "flows.cli"]
    commands = [["inspect", str(dataset)]]
    if len(closed) > len("2>&-"):  # only one of the cases includes a run
        commands += [["export", "nanogpt", str(dataset), "--output", str(tmp_path / "out")]]
    for command in commands:
        words = f"{shlex.join([*program, *command])} {closed}"
        succeeded(run_program("sh", "-c", words, env=served.env))
    assert (tmp_path / "out/export.json").exists() is (len(commands) > 1)


def test_a_terminal_that_is_not_utf8(served, dataset) -> None:
    env = {**served.env, "PYTHONIOENCODING": "ascii"}
    program = [sys.executable, "-P", "-m", "flows.cli", "inspect", dataset, "--sample", "0"]
    assert r"\u25b6 row " in succeeded(run_program(*program, env=env)).stdout


REFUSED = {
    "tokenizer: no file": ({"tokenizer": "/nowhere/a.tiktoken"}, "No such file"),
    "tokenizer: a typo": ({"tokenizer": "gtp2", "pattern": None}, "Did you mean gpt2?"),
    "output: another dataset": ({"sequence_length": 64}, "another configuration"),
    "output: other files": ({"output": "occupied"}, "holds other files"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_reported_before_a_server_is_used(
    served, dataset, tmp_path, monkeypatch, case
) -> None:
    """A server takes seconds to start, and Prefect would show a failed run."""
    changes, message = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "occupied").mkdir()
    (tmp_path / "occupied/notes.txt").write_text("mine")
    config = served.shard_config(dataset) | changes
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    with pytest.raises(UsageError, match=re.escape(message)):
        shardmill.shard(**config)
    assert not (tmp_path / "prefect").exists()


@pytest.mark.parametrize("by", ["environment", "profile"])
def test_where_to_look(served, api_url, tmp_path, by) -> None:
    """The run prints its address first and its report last; Prefect has the report's path too."""
    if by == "profile":
        (tmp_path / "home").mkdir()
        profile = f'active = "p"\n[profiles.p]\nPREFECT_API_URL = "{api_url}"\n'
        (tmp_path / "home/profiles.toml").write_text(profile)
        env = {**served.env, "PREFECT_HOME": str(tmp_path / "home")}
        del env["PREFECT_API_URL"]
        served = replace(served, env=env, warm=False)  # a new process reads the profile
    ended = succeeded(served.shard(tmp_path / "out"))
    (run,) = runs_named(api_url, f"shard {tmp_path}/out")
    address = f"{api_url.removesuffix('/api')}/runs/flow-run/{run['id']}"
    assert f"Prefect shows this run at {address}\n" in ended.stderr
    (page,) = (tmp_path / "out/runs").glob("*.html")
    assert str(page) in ended.stdout
    assert run["state"]["message"].endswith(f"; report: {page}")
