"""A run that leaves out copies: killed in the second phase, it resumes to the same bytes."""

from tests.command_line import (
    assert_same_dataset,
    kill_group,
    succeeded,
    wait_for,
    workers_of,
)


def test_killed(with_copies, deduplicated, tmp_path) -> None:
    """The first phase is cut in `tasks/core/deduplicate`."""
    output = tmp_path / "out"
    run = with_copies.start(*with_copies.shard_arguments(output, workers=2, deduplicate="exact"))
    wait_for(lambda: list(output.glob("parts/*.json")) or run.poll() is not None)
    kill_group(run)
    wait_for(lambda: not workers_of(run.pid))
    assert list(output.glob("parts/*.json"))
    ended = succeeded(with_copies.shard(output, workers=2, deduplicate="exact"))
    assert "left out as copies" in ended.stdout
    assert_same_dataset(deduplicated, output)
