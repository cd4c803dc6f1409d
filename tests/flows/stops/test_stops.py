"""Signals end a command, whatever its main thread is doing."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from pydantic import BaseModel, model_serializer
from pydantic_core import PydanticSerializationError

from flows.commands import app
from flows.stops import Stopped, stops_held
from tests.command_line import run_program, succeeded


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """Restore the handler of SIGALRM: commands set one to raise a stop again."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, before)


# The signal arrives in a destructor: Python prints the exception raised there, and goes on.
SWALLOWED = """
import signal, time
from flows.stops import Stopped, stop_by_signals, handled

class Destroyed:
    def __del__(self):
        signal.raise_signal({number})
        for _ in range(100): pass

stop_by_signals()
try:
    Destroyed()
    print("swallowed", flush=True)
    time.sleep(600)
except Stopped as stop:
    time.sleep({seconds})  # while it is handled, nothing is raised
    handled()
    print(stop, flush=True)
time.sleep({seconds})
print("once", flush=True)
"""


def test_one_that_was_swallowed_comes_again() -> None:
    code = SWALLOWED.format(number=int(signal.SIGTERM), seconds=0.6)
    ended = run_program(sys.executable, "-P", "-c", code)
    assert ended.stdout.split() == ["swallowed", "SIGTERM", "once"], ended.stderr
    assert "Exception ignored" in ended.stderr


@pytest.mark.parametrize(
    ("stop", "code"),
    [(Stopped(signal.SIGHUP), 129), (Stopped(signal.SIGTERM), 143), (Stopped(signal.SIGINT), 130)],
)
def test_one_that_a_library_wrapped_ends_the_command_as_any(
    stop,
    code,
    capsys,
    monkeypatch,
) -> None:
    class Settings(BaseModel):
        @model_serializer
        def stopped(self) -> dict[str, str]:
            raise stop

    def command() -> None:
        Settings().model_dump()

    with pytest.raises(PydanticSerializationError):
        command()
    assert exit_code(command, monkeypatch) == code
    assert exit_code(partial(_grouped, stop), monkeypatch) == code
    with pytest.raises(BaseExceptionGroup):
        exit_code(partial(_grouped, ZeroDivisionError()), monkeypatch)
    assert capsys.readouterr().err.count("shardmill: stopped.") == 2


def exit_code(command: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> object:
    """Return the exit code of a command line that runs this function."""
    monkeypatch.setattr(app, "app", lambda *_, **__: command())
    with pytest.raises(SystemExit) as exited:
        app.run([])
    return exited.value.code


def _grouped(error: BaseException) -> None:
    raise BaseExceptionGroup("tasks", [OSError(), error])


def test_what_it_takes_to_clean_up_behind_one_is_not_stopped_again(capsys, monkeypatch) -> None:
    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)

    class Slow:
        def __del__(self) -> None:
            time.sleep(0.6)  # longer than the pause before a swallowed stop is raised again

    def command() -> None:
        held = Slow()
        signal.raise_signal(signal.SIGTERM)
        del held

    assert exit_code(command, monkeypatch) == 143
    assert not dropped
    assert capsys.readouterr().err.startswith("shardmill: stopped.")


def test_one_amid_imports_waits_for_their_end() -> None:
    arrived: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: arrived.append(number))
    with stops_held():
        signal.raise_signal(signal.SIGTERM)
        assert not arrived
    assert arrived == [signal.SIGTERM]


# At the interpreter's exit, Prefect tries to send what it holds for a server that is gone.
LEAVING = """
import atexit, sys
import prefect
from flows.cli import main
atexit.register(print, "waited")
sys.argv = ["shardmill", *sys.argv[1:]]
main()
"""


def test_a_command_that_loaded_prefect_does_not_wait_for_the_interpreter_s_exit(
    dataset,
) -> None:
    ended = succeeded(run_program(sys.executable, "-P", "-c", LEAVING, "inspect", dataset))
    assert "tokens" in ended.stdout
    assert "waited" not in ended.stdout
