"""What a command does around its flow run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.running import load_prefect

PROGRAM = "from flows.running import load_prefect; load_prefect(); print('loaded')"


def test_a_start_that_compiles_everything_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    load_prefect()
    assert "PYTHONDONTWRITEBYTECODE" in capsys.readouterr().err
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    load_prefect()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("PREFECT_LOGGING_LEVEL", "banana", "Input should be 'DEBUG'"),
        ("PREFECT_PROFILES_PATH", "profiles.toml", "Invalid value"),
    ],
)
def test_wrong_settings_are_told_in_prefects_words(
    tmp_path: Path, name: str, value: str, told: str
) -> None:
    (tmp_path / "profiles.toml").write_text("active = [")
    ended = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        env={**os.environ, "PREFECT_HOME": str(tmp_path), name: value},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    last = ended.stderr.splitlines()[-1]
    assert "UsageError: Prefect cannot read its settings: " in last
    assert told in last
