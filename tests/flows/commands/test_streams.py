"""Standard output and files that cannot be written."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("words", [["inspect"], ["inspect", "--json"]])
def test_a_result_that_cannot_be_written_is_one_line(dataset: Path, words: list[str]) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "flows.cli", *words, dataset],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr == "shardmill: [Errno 28] No space left on device.\n"
