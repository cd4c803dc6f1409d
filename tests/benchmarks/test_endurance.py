"""The endurance run in short: every kind of fault at least once, and the same bytes."""

import json
import random
from pathlib import Path

import pytest

from benchmarks.endurance import schedule
from benchmarks.endurance.fineweb import DUMPS, FILES, names, write_sources
from tests.benchmarks.test_scripts import run_script

SHORT = 40
IN_HAND = 6  # files at once of two workers, those on their way included


@pytest.mark.soak
@pytest.mark.timeout(1200)  # on a machine that does much else
def test_nothing_is_lost(vocabulary: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    options = ("--files", SHORT, "--rounds", 1, "--link", 0.1, "--no-compare-time")
    options += ("--tokenizer", vocabulary, "--result", result)
    printed = run_script("endurance", *options, cache=tmp_path / "cache")

    assert "the same bytes" in printed
    done = json.loads(result.read_text())
    kinds = set(schedule.KINDS) - set(done["left_out"])
    disturbed = done["runs"]["disturbed, to S3"]
    assert {kind for kind, times in disturbed["faults"].items() if times} == kinds
    assert disturbed["commands"] >= 2  # once more after its kill
    assert done["redone"]["attempts"] <= IN_HAND * disturbed["commands"]
    assert done["redone"]["unknown"] < SHORT / 2


def test_faults_are_drawn_all_along() -> None:
    drawn = schedule.draw(1000, 5, schedule.KINDS, random.Random(0))
    assert drawn == schedule.draw(1000, 5, schedule.KINDS, random.Random(0))
    assert drawn != schedule.draw(1000, 5, schedule.KINDS, random.Random(1))
    a_round = len(schedule.KINDS) + len(schedule.OFTEN)
    for begin in range(0, len(drawn), a_round):
        assert {fault.kind for fault in drawn[begin : begin + a_round]} == set(schedule.KINDS)
    moments = [fault.at for fault in drawn]
    assert moments == sorted(moments)
    assert moments[0] < 150
    assert 750 < moments[-1] <= 900


def test_sources_are_like_those_of_fineweb_edu(tmp_path: Path) -> None:
    all_names = names(FILES)
    assert len(set(all_names)) == len(all_names) == FILES
    assert {name.split("/")[1] for name in all_names} == set(DUMPS)
    first = names(20)[:2]
    assert first == [f"data/CC-MAIN-2013-20/train-0000{i}-of-00010.parquet" for i in (0, 1)]
    assert write_sources(tmp_path / "one", 4, seed=0) == write_sources(tmp_path / "two", 4, seed=0)
    made = sorted(file.relative_to(tmp_path / "one") for file in (tmp_path / "one").rglob("*.*"))
    assert [str(file) for file in made] == names(4)
    for file in made:
        data = (tmp_path / "one" / file).read_bytes()
        assert data == (tmp_path / "two" / file).read_bytes()
        assert 2_000 < len(data) < 500_000
