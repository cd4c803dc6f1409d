"""The distribution of test files over the processes of a run."""

from pathlib import Path

from tests.distribution import FIRST, GROUPS, NOT_SERVED, group_of, is_served


def test_groups_stay_together_and_use_the_server_as_a_whole_or_not_at_all() -> None:
    for name, files in GROUPS.items():
        assert {group_of(f"{file}::test[a::b]") for file in files} == {name}
        assert {is_served(file) for file in files} == {is_served(name)}


def test_what_is_named_is_there() -> None:
    """Nothing else would report that a file that was moved is no longer scheduled as named."""
    named = {*FIRST, *NOT_SERVED, *(file for files in GROUPS.values() for file in files)}
    root = Path(__file__).parents[1]
    assert [file for file in sorted(named) if not (root / file).is_file()] == []
