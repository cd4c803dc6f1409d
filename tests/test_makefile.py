"""What `make` sees to for all that it starts."""

import os
import subprocess
from pathlib import Path


def test_what_is_imported_is_compiled_once() -> None:
    shown = subprocess.run(
        ["make", "--silent", "--eval", "shown: ; @env", "shown"],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "SOMETHING": "else"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert "SOMETHING=else" in shown
    assert not [line for line in shown if line.startswith("PYTHONDONTWRITEBYTECODE")]
