"""A shuffled run gives the same bytes for any number of workers, and after kills in each phase."""

import json
import shutil

from tests.command_line import assert_same_dataset, changed_at, kill_group, succeeded, wait_for
from tests.flows.conftest import SHUFFLE

TRIES = 10


def test_other_workers_and_parts(served, shardmill, shuffled, tmp_path) -> None:
    output = tmp_path / "out"
    succeeded(served.shard(output, workers=2, part_size="16KiB", **SHUFFLE))
    assert_same_dataset(shuffled, output)
    succeeded(shardmill("verify", output, "--deep"))
    printed = json.loads(shardmill("inspect", output, "--json").stdout)
    assert printed["shuffled"]["files"] == 5
    assert printed["spec"]["shuffle_seed"] == 3
    assert len(printed["parts"]) > 5
    lines = shardmill("inspect", output).stdout.splitlines()
    assert ["shuffle", "seed", "3"] in [line.split() for line in lines]
    (run,) = printed["runs"]
    assert len(run["merged"]) == len(printed["parts"])
    assert len(run["parts"]) > 5
    sample = shardmill("inspect", output, "--split", "train", "--sample", "3").stdout
    assert ".parquet" in sample
    traced = shardmill("trace", output, "--step", "0", "--batch-size", "2").stdout
    assert "row " in traced
    assert not (output / "shuffle").exists()


def test_killed_in_either_phase(served, shuffled, tmp_path) -> None:
    output = tmp_path / "out"
    arguments = served.shard_arguments(output, workers=2, **SHUFFLE)
    phases = ("shuffle/*.json", "parts/*.json")
    done: dict[str, dict[str, int]] = {}
    for _ in range(TRIES):  # again if the run was faster than the kill
        for folder in phases:
            run = served.start(*arguments)
            wait_for(lambda folder=folder: len(list(output.glob(folder))) > 1, run)
            kill_group(run)
            done[folder] = changed_at(output, folder)
        if not (output / "manifest.json").exists():
            break
        shutil.rmtree(output)
    assert all(len(files) > 1 for files in done.values())
    succeeded(served.run(*arguments))
    assert_same_dataset(shuffled, output)
    parts = done["parts/*.json"]
    assert parts.items() <= changed_at(output).items()
