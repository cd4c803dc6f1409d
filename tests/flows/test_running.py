"""The work of a command around its flow run."""

import os
import sys

import pytest

from tests.command_line import run_program, succeeded

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


def test_a_users_own_packages_of_the_same_names(tmp_path) -> None:
    """Such packages may lie beside a script, or in the folder of `python -m shardmill`."""
    for name in ("tasks.py", "flows/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('not part of shardmill')\n")
    script = "import shardmill\nshardmill.shard\nprint('imported')\n"
    (tmp_path / "script.py").write_text(script)
    ended = succeeded(run_program(sys.executable, "script.py", folder=tmp_path))
    assert ended.stdout == "imported\n"
    ended = succeeded(run_program(sys.executable, "-m", "shardmill", "--version", folder=tmp_path))
    assert ended.stdout.count(".") == 2
    (tmp_path / "tasks.py").write_text("")
    ended = run_program(sys.executable, "-c", "import tasks, shardmill", folder=tmp_path)
    assert f"`tasks` is imported from {tmp_path}/tasks.py already" in ended.stderr
