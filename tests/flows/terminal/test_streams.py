"""Whatever is printed can be written, and nothing is that nobody asked for."""

from pathlib import Path

from tests.flows.conftest import Command
from tests.streaming_ext.build import build, numbered_parts, some_documents


def test_no_progress_in_a_pipe(shardmill: Command, tmp_path: Path) -> None:
    root = build(tmp_path / "dataset", numbered_parts(some_documents(20))).root
    assert shardmill("verify", root).stderr == ""
