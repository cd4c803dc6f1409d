"""What a command does around its flow run."""

import os
import sys

import pytest

from tests.command_line import run_program

PROGRAM = "from flows.running import load_prefect; load_prefect(); print('loaded')"


@pytest.mark.parametrize(
    ("name", "value", "printed"),
    [
        ("PREFECT_LOGGING_LEVEL", "banana", "Input should be 'DEBUG'"),
        ("PREFECT_PROFILES_PATH", "profiles.toml", "Invalid value"),
    ],
)
def test_wrong_settings_are_reported_in_prefects_words(tmp_path, name, value, printed) -> None:
    (tmp_path / "profiles.toml").write_text("active = [")
    env = {**os.environ, "PREFECT_HOME": str(tmp_path), name: value}
    ended = run_program(sys.executable, "-P", "-c", PROGRAM, env=env, folder=tmp_path)
    last = ended.stderr.splitlines()[-1]
    assert "UsageError: Prefect cannot read its settings: " in last
    assert printed in last
