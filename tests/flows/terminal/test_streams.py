"""Whatever is printed can be written, and nothing is that nobody asked for."""

import io
import sys
from pathlib import Path

import pytest

from flows.console.consoles import out, write_anything
from tests.flows.conftest import Command
from tests.streaming_ext.build import build, numbered_parts, some_documents


@pytest.mark.parametrize(
    ("encoding", "errors", "written"),
    [
        ("ascii", "strict", rb"\u2588 \xfc \udcff"),
        ("ascii", "surrogateescape", rb"\u2588 \xfc \udcff"),  # as the locale C has it
        ("latin1", "strict", b"\\u2588 \xfc \\udcff"),
        ("ascii", "replace", b"? ? ?"),  # chosen by the user
    ],
)
def test_characters_that_an_encoding_lacks(
    monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str, written: bytes
) -> None:
    held = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(held, encoding=encoding, errors=errors))
    write_anything()
    out.print("█ ü \udcff", markup=False)
    sys.stdout.flush()
    assert held.getvalue() == written + b"\n"


def test_no_progress_in_a_pipe(shardmill: Command, tmp_path: Path) -> None:
    root = build(tmp_path / "dataset", numbered_parts(some_documents(20))).root
    assert shardmill("verify", root).stderr == ""
