"""What a command does around its flow run."""

import sys
from pathlib import Path

import pytest

from flows.running import warn_of_compiling


def test_a_start_that_compiles_everything_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    warn_of_compiling()
    assert "PYTHONDONTWRITEBYTECODE" in capsys.readouterr().err
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    warn_of_compiling()
    assert capsys.readouterr().err == ""
