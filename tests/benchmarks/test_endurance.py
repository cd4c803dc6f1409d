"""The endurance run in short: every kind of fault strikes at least once; the bytes are the same."""

import json

import pytest

from benchmarks import endurance
from tests.benchmarks.test_scripts import run_script

SHORT = 40
IN_HAND = 6  # files that two workers hold at once, with those on their way


@pytest.mark.soak
@pytest.mark.timeout(1200)  # for a busy machine
def test_nothing_is_lost(tmp_path) -> None:
    result = tmp_path / "result.json"
    options = ("--files", SHORT, "--rounds", 1, "--link", 0.1, "--result", result)
    printed = run_script("endurance", *options, cache=tmp_path / "cache")

    assert "the same bytes" in printed
    done = json.loads(result.read_text())
    kinds = set(endurance.KINDS) - set(done["left_out"])
    disturbed = done["disturbed"]
    assert {kind for kind, times in disturbed["faults"].items() if times} == kinds
    assert disturbed["commands"] >= 2  # one more after the kill
    assert done["redone"]["attempts"] <= IN_HAND * disturbed["commands"]
    assert done["redone"]["unknown"] < SHORT / 2
