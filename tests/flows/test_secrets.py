"""A secret in a refused URL reaches neither Prefect's database nor the terminal."""

import os
from pathlib import Path

import pytest

from tests.command_line import CommandLine
from tests.servers import shared

SECRET = "pl4ntedSecret"


@pytest.mark.parametrize(
    "options",
    [
        {"output": f"s3://KEY:{SECRET}@bucket/x"},
        {"output": f"az://container/x?sv=1&sig={SECRET}"},
        {"tokenizer": f"https://user:{SECRET}@host/vocabulary.tiktoken"},
    ],
)
def test_is_not_kept(served: CommandLine, tmp_path: Path, options: dict[str, str]) -> None:
    ended = served.shard(**({"output": tmp_path / "out"} | options))  # type: ignore[arg-type]
    assert ended.returncode == 2
    assert SECRET not in ended.stdout + ended.stderr
    assert "must not hold" in ended.stderr
    databases = list(Path(os.environ[shared.VARIABLE]).glob("prefect/**/*.db*"))
    assert databases
    for database in databases:
        assert SECRET.encode() not in database.read_bytes()
