"""`--dry-run`, `--quiet`, `--verbose`, `--log-file` and `--json`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import assert_same_dataset, refused, succeeded
from tests.conftest import NUM_FILES


def files_of(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


class TestDryRun:
    def test_nothing_is_done(self, shardmill, embedded, tmp_path) -> None:
        ended = succeeded(shardmill(*embedded.shard_arguments(tmp_path / "out"), "--dry-run"))
        assert f"output            {tmp_path}/out\n" in ended.stdout
        assert f"{NUM_FILES} parts" in ended.stdout
        assert files_of(tmp_path) == set()

    def test_of_a_complete_and_of_an_unfinished_dataset(
        self, shardmill, embedded, dataset, tmp_path
    ) -> None:
        before = files_of(dataset)
        ended = shardmill(*embedded.shard_arguments(dataset), "--dry-run", "--json")
        found = json.loads(ended.stdout)
        assert found["published"]
        assert (found["done"], found["todo"]) == (NUM_FILES, [])
        assert files_of(dataset) == before

        output = tmp_path / "out"
        shutil.copytree(
            dataset, output, ignore=shutil.ignore_patterns("manifest.json", "00003.json")
        )
        before = files_of(output)
        ended = shardmill(*embedded.shard_arguments(output), "--dry-run", "--json")
        found = json.loads(ended.stdout)
        assert found["done"] == NUM_FILES - 1
        assert [Path(url).name for url in found["todo"]] == [
            sorted(path.name for path in embedded.sources.iterdir())[3]
        ]
        assert files_of(output) == before


def test_shard_as_json_with_a_log_file(served, dataset, tmp_path) -> None:
    log = tmp_path / "logs/run.log"
    ended = succeeded(
        served.run(*served.shard_arguments(tmp_path / "out"), "--json", "--log-file", log)
    )
    found = json.loads(ended.stdout)
    assert found["published"]
    assert found["report"]["files_done"] == NUM_FILES
    assert found["dataset"]["parts"] == NUM_FILES
    assert_same_dataset(dataset, tmp_path / "out")
    started = [line for line in log.read_text().splitlines() if "Beginning flow run" in line]
    assert len(started) == 1
    assert "INFO prefect.flow_runs" in started[0]

    ended = refused(
        served.run(
            *served.shard_arguments(tmp_path / "out", holdout_seed=1), "--quiet", "--log-file", log
        ),
        "holdout_seed",
    )
    assert "ERROR shardmill: " in log.read_text()
    assert ended.stdout == ""

    ended = served.run(*served.shard_arguments(tmp_path / "out"), "--quiet")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_inspect_and_verify_as_json_and_quiet(shardmill, dataset) -> None:
    found = json.loads(shardmill("inspect", dataset, "--json").stdout)
    assert found["tokens"] == sum(split["tokens"] for split in found["splits"].values())
    assert len(found["parts"]) == NUM_FILES
    samples = json.loads(shardmill("inspect", dataset, "--sample", 0, "--json").stdout)
    assert samples[0]["excerpts"][0]["text"]
    report = json.loads(shardmill("verify", dataset, "--json").stdout)
    assert report["sound"]
    assert report["checked"]["documents"] == found["documents"]
    ended = shardmill("verify", dataset, "--quiet")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_quiet_and_verbose_report_errors(shardmill, dataset, tmp_path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(dataset, broken, ignore=shutil.ignore_patterns("documents"))
    ended = refused(shardmill("verify", broken, "--quiet"), code=1)
    assert ended.stdout == ""
    assert "documents/00000.parquet" in ended.stderr
    missing = ("inspect", tmp_path / "nope")
    assert shardmill(*missing, "--quiet").stderr.startswith("shardmill: ")
    assert "Traceback" not in shardmill(*missing).stderr
    assert "Traceback" in shardmill(*missing, "--verbose").stderr


@pytest.mark.parametrize(("options", "printed"), [((), 1), (("--quiet",), 0)])
def test_a_warning_is_reported_once(
    shardmill,
    embedded,
    dataset,
    tmp_path,
    options,
    printed,
) -> None:
    """The warning is about a lost file beside the shards of a complete dataset."""
    output = tmp_path / "out"
    shutil.copytree(dataset, output)
    (output / "train/index.json").unlink()
    ended = succeeded(shardmill(*embedded.shard_arguments(output), *options, "--dry-run"))
    assert ended.stderr.count("lost train/index.json; it is published again.") == printed


def test_a_log_file_that_cannot_be_written(shardmill, tmp_path) -> None:
    refused(
        shardmill("inspect", tmp_path, "--log-file", tmp_path),
        f"--log-file {tmp_path}: cannot be written",
    )


def test_completion_can_be_installed(shardmill) -> None:
    assert "--install-completion" in shardmill("--help").stdout


def test_no_progress_in_a_pipe(shardmill, dataset) -> None:
    assert shardmill("verify", dataset).stderr == ""


@pytest.mark.parametrize("words", [["inspect"], ["inspect", "--json"], ["--version"]])
def test_a_result_that_cannot_be_written_is_one_line(dataset, words) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "flows.cli", *words, dataset],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == "shardmill: [Errno 28] No space left on device.\n"


def test_a_problem_that_cannot_be_written_is_told_by_the_exit_code(tmp_path) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "flows.cli", "inspect", tmp_path],
            stdout=full,
            stderr=full,
            check=False,
        )
    assert ended.returncode == 2


def test_a_deleted_folder_is_no_place_to_start(shardmill, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    refused(shardmill("plan", "texts", "--tokenizer", "gpt2"), "folder was deleted. Start in one")


def test_only_linux_is_supported(shardmill, embedded, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tasks.core.linux.SYSTEM", "darwin")
    plan = ["plan", embedded.sources, "--tokenizer", embedded.tokenizer]
    for command in (embedded.shard_arguments(tmp_path / "out"), plan):
        refused(shardmill(*command), "Linux only, and this is darwin")
    assert not (tmp_path / "out").exists()
