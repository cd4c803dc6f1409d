"""The signatures of the public interface, as Python and type checkers see them."""

import inspect
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from streaming_ext import StreamingTextDataset, StreamingTokenDataset
from streaming_ext.training.arguments import KINDS
from streaming_ext.training.features.text import WINDOW, StreamedText

ROOT = Path(__file__).parents[3]
CALLS = Path(__file__).with_name("typed_calls.py")
SETTINGS = {each.name: each for kind in KINDS for each in fields(kind)}


def signature_of(owner: type) -> dict[str, inspect.Parameter]:
    """Return the keyword arguments of a constructor by name."""
    _, *named, stock = inspect.signature(owner).parameters.values()
    first = next(iter(inspect.signature(owner).parameters.values()))
    assert stock.kind is stock.VAR_KEYWORD
    assert all(each.kind is each.KEYWORD_ONLY for each in (first, *named))
    return {each.name: each for each in (first, *named)}


def test_arguments_of_a_dataset_are_the_fields_of_its_settings() -> None:
    declared = {name: (each.type, each.default) for name, each in SETTINGS.items()}
    found = signature_of(StreamingTokenDataset)
    assert {name: (each.annotation, each.default) for name, each in found.items()} == declared
    described = inspect.getdoc(StreamingTokenDataset.__init__) or ""
    assert [name for name in declared if f"\n    {name}: " not in described] == []


def test_arguments_of_a_text_are_those_of_a_dataset_and_of_a_stream_of_text() -> None:
    own: dict[str, Any] = {name: each.default for name, each in SETTINGS.items()}
    own |= {name: each.default for name, each in StreamedText.model_fields.items()}
    del own["remote"], own["proportion_by"], own["proportions"]
    own |= {"sources": None, "tokenizer": None, "shuffle_block_size": WINDOW}
    own["sequence_length"] = inspect.Parameter.empty
    found = signature_of(StreamingTextDataset)
    assert {name: each.default for name, each in found.items()} == own


def wrong_lines() -> list[int]:
    lines = CALLS.read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if line.endswith("# wrong")]


def checked_by(*command: str) -> str:
    """Return the complaints of a type checker about the calls."""
    ended = subprocess.run(
        [sys.executable, "-m", *command, CALLS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.stdout


def test_mypy_refuses_wrong_calls() -> None:
    told = checked_by("mypy", "--output", "json")
    found = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    # With newer stubs of a library, mypy finds other errors in the source.
    here = [each for each in found if each["file"] == str(CALLS.relative_to(ROOT))]
    errors = {each["line"] for each in here if each["severity"] == "error"}
    assert sorted(errors) == wrong_lines(), told


def test_pyright_refuses_wrong_calls() -> None:
    pytest.importorskip("basedpyright")
    found = json.loads(checked_by("basedpyright", "--outputjson", "--level", "error"))
    errors = {each["range"]["start"]["line"] + 1 for each in found["generalDiagnostics"]}
    assert sorted(errors) == wrong_lines(), found
