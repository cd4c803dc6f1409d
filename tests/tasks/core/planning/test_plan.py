"""What is left to do: by the records on the output alone, and only where all else is the same."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import (
    ConfigMismatchError,
    CorruptDatasetError,
    ScratchError,
    SourceError,
    StorageError,
    TokenizerError,
    UsageError,
)
from streaming_ext.format.layout import BUILD
from streaming_ext.store import LocalStorage
from streaming_ext.text.tokenizer.load import open_saved
from tasks.core.build.engine import drop
from tasks.core.build.outside import scratch_folder
from tasks.core.config import ShardConfig
from tasks.core.reading.dataset_files import read_records
from tasks.core.shard.shard_build import ShardBuild
from tasks.core.shard.sources import check_sources, look_into_sources
from tests.tasks.core.doubles import do, write_source
from tests.tasks.core.planning.conftest import NUM_SOURCES
from tests.tasks.core.running import make_plan, publish


@pytest.fixture
def storage(config: ShardConfig) -> LocalStorage:
    made = LocalStorage(Path(config.output))
    made.create()
    return made


@pytest.fixture
def planned(storage: LocalStorage) -> Callable[[ShardConfig], ShardBuild]:
    def make(config: ShardConfig) -> ShardBuild:
        return make_plan(config, storage, check_sources(config))

    return make


def changed(config: ShardConfig, **changes: Any) -> ShardConfig:
    return ShardConfig(**(config.model_dump() | changes))


Planned = Callable[[ShardConfig], ShardBuild]


class TestFresh:
    def test_all_is_to_do(self, config: ShardConfig, planned: Planned, tmp_path: Path) -> None:
        plan = planned(config)
        assert plan.todo == (0, 1, 2, 3)
        assert not plan.published
        assert [part.spans[0].source.name for part in plan.parts] == [
            f"{n}.parquet" for n in range(4)
        ]
        assert plan.scratch == tmp_path / ".out.scratch"
        assert plan.part_scratch(3) == tmp_path / ".out.scratch/00003"
        assert open_saved(plan.tokenizer_folder).encode("ab") == [97, 98]
        drop(plan)
        assert not plan.scratch.exists()

    def test_old_scratch_is_removed(self, config: ShardConfig, planned: Planned) -> None:
        plan = planned(config)
        (plan.part_scratch(0)).mkdir()
        (plan.part_scratch(0) / "train.tokens").touch()
        planned(config)
        assert not plan.part_scratch(0).exists()

    def test_a_folder_of_others_in_its_place_stays(
        self, config: ShardConfig, planned: Planned, tmp_path: Path
    ) -> None:
        (tmp_path / "victim/thesis").mkdir(parents=True)
        (tmp_path / ".out.scratch").symlink_to("victim")
        with pytest.raises(ScratchError, match=r"\.out\.scratch is a link"):
            planned(config)
        assert (tmp_path / "victim/thesis").is_dir()

    def test_scratch_that_cannot_be_written(
        self, config: ShardConfig, planned: Planned, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(StorageError, match="Cannot write to scratch .*file"):
            planned(changed(config, scratch=str(tmp_path / "file/below")))

    def test_tokenizer_that_is_not_there(
        self, config: ShardConfig, planned: Planned, tmp_path: Path
    ) -> None:
        with pytest.raises(TokenizerError, match="nowhere"):
            planned(changed(config, tokenizer=str(tmp_path / "nowhere.tiktoken")))

    def test_a_shard_too_small_for_a_sample(self, config: ShardConfig, planned: Planned) -> None:
        with pytest.raises(UsageError, match="cannot hold one sample"):
            planned(changed(config, sequence_length=1000))

    @pytest.mark.parametrize("scratch", [None, "fast"])
    def test_scratch_folder(
        self, config: ShardConfig, storage: LocalStorage, tmp_path: Path, scratch: str | None
    ) -> None:
        where = None if scratch is None else str(tmp_path / scratch)
        parent = tmp_path if scratch is None else tmp_path / scratch
        found = scratch_folder(changed(config, scratch=where), storage)
        assert found.parent == parent
        assert found.name == ".out.scratch" if scratch is None else found.name.startswith("out-")

    def test_outputs_of_one_name_do_not_share_a_scratch_folder(
        self, config: ShardConfig, tmp_path: Path
    ) -> None:
        config = changed(config, scratch=str(tmp_path / "fast"))
        folders = {scratch_folder(config, LocalStorage(tmp_path / x / "out")) for x in "ab"}
        assert len(folders) == 2


class TestResume:
    @pytest.mark.parametrize("done", [(), (0,), (3,), (1, 2), (0, 1, 2, 3)])
    def test_recorded_parts_are_not_done_again(
        self, config: ShardConfig, storage: LocalStorage, planned: Planned, done: tuple[int, ...]
    ) -> None:
        do(planned(config), storage, *done)
        before = {path: storage.read(path) for path in storage.list()}
        plan = planned(config)
        assert plan.todo == tuple(part for part in range(4) if part not in done)
        assert not plan.published
        assert tuple(counts.part for counts in plan.earlier) == done
        assert all(counts.documents and counts.tokens for counts in plan.earlier)
        assert {path: storage.read(path) for path in storage.list()} == before

    def test_leftovers_of_unrecorded_parts_are_removed(
        self, config: ShardConfig, storage: LocalStorage, planned: Planned
    ) -> None:
        do(planned(config), storage, 0, 1)
        storage.remove("parts/00000.json")  # as a kill just before the record leaves it
        storage.put("holdout/00003/shard.00000.mds", b"half")
        storage.put("train/index.json", b"{}")
        (storage.root / ".incoming/half").write_bytes(b"half")
        kept = {path for path in storage.list() if "/00001" in path}
        assert {path.split("/")[0] for path in kept} == {"train", "holdout", "documents", "parts"}
        storage.put("runs/one.json", b"{}")

        assert planned(config).todo == (0, 2, 3)
        assert set(storage.list()) == kept | {"runs/one.json", BUILD}
        assert not list((storage.root / ".incoming").iterdir())

    def test_resumed_is_like_undisturbed(
        self, config: ShardConfig, storage: LocalStorage, planned: Planned
    ) -> None:
        do(planned(config), storage, 0, 2)
        storage.remove("parts/00002.json")
        plan = planned(config)
        do(plan, storage, *plan.todo)
        publish(plan, storage)
        resumed = {path: storage.read(path) for path in storage.list()}

        shutil.rmtree(storage.root)
        storage.create()
        plan = planned(config)
        do(plan, storage, *plan.todo)
        publish(plan, storage)
        assert {path: storage.read(path) for path in storage.list()} == resumed
        assert "manifest.json" in resumed

    def test_published_is_left_alone(
        self, config: ShardConfig, storage: LocalStorage, planned: Planned
    ) -> None:
        plan = planned(config)
        do(plan, storage, *plan.todo)
        publish(plan, storage)
        drop(plan)
        before = {path: storage.read(path) for path in storage.list()}
        again = planned(config)
        assert again.published
        assert again.todo == ()
        assert not again.scratch.exists()
        assert {path: storage.read(path) for path in storage.list()} == before

    def test_the_tokenizer_may_have_moved(
        self, config: ShardConfig, storage: LocalStorage, planned: Planned, tmp_path: Path
    ) -> None:
        first = planned(config)
        do(first, storage, 0)
        moved = shutil.copy(config.tokenizer, tmp_path / "renamed.tiktoken")
        plan = planned(changed(config, tokenizer=str(moved)))
        assert plan.todo == (1, 2, 3)
        assert plan.spec == first.spec  # as the first run named it: the manifest stays the same

    def test_other_means_may_change(
        self, config: ShardConfig, storage: LocalStorage, planned: Planned, tmp_path: Path
    ) -> None:
        do(planned(config), storage, 0)
        plan = planned(changed(config, workers=7, scratch=str(tmp_path / "elsewhere")))
        assert plan.todo == (1, 2, 3)

    def test_records_are_read_by_part(
        self, config: ShardConfig, storage: LocalStorage, planned: Planned
    ) -> None:
        do(planned(config), storage, 2, 1)
        records = read_records(storage)
        assert {part: record.source.url[-9:] for part, record in records.items()} == {
            1: "1.parquet",
            2: "2.parquet",
        }

    def test_a_damaged_record(
        self, config: ShardConfig, storage: LocalStorage, planned: Planned
    ) -> None:
        do(planned(config), storage, 1)
        storage.put("parts/00001.json", storage.read("parts/00001.json")[:100])
        with pytest.raises(CorruptDatasetError, match=r"parts/00001\.json is no valid part record"):
            planned(config)


class TestMismatch:
    """Refused with what differs; nothing on the output is touched."""

    @pytest.fixture
    def refused(
        self, config: ShardConfig, storage: LocalStorage, planned: Planned
    ) -> Callable[..., str]:
        plan = planned(config)
        do(plan, storage, 0, 1)
        before = storage.list()

        def check(kind: type[Exception] = ConfigMismatchError, **changes: Any) -> str:
            with pytest.raises(kind) as caught:
                planned(changed(config, **changes))
            assert storage.list() == before
            return str(caught.value)

        return check

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"sequence_length": 16}, "sequence_length: the output has 8, this run asks for 16"),
            ({"holdout_seed": 1}, "holdout_seed: the output has 0, this run asks for 1"),
            ({"holdout_fraction": 0.0}, "holdout_fraction: the output has 0.3"),
            ({"compression": "none"}, "compression: the output has 'zstd:1'"),
            ({"shard_size": 2048}, "shard_size: the output has '1KiB'"),
            ({"pattern": "cl100k_base"}, "tokenizer.fingerprint: the output has"),
        ],
    )
    def test_configuration(
        self, refused: Callable[..., str], changes: dict[str, Any], said: str
    ) -> None:
        message = refused(**changes)
        assert said in message
        assert "Use the old values, or another --output." in message

    def test_a_source_that_moved(self, refused: Callable[..., str], tmp_path: Path) -> None:
        (tmp_path / "sources/1.parquet").rename(tmp_path / "sources/9.parquet")
        message = refused()
        assert "was made from other sources" in message
        assert (
            f"the output has {tmp_path}/sources/1.parquet, this run {tmp_path}/sources/2.parquet"
        ) in message
        assert "0.parquet" not in message

    def test_a_source_of_another_size(self, refused: Callable[..., str], tmp_path: Path) -> None:
        path = tmp_path / "sources/1.parquet"
        size = path.stat().st_size
        write_source(path, ["x" * 1000])
        message = refused()
        assert f"1.parquet: {size} bytes in the dataset, {path.stat().st_size} now" in message

    def test_a_source_of_the_same_size(self, refused: Callable[..., str], tmp_path: Path) -> None:
        path = tmp_path / "sources/0.parquet"
        data = path.read_bytes()
        path.write_bytes(data.replace(b"parquet-cpp-arrow", b"parquet-cpp-ARROW", 1))
        message = refused()
        assert f"{path}: content xxh128:" in message
        assert "1.parquet" not in message

    def test_fewer_sources(self, refused: Callable[..., str]) -> None:
        assert "part 00001: the output has" in refused(max_files=1)

    def test_a_source_more_in_front(self, refused: Callable[..., str], tmp_path: Path) -> None:
        write_source(tmp_path / "sources/!.parquet", ["x"])
        message = refused()
        assert f"the output has {tmp_path}/sources/0.parquet" in message
        assert f"the output has {tmp_path}/sources/1.parquet" in message

    def test_a_source_more_at_the_end(
        self, refused: Callable[..., str], config: ShardConfig, planned: Planned, tmp_path: Path
    ) -> None:
        write_source(tmp_path / "sources/9.parquet", ["x"])
        assert planned(config).todo == (2, 3, 4)

    def test_many_differences_are_cut(
        self, config: ShardConfig, storage: LocalStorage, planned: Planned, tmp_path: Path
    ) -> None:
        for number in range(10, 35):
            write_source(tmp_path / f"sources/{number}.parquet", [])
        plan = planned(config)
        do(plan, storage, *plan.todo)
        shutil.move(tmp_path / "sources", tmp_path / "moved")
        with pytest.raises(ConfigMismatchError, match=r"\.\.\. and 9 more\n"):
            planned(changed(config, sources=[str(tmp_path / "moved")]))


class TestPublishedMismatch:
    @pytest.fixture(autouse=True)
    def _published(self, config: ShardConfig, storage: LocalStorage, planned: Planned) -> None:
        plan = planned(config)
        do(plan, storage, *plan.todo)
        publish(plan, storage)

    def test_a_source_more(self, config: ShardConfig, planned: Planned, tmp_path: Path) -> None:
        write_source(tmp_path / "sources/9.parquet", ["x"])
        with pytest.raises(ConfigMismatchError, match="complete dataset of 4 parts, .* has 5"):
            planned(config)

    def test_records_lost(
        self, config: ShardConfig, storage: LocalStorage, planned: Planned
    ) -> None:
        storage.remove("parts/00002.json")
        assert planned(config).todo == (2,)

    def test_a_damaged_manifest(
        self, config: ShardConfig, storage: LocalStorage, planned: Planned
    ) -> None:
        storage.put("manifest.json", b"{}")
        with pytest.raises(CorruptDatasetError, match=r"manifest\.json is no valid manifest"):
            planned(config)


class TestForeignFiles:
    @pytest.mark.parametrize(
        ("files", "said"),
        [
            (["thesis.tex"], "(thesis.tex). Use an empty folder"),
            (["a/b/c", "d"], "(a/b/c, d)"),
            (["1", "2", "3", "4"], "(1, 2, 3 and 1 more files)"),
        ],
    )
    def test_are_refused_and_kept(
        self,
        config: ShardConfig,
        storage: LocalStorage,
        planned: Planned,
        files: list[str],
        said: str,
    ) -> None:
        for file in files:
            storage.put(file, b"mine")
        with pytest.raises(UsageError, match="holds other files") as caught:
            planned(config)
        assert said in str(caught.value)
        assert sorted(storage.list()) == files

    def test_what_a_killed_run_leaves_is_not_foreign(
        self, config: ShardConfig, storage: LocalStorage, planned: Planned
    ) -> None:
        planned(config)
        storage.put("train/00000/shard.00000.mds", b"half")
        storage.put("documents/00000.parquet", b"half")
        assert planned(config).todo == (0, 1, 2, 3)
        assert list(storage.list()) == [BUILD]


class TestCheckSources:
    def test_a_file_without_the_column(self, config: ShardConfig, tmp_path: Path) -> None:
        pq.write_table(pa.table({"body": ["x"]}), tmp_path / "sources/2.parquet")
        sources, wrong = look_into_sources(config)
        assert len(sources) == NUM_SOURCES  # it fails alone
        assert re.fullmatch(r".*2\.parquet has no column 'text'; .* body.*", *wrong)
        assert look_into_sources(changed(config, max_files=2))[1] == ()

    def test_no_file_with_the_column_names_all(self, config: ShardConfig, tmp_path: Path) -> None:
        for file in (tmp_path / "sources").iterdir():
            pq.write_table(pa.table({"body": ["x"]}), file)
        with pytest.raises(UsageError) as told:
            check_sources(config)
        said = str(told.value)
        assert all(f"{n}.parquet has no column 'text'" in said for n in range(NUM_SOURCES))

    def test_a_damaged_file_is_left_to_its_part(self, config: ShardConfig, tmp_path: Path) -> None:
        (tmp_path / "sources/2.parquet").write_bytes(b"no parquet")
        assert len(check_sources(config)) == NUM_SOURCES

    def test_a_damaged_file_of_the_recorded_size_is_noticed(
        self, config: ShardConfig, storage: LocalStorage, planned: Planned, tmp_path: Path
    ) -> None:
        do(planned(config), storage, 2)
        path = tmp_path / "sources/2.parquet"
        path.write_bytes(b"x" * path.stat().st_size)
        with pytest.raises(ConfigMismatchError, match=r"2\.parquet: content"):
            planned(config)

    def test_a_source_that_went_away_meanwhile(
        self, config: ShardConfig, storage: LocalStorage, planned: Planned, tmp_path: Path
    ) -> None:
        do(planned(config), storage, 2)
        sources = check_sources(config)
        (tmp_path / "sources/2.parquet").unlink()
        with pytest.raises(SourceError, match=r"2\.parquet: cannot be read"):
            make_plan(config, storage, sources)
