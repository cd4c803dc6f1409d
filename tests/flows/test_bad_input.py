"""Wrong usage and damaged data: each gives one clear error."""

import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command_line import (
    assert_same_text,
    ended_as,
    holds,
    refused,
    succeeded,
    wait_for,
)
from tests.conftest import NUM_FILES
from tests.servers.prefect.server import runs_named


@pytest.fixture
def own_sources(sources, tmp_path) -> Path:
    """A copy of the sources that a test may change."""
    return Path(shutil.copytree(sources, tmp_path / "sources"))


class TestUsage:
    """Errors found before any work, and before Prefect is loaded."""

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"sources": "/nonexistent/*.parquet"}, ["/nonexistent/*.parquet", "no file matches"]),
            ({"sources": "ftp://host/x.parquet"}, ["ftp:// is not supported"]),
            ({"text_column": "body"}, ["no column 'body'", "text, id, url", "--text-column"]),
            ({"sequence_length": 100_000}, ["cannot hold one sample", "--shard-size"]),
            ({"where": "lang == 'x'"}, ["has no column 'lang'; its columns are text, id, url"]),
            ({"where": "url > 3"}, ["'url' is of type string, and --where compares it with a"]),
        ],
    )
    def test_is_refused(
        self,
        shardmill,
        served,
        tmp_path,
        options,
        said,
    ) -> None:
        arguments = served.shard_arguments(tmp_path / "out", **options)
        refused(shardmill(*arguments, "--dry-run"), *said)
        assert not (tmp_path / "out/parts").exists()

    def test_no_name_steers_the_terminal_or_stands_in_a_run_s(
        self, served, own_sources, api_url
    ) -> None:
        hostile = "\x1b[2J\x07\nx"
        file, output = own_sources / f"{hostile}.parquet", own_sources.parent / f"out{hostile}"
        pq.write_table(pa.table({hostile: ["a"]}), file)
        escaped = r"\x1b[2J\x07\nx"
        ended = served.shard(output, sources=own_sources)
        refused(ended, escaped)
        assert not set(ended.stderr.rstrip()) & set("\x1b\x07\n")
        file.unlink()

        ended = succeeded(served.shard(output, sources=own_sources))
        assert escaped in ended.stdout
        assert not set(ended.stdout + ended.stderr) & set("\x1b\x07")
        assert len(runs_named(api_url, f"shard {output.parent}/out{escaped}")) == 1


class TestDamagedFiles:
    """Only the bad files fail; once they are repaired, a run makes only their parts."""

    def test_fail_alone(self, served, own_sources, dataset, tmp_path) -> None:
        files = sorted(own_sources.glob("*.parquet"))
        good = [file.read_bytes() for file in files]
        files[0].write_bytes(good[0][: len(good[0]) // 2])
        files[1].write_text("no parquet at all")
        chunk = pq.ParquetFile(files[2]).metadata.row_group(0).column(0)
        middle = chunk.total_compressed_size // 2  # of the first column, inside one of its pages
        files[2].write_bytes(good[2][:middle] + b"\xff" * 64 + good[2][middle + 64 :])
        output = tmp_path / "out"

        ended = refused(served.shard(output, sources=own_sources), code=1)
        assert "Traceback" not in ended.stdout + ended.stderr
        failed = [line for line in ended.stdout.splitlines() if line.startswith("FAILED")]
        assert len(failed) == 3
        for file, reason in zip(files, ("not a whole", "not a whole", "damaged"), strict=False):
            assert any(str(file) in line and reason in line for line in failed)
        assert not (output / "manifest.json").exists()
        assert len(list(output.glob("parts/*.json"))) == NUM_FILES - 3

        for file, data in zip(files, good, strict=True):
            file.write_bytes(data)
        ended = succeeded(served.shard(output, sources=own_sources))
        assert f"{NUM_FILES}, 3 of them new" in ended.stdout
        assert_same_text(dataset, output)


class TestAgainstAnExistingOutput:
    """Runs whose output exists already."""

    def test_two_runs_at_once(self, served, slow, tmp_path) -> None:
        output = tmp_path / "out"
        first = slow.start(*slow.shard_arguments(output, engine="reference"))
        try:
            wait_for(lambda: holds(first, output))
            first.send_signal(signal.SIGSTOP)  # stays at work for ever
            refused(slow.shard(output), "Another run is writing", str(output))
        finally:
            first.kill()
            first.communicate()


class TestStorageFaults:
    """Faults that every other file would meet too, so that they end the run."""

    def test_disk_full(self, slow, undisturbed, tmp_path) -> None:
        """The disk is a small tmpfs in its own mount namespace, which goes away with the run."""
        mount = tmp_path / "small"
        mount.mkdir()
        script = (
            f'mount -t tmpfs -o size=3m tmpfs {mount} && "$@"; code=$?; ls -R {mount}; exit $code'
        )
        prefix = ("unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh")
        arguments = slow.shard_arguments(
            mount / "out", scratch=tmp_path / "scratch", compression="none"
        )
        run = slow.start(*arguments, prefix=prefix)
        stdout, stderr = ended_as(run, 1)
        assert "no space left on device" in stderr
        assert str(mount / "out") in stderr
        assert "Traceback" not in stderr
        assert "manifest.json" not in stdout
        assert "parts" in stdout or "train" in stdout  # the run got this far

    def test_output_removed_half_way(self, slow, tmp_path) -> None:
        output = tmp_path / "out"
        run = slow.start(*slow.shard_arguments(output, engine="reference", workers=1))
        wait_for(lambda: list(output.glob("parts/*.json")), run)
        shutil.rmtree(output, ignore_errors=True)
        _, stderr = ended_as(run, 1)
        assert str(output) in stderr
        assert "Traceback" not in stderr
        assert not (output / "manifest.json").exists()

    @pytest.mark.parametrize("which", ["output", "scratch"])
    def test_not_writable(self, served, tmp_path, which) -> None:
        (tmp_path / "file").touch()  # no user can make a folder below it
        path = tmp_path / "file" / "below"
        options = {"scratch": path} if which == "scratch" else {}
        refused(
            served.shard(path if which == "output" else tmp_path / "out", **options),
            "Cannot write to",
            str(tmp_path / "file"),
            code=1,
        )
