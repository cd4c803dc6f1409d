"""After kill -9 at random moments, the same command gives the same bytes and repeats nothing."""

import random
import shutil
import time
from pathlib import Path

from streaming_ext.format.reading import record_of
from streaming_ext.format.schema import content_hash
from tests.command_line import (
    assert_same_dataset,
    changed_at,
    holds,
    kill_group,
    succeeded,
    wait_for,
)

KILLS = 2


def assert_nothing_is_half_written(output: Path) -> None:
    """Check that every recorded file lies under its final name, complete."""
    for file in output.glob("parts/*"):
        for recorded in record_of(file.read_bytes(), where=str(file)).files():
            assert content_hash((output / recorded.path).read_bytes()) == recorded.xxh128


def test_killed_again_and_again(slow, undisturbed, tmp_path) -> None:
    output = tmp_path / "out"
    rng = random.Random(3)
    arguments = slow.shard_arguments(output, workers=3, engine="reference")
    recorded: dict[str, int] = {}
    landed, longest = 0, 2.0
    while landed < KILLS:
        run = slow.start(*arguments)
        wait_for(lambda run=run: holds(run, output), run)
        time.sleep(rng.uniform(0, longest))
        kill_group(run)
        assert_nothing_is_half_written(output)
        now = changed_at(output)
        assert recorded.items() <= now.items()  # finished parts are not made again
        recorded = now
        if not (output / "manifest.json").exists():
            landed += 1
        elif landed:  # the run was faster than the kill
            break
        else:
            shutil.rmtree(output)
            recorded, longest = {}, longest / 2
    published = (output / "manifest.json").exists()
    ended = succeeded(slow.shard(output, workers=3))
    assert_same_dataset(undisturbed, output)
    now = changed_at(output)
    assert recorded.items() <= now.items()
    new = (
        f", {len(now) - len(recorded)} of them new"
        if recorded
        else f"parts            {len(now)}\n"
    )
    assert published or new in ended.stdout
