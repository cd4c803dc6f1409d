"""A plan finds what is left to do from the output's records, if everything else is the same."""

import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import (
    ConfigMismatchError,
    CorruptDatasetError,
    SourceError,
    StorageError,
    UsageError,
)
from streaming_ext.format.layout import BUILD
from streaming_ext.store import LocalStorage
from streaming_ext.text.look import shortened
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.load import open_saved
from tasks.core.config import ShardConfig
from tasks.core.engine.lifecycle import release_scratch
from tasks.core.engine.output_files import scratch_folder
from tasks.core.shard.plan import plan_shard
from tasks.core.shard.sources import find_sources
from tests.tasks.core.doubles import write_source
from tests.tasks.core.planning.conftest import Output


def test_of_an_empty_output_all_is_to_do(output, tmp_path) -> None:
    plan = output.plan()
    assert (plan.todo, plan.published) == ((0, 1, 2, 3), False)
    names = [part.spans[0].source.name for part in plan.parts]
    assert names == [f"{number}.parquet" for number in range(4)]
    assert plan.scratch == tmp_path / ".out.scratch"
    assert open_saved(plan.tokenizer_folder).encode("ab") == [97, 98]
    left = plan.part_scratch(3) / "train.tokens"
    left.parent.mkdir()
    left.touch()  # a killed run leaves this
    output.plan()
    assert not left.parent.exists()
    release_scratch(plan)
    assert not plan.scratch.exists()


def test_a_scratch_folder_that_cannot_be_is_refused(output) -> None:
    with pytest.raises(StorageError, match=r"Cannot write to scratch .*test_plan\.py"):
        output.plan(scratch=f"{__file__}/below")


def test_a_scratch_folder_is_of_one_output(output, tmp_path) -> None:
    config = output.changed(scratch=str(tmp_path / "fast"))
    folders = {scratch_folder(config, LocalStorage(tmp_path / x / "out")) for x in "ab"}
    assert len(folders) == 2
    assert {(each.parent, each.name[:4]) for each in folders} == {(tmp_path / "fast", "out-")}


class TestResume:
    @pytest.mark.parametrize("done", [(3,), (1, 2), (0, 1, 2, 3)])
    def test_recorded_parts_are_not_done_again(self, output, done) -> None:
        output.do(done)
        before = output.content()
        plan = output.plan()
        assert plan.todo == tuple(part for part in range(4) if part not in done)
        assert not plan.published
        assert tuple(counts.part for counts in plan.earlier) == done
        assert all(counts.documents and counts.tokens for counts in plan.earlier)
        assert output.content() == before

    def test_leftovers_of_unrecorded_parts_are_removed(self, output) -> None:
        output.do([0, 1])
        storage = output.storage
        storage.remove("parts/00000.json")  # a kill just before the record leaves this
        storage.put("holdout/00003/shard.00000.mds", b"half")
        storage.put("train/index.json", b"{}")
        incoming = Path(output.config.output, ".incoming")
        (incoming / "half").write_bytes(b"half")
        kept = {path for path in storage.list() if "/00001" in path}
        assert {path.split("/")[0] for path in kept} == {"train", "holdout", "documents", "parts"}
        storage.put("runs/one.json", b"{}")
        assert output.plan().todo == (0, 2, 3)
        assert set(storage.list()) == kept | {"runs/one.json", BUILD}
        assert not list(incoming.iterdir())

    def test_what_was_killed_before_the_first_record_is_not_foreign(self, output) -> None:
        output.plan()
        output.storage.put("train/00000/shard.00000.mds", b"half")
        assert output.plan().todo == (0, 1, 2, 3)
        assert list(output.storage.list()) == [BUILD]

    def test_other_means_may_change_and_the_tokenizer_move(self, output, tmp_path) -> None:
        first = output.do([0])
        moved = shutil.copy(output.config.tokenizer, tmp_path / "renamed.tiktoken")
        plan = output.plan(tokenizer=str(moved), workers=7, scratch=str(tmp_path / "elsewhere"))
        assert plan.todo == (1, 2, 3)
        assert plan.spec == first.spec  # the first run's name for it: the manifest stays the same


