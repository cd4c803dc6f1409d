"""The main job from the command line, undisturbed."""

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from streaming_ext.format.reading import read_record
from streaming_ext.store import LocalStorage
from streaming_ext.store.disk import INCOMING
from streaming_ext.store.scratch import take_scratch
from tests.command_line import assert_same_dataset, succeeded
from tests.conftest import NUM_FILES


def test_neither_a_server_nor_what_a_run_has_decides_the_bytes(embedded, dataset, tmp_path) -> None:
    options = {"workers": 2, "engine": "reference", "scratch": tmp_path / "elsewhere"}
    ended = succeeded(embedded.shard(tmp_path / "out", **options))
    assert re.search(rf"^parts +{NUM_FILES}$", ended.stdout, re.MULTILINE)
    assert_same_dataset(dataset, tmp_path / "out")
    assert not list((tmp_path / "elsewhere").glob("*"))
    assert not (tmp_path / ".out.scratch").exists()
    # The next server on this home shows all of it, though it was written in batches.
    with closing(sqlite3.connect(Path(embedded.env["PREFECT_HOME"]) / "prefect.db")) as records:
        states = records.execute(
            "SELECT f.state_type, t.state_type, count(*) FROM flow_run f, task_run t "
            "WHERE t.flow_run_id = f.id AND f.name = ? GROUP BY 1, 2",
            [f"shard {tmp_path / 'out'}"],
        ).fetchall()
    assert states == [("COMPLETED", "COMPLETED", 2 * NUM_FILES + 1)]


def test_manifest_and_records_name_neither_times_nor_hosts(dataset) -> None:
    record = read_record(LocalStorage(dataset), 0)
    assert record.spec.tokenizer.name == "small.tiktoken"
    (run,) = (dataset / "runs").glob("*.json")
    host = json.loads(run.read_text())["host"]
    for file in [dataset / "manifest.json", *dataset.glob("parts/*.json")]:
        assert f'"{host}"' not in file.read_text()


def test_what_a_run_left_that_was_killed_at_its_end_is_removed(served, dataset, tmp_path) -> None:
    output, scratch = tmp_path / "out", tmp_path / ".out.scratch"
    shutil.copytree(dataset, output)
    take_scratch(scratch)
    left = output / INCOMING / "0123"
    left.parent.mkdir(exist_ok=True)
    left.touch()
    with LocalStorage(output).exclusive():  # another run, which may be about to end
        succeeded(served.shard(output))
        assert left.exists()
        assert scratch.exists()
    ended = succeeded(served.shard(output))
    assert ended.stdout.startswith(f"{output} is complete; nothing to do.\n")
    assert not scratch.exists()
    assert not left.parent.exists()
    assert_same_dataset(dataset, output)
