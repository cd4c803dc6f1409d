"""A run that leaves out copies: killed in either phase, it goes on to the same bytes."""

from pathlib import Path

from tests.command_line import (
    CommandLine,
    assert_same_dataset,
    kill_group,
    succeeded,
    wait_for,
    workers_of,
)
from tests.tasks.core.build_dataset import build_from


def test_killed(with_copies: CommandLine, tmp_path: Path) -> None:
    """In the second phase; the first one is cut in `tasks/core/deduplicate`."""
    output = tmp_path / "out"
    run = with_copies.start(*with_copies.shard_arguments(output, workers=2, deduplicate="exact"))
    wait_for(lambda: list(output.glob("parts/*.json")) or run.poll() is not None)
    kill_group(run)
    wait_for(lambda: not workers_of(run.pid))
    assert list(output.glob("parts/*.json"))
    ended = succeeded(with_copies.shard(output, workers=2, deduplicate="exact"))
    assert "left out as copies" in ended.stdout
    undisturbed = build_from(
        with_copies.sources, tmp_path / "undisturbed", tokenizer=str(with_copies.tokenizer),
        sequence_length=128, shard_size=with_copies.shard_size, holdout_fraction=0.1,
        deduplicate="exact",
    )  # fmt: skip
    assert_same_dataset(undisturbed, output)
