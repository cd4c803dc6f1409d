"""A run that leaves out copies: killed in either phase, it goes on to the same bytes."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

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


@pytest.mark.soak  # commands that tests of the parts prove but for their words
def test_reported(with_copies: CommandLine, deduplicated: Path) -> None:
    listed = [pq.read_table(file) for file in sorted(deduplicated.glob("duplicates/*.parquet"))]
    documents = sum(map(len, listed))
    tokens = sum(sum(table["tokens"].to_pylist()) + len(table) for table in listed)
    assert documents > 10
    printed = json.loads(with_copies.run("inspect", deduplicated, "--json").stdout)
    assert (printed["duplicate_documents"], printed["duplicate_tokens"]) == (documents, tokens)
    (run,) = printed["runs"]
    assert (run["duplicate_documents"], run["duplicate_tokens"]) == (documents, tokens)
    shown = with_copies.run("inspect", deduplicated).stdout
    assert "tokens, left out (exact)" in " ".join(shown.split())
    (page,) = deduplicated.glob("runs/*.html")
    assert f"{documents:,} documents of {tokens:,} tokens" in page.read_text()
    verified = succeeded(with_copies.run("verify", deduplicated, "--deep"))
    assert f"{documents} documents left out as copies" in verified.stdout