class TestStarted:
    """A run has made two parts; a message names what differs, and the output stays as it is."""

    @pytest.fixture
    def started(self, output) -> Output:
        output.do([0, 1])
        return output

    def refusal(self, started: Output, **changes: Any) -> str:
        before = started.content()
        with pytest.raises(ConfigMismatchError) as refused:
            started.plan(**changes)
        assert started.content() == before
        return str(refused.value)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"sequence_length": 16}, "sequence_length: the output has 8, this run asks for 16"),
            ({"holdout_seed": 1}, "holdout_seed: the output has 0, this run asks for 1"),
            ({"holdout_fraction": 0.0}, "holdout_fraction: the output has 0.3"),
            ({"compression": "none"}, "compression: the output has 'zstd:1'"),
            ({"shard_size": 2048}, "shard_size: the output has '1KiB'"),
            ({"deduplicate": "exact"}, "deduplicate: the output has None"),
            ({"shuffle": "documents"}, "shuffle: the output has None"),
            ({"min_tokens": 3}, "filters.min_tokens: the output has None"),
            ({"pattern": "cl100k_base"}, "tokenizer.fingerprint: the output has"),
            ({"max_files": 1}, "part 00001: the output has"),
        ],
    )
    def test_another_configuration(self, started, changes, words) -> None:
        message = self.refusal(started, **changes)
        assert words in message
        assert re.search(r"Use the old .*, or another --output", message)

    def test_a_source_that_moved(self, started, tmp_path) -> None:
        sources = tmp_path / "sources"
        (sources / "1.parquet").rename(sources / "9.parquet")
        message = self.refusal(started)
        assert "was made from other sources" in message
        assert f"the output has {sources}/1.parquet, this run {sources}/2.parquet" in message
        assert "0.parquet" not in message

    def test_sources_of_other_bytes(self, started, tmp_path) -> None:
        path, other = (tmp_path / f"sources/{number}.parquet" for number in (0, 1))
        data = path.read_bytes()
        path.write_bytes(data.replace(b"parquet-cpp-arrow", b"parquet-cpp-ARROW", 1))
        message = self.refusal(started)
        assert f"{path}: content xxh128:" in message
        assert "1.parquet" not in message
        size = other.stat().st_size
        write_source(other, ["x" * 1000])
        now = other.stat().st_size
        assert f"1.parquet: {size} bytes in the dataset, {now} now" in self.refusal(started)

    def test_a_source_that_is_removed_meanwhile(self, started, tmp_path) -> None:
        def remove_once_listed(status: str) -> None:
            if status == "preparing the tokenizer":
                (tmp_path / "sources/1.parquet").unlink()

        with pytest.raises(SourceError, match=r"1\.parquet: cannot be read"):
            plan_shard(started.config, started.storage, remove_once_listed)

    def test_a_source_more_at_the_end_is_a_part_more(self, started, tmp_path) -> None:
        write_source(tmp_path / "sources/9.parquet", ["x"])
        assert started.plan().todo == (2, 3, 4)


def test_many_differences_are_cut() -> None:
    lines = [str(number) for number in range(29)]
    assert shortened(lines) == [*lines[:20], "... and 9 more"]
    assert shortened(lines[:20]) == lines[:20]


def test_a_published_dataset_is_left_alone(output, tmp_path) -> None:
    output.complete()
    release_scratch(output.plan())
    before = output.content()
    again = output.plan()
    assert (again.published, again.todo) == (True, ())
    assert not again.scratch.exists()
    write_source(tmp_path / "sources/9.parquet", ["x"])
    with pytest.raises(ConfigMismatchError, match="complete dataset of 4 parts, .* has 5"):
        output.plan()
    with pytest.raises(ConfigMismatchError, match="sequence_length"):
        output.plan(sequence_length=16)
    assert output.content() == before
    output.storage.put("manifest.json", b"{}")
    with pytest.raises(CorruptDatasetError, match=r"manifest\.json is no valid manifest"):
        output.plan()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["thesis.tex"], "(thesis.tex). Use an empty folder"),
        (["1", "2", "3", "a/4"], "(1, 2, 3 and 1 more files)"),
    ],
)
def test_files_of_others_are_refused_and_kept(output, files, words) -> None:
    for file in files:
        output.storage.put(file, b"mine")
    with pytest.raises(UsageError, match="holds other files") as refused:
        output.plan()
    assert words in str(refused.value)
    assert output.content() == dict.fromkeys(files, b"mine")


def find(config: ShardConfig) -> tuple[SourceFile, ...]:
    return find_sources(config, config.read_options)


class TestFindSources:
    def test_a_file_without_the_column_fails_alone(self, output, tmp_path, caplog) -> None:
        pq.write_table(pa.table({"body": ["x"]}), tmp_path / "sources/2.parquet")
        assert len(find(output.config)) == 4
        (warned,) = caplog.messages
        assert re.fullmatch(
            r"1 file may hold no such text:\n  .*2\.parquet has no column 'text'; .* body.*", warned
        )
        assert len(find(output.changed(max_files=2))) == 2
        assert len(caplog.messages) == 1

    def test_no_file_with_the_column_names_all(self, output, tmp_path) -> None:
        for file in (tmp_path / "sources").iterdir():
            pq.write_table(pa.table({"body": ["x"]}), file)
        with pytest.raises(UsageError) as refused:
            find(output.config)
        named = re.findall(r"(\d)\.parquet has no column 'text'", str(refused.value))
        assert named == ["0", "1", "2", "3"]

    def test_a_damaged_file_is_left_to_its_part(self, output, tmp_path) -> None:
        (tmp_path / "sources/2.parquet").write_bytes(b"no parquet")
        assert len(find(output.config)) == 4
