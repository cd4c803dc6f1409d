"""The programs by which shells of tests call commands."""

import subprocess
from pathlib import Path

import pytest

from tests.warm import warm_programs


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
