"""The programs by which shells of tests call commands; what Prefect's workers start in forks."""

import inspect
import subprocess
from pathlib import Path

import pytest
from prefect.runner import _starter_engine, _workspace_starter

from tests.warm import warm_programs
from tests.warm.flow_runs import ENGINE, PREPARATION


@pytest.mark.parametrize(
    ("program", "words", "code", "said"),
    [
        ("shardmill", ["inspect", "nothing here"], 2, "nothing here"),
        ("prefect", ["version"], 0, ""),
    ],
)
def test_they_end_as_the_commands_do(
    environment: dict[str, str],
    tmp_path: Path,
    program: str,
    words: list[str],
    code: int,
    said: str,
) -> None:
    ended = subprocess.run(
        [warm_programs() / program, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    assert said in ended.stderr
    assert ("Version:" in ended.stdout) is (program == "prefect")


def test_what_a_prefect_worker_starts_is_known() -> None:
    """Under other names it would start anew, and nobody would notice but for the time."""
    assert f'"{PREPARATION}"' in inspect.getsource(_workspace_starter)
    assert f'"{ENGINE}"' in inspect.getsource(_starter_engine)
