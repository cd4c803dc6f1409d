"""What a command does around its flow run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "from flows.running import load_prefect; load_prefect(); print('loaded')"


@pytest.mark.parametrize(
    ("name", "value", "printed"),
    [
        ("PREFECT_LOGGING_LEVEL", "banana", "Input should be 'DEBUG'"),
        ("PREFECT_PROFILES_PATH", "profiles.toml", "Invalid value"),
    ],
)
def test_wrong_settings_are_reported_in_prefects_words(
    tmp_path: Path, name: str, value: str, printed: str
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
    assert printed in last
