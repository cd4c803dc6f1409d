"""What an extension leaves: the old generation whole, the next one beside it, both to be read."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from streaming_ext import StreamingTokenDataset, TokenStream
from streaming_ext.base.errors import (
    ConfigMismatchError,
    CorruptDatasetError,
    DatasetError,
    TokenizerError,
    TransientStorageError,
    UsageError,
)
from streaming_ext.format.layout import BUILD
from streaming_ext.format.reading import read_manifest
from streaming_ext.format.schema import content_hash
from streaming_ext.store import open_storage
from streaming_ext.text.sources import SourceFile
from streaming_ext.training.stock import streaming
from tasks.core.check.verify import verify
from tasks.core.config import ShardConfig
from tasks.core.shard import plan as planning
from tasks.core.shard.extend_config import ExtendConfig
from tasks.core.shard.plan import plan_shard
from tests.tasks.core.build_dataset import build_dataset, build_from
from tests.tasks.core.exports.exporting import content
from tests.tasks.core.extending.extended import extended, finish, planned, write_source
from tests.tasks.core.imports.importing import documents_in
from tests.tasks.core.moving.moved import copied, merged
from tests.tasks.core.running import do_parts, publish

OLD = [[f"Old document {number} of file {file}, and some words." for number in range(30)]
       for file in range(2)]  # fmt: skip
NEW = [f"New document {number}, which came later." for number in range(40)]


@pytest.fixture
def old(tmp_path: Path, vocabulary: Path) -> Path:
    return build_dataset(tmp_path / "made", OLD, tokenizer=str(vocabulary), sequence_length=16)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write_source(tmp_path / "new" / "a.parquet", NEW)


def without_runs(root: Path) -> dict[str, bytes]:
    return {path: data for path, data in content(root).items() if not path.startswith("runs/")}


def opened(root: Path, generation: str | None = None, **options: object) -> StreamingTokenDataset:
    return StreamingTokenDataset(
        streams=[TokenStream(local=root, generation=generation)], batch_size=4, dp_rank=0,
        dp_world_size=1, **options,
    )  # fmt: skip


class TestGenerations:
    def test_the_old_one_stays_and_the_new_one_names_it(self, old: Path, new: Path) -> None:
        before = without_runs(old)
        extended(old, new)
        after = without_runs(old)
        changed = {path for path in before if after.get(path) != before[path]}
        assert changed == {"manifest.json", "train/index.json", "holdout/index.json"}
        parent = content_hash(before["manifest.json"])
        assert after[f"generations/{parent}.json"] == before["manifest.json"]
        manifest = read_manifest(open_storage(str(old)))
        assert [each.manifest.xxh128 for each in manifest.generations] == [parent]
        assert len(manifest.parts) == 3
        for split in manifest.splits:
            kept = content_hash(before[f"{split}/index.json"])
            assert after[f"{split}/index-{kept}.json"] == before[f"{split}/index.json"]
        assert verify(open_storage(str(old)), deep=True).findings == ()
        assert verify(open_storage(str(old)), generation=parent[:8]).findings == ()

    def test_readers_of_each(self, old: Path, new: Path) -> None:
        first = opened(old)
        rows = [first.get_item(number)["tokens"].tolist() for number in range(first.size)]
        parent = content_hash((old / "manifest.json").read_bytes())
        extended(old, new)
        # what is open goes on; both can be opened; stock readers have all of it
        assert rows == [first.get_item(number)["tokens"].tolist() for number in range(first.size)]
        again, newest = opened(old, parent[:12]), opened(old)
        assert again.size == first.size < newest.size
        assert rows == [newest.get_item(number)["tokens"].tolist() for number in range(first.size)]
        assert (
            newest.size == streaming.StreamingDataset(local=str(old / "train"), batch_size=1).size
        )
        with pytest.raises(UsageError, match=f"no generation has .* 'f00'.*{parent[:12]}.*newest"):
            opened(old, "f00")

    def test_a_reader_between_manifest_and_index(self, old: Path, new: Path) -> None:
        """An extension replaces the index that the manifest, read before, described."""
        parent = content_hash((old / "manifest.json").read_bytes())
        stale = (old / "manifest.json").read_bytes()
        index = (old / "train/index.json").read_bytes()
        extended(old, new)
        newest = (old / "manifest.json").read_bytes()
        (old / "manifest.json").write_bytes(stale)
        assert opened(old).size == opened(old, parent).size
        # and killed before it replaced that: stock readers have the old one, ours the new one
        (old / "manifest.json").write_bytes(newest)
        (old / "train/index.json").write_bytes(index)
        assert opened(old).size > opened(old, parent).size
        assert [each.file for each in verify(open_storage(str(old))).findings] == [
            "train/index.json"
        ]
        assert extended(old, new).todo == ()
        assert verify(open_storage(str(old))).findings == ()
        assert (old / "manifest.json").read_bytes() == newest

    def test_several(self, old: Path, new: Path, tmp_path: Path) -> None:
        hashes = []
        for number in range(3):
            hashes.append(content_hash((old / "manifest.json").read_bytes()))
            extended(old, write_source(tmp_path / "more" / f"{number}.parquet", NEW[number::3]))
        manifest = read_manifest(open_storage(str(old)))
        assert [each.manifest.xxh128 for each in manifest.generations] == hashes
        sizes = [opened(old, each).size for each in hashes]
        assert sizes == sorted(set(sizes))
        for each in [*hashes, None]:
            assert verify(open_storage(str(old)), generation=each).findings == ()

    def test_damage_of_what_older_generations_are_read_by(self, old: Path, new: Path) -> None:
        """Training that stands in one would find it when it goes on."""
        extended(old, new)
        kept = [*old.glob("generations/*.json"), *old.glob("*/index-*.json")]
        assert len(kept) == 5
        for file in kept:
            data = bytearray(file.read_bytes())
            for damaged in (None, data[:-1], bytes([data[0] ^ 1]) + data[1:]):
                file.unlink() if damaged is None else file.write_bytes(damaged)
                found = verify(open_storage(str(old))).findings
                assert [each.file for each in found] == [file.relative_to(old).as_posix()]
            file.write_bytes(data)
        assert verify(open_storage(str(old))).findings == ()


class TestSources:
    def test_those_that_are_there_are_left_out(self, old: Path, new: Path) -> None:
        assert extended(old, old.parent / "sources").published
        assert not list(old.glob("generations/*"))
        plan = extended(old, old.parent / "sources", new)
        assert [plan.parts[part].source for part in plan.todo] == [str(new)]
        assert extended(old, new).published
        assert len(read_manifest(open_storage(str(old))).generations) == 1

    def test_those_that_changed_are_refused(self, old: Path) -> None:
        changed = old.parent / "sources" / "001.parquet"
        write_source(changed, OLD[1][:-1])
        with pytest.raises(ConfigMismatchError, match=r"(?s)other bytes.*001.parquet: \d+ bytes"):
            planned(old, old.parent / "sources")


def test_means_that_are_not_given_are_those_of_each_host(old: Path, new: Path) -> None:
    """Partitions are sent what is set: the rest is the host's own."""
    asked = ExtendConfig(dataset=str(old), sources=(str(new),), executor="here")
    given = asked.run.model_dump(exclude_unset=True)
    assert given["executor"] == "here"
    assert not given.keys() & {"workers", "scratch", "partitions", "engine"}
    both = ExtendConfig(dataset=str(old), sources=(str(new),), workers=3, scratch="/somewhere")
    given = both.run.model_dump(exclude_unset=True)
    assert (given["workers"], given["scratch"]) == (3, "/somewhere")


@pytest.mark.parametrize("settings", [{}, {"shuffle": "documents"}])
def test_a_run_of_more_sources_is_told_to_extend(
    tmp_path: Path, vocabulary: Path, new: Path, settings: dict[str, Any]
) -> None:
    """A folder that got a file, and the command of before: what adds it is named."""
    settings |= {"tokenizer": str(vocabulary), "sequence_length": 16}
    old = build_dataset(tmp_path / "made", OLD, **settings)
    shutil.copy(new, tmp_path / "made/sources/new.parquet")
    with pytest.raises(ConfigMismatchError, match=rf"`shardmill extend {old} SOURCE\.\.\.`"):
        build_from(tmp_path / "made/sources", old, **settings)


class TestKilled:
    def test_the_old_one_is_whole_and_it_goes_on(
        self, old: Path, new: Path, tmp_path: Path
    ) -> None:
        second = write_source(new.parent / "b.parquet", NEW[:20])
        twin = Path(shutil.copytree(old, tmp_path / "twin"))
        before = (old / "manifest.json").read_bytes()
        plan, storage = planned(old, new.parent)
        assert plan.todo == (2, 3)
        do_parts(plan, storage, (2,))
        (old / "train/00003").mkdir()
        (old / "train/00003/shard.00000.mds.zstd").write_bytes(b"cut short")
        # killed here: what readers and verify see is the old generation
        assert (old / "manifest.json").read_bytes() == before
        assert verify(open_storage(str(old))).findings == ()
        with pytest.raises(ConfigMismatchError, match=r"remove runs/.build.json"):
            planned(old, second)
        plan, storage = planned(old, new.parent)
        assert plan.todo == (3,)
        finish(plan, storage)
        extended(twin, new.parent)
        assert without_runs(old) == without_runs(twin)
        assert verify(open_storage(str(old))).findings == ()

    def test_a_file_on_its_way_is_no_damage(self, old: Path, new: Path) -> None:
        """Killed in the midst of putting a file: the dataset is as it was, and `verify` says so."""
        _, storage = planned(old, new)
        (old / ".incoming").mkdir(exist_ok=True)
        (old / ".incoming/0123").write_bytes(b"cut short")
        assert verify(open_storage(str(old))).findings == ()
        (old / BUILD).unlink()
        found = verify(open_storage(str(old))).findings
        assert [each.file for each in found] == [".incoming/0123"]
        storage.close()

    def test_begun_anew(self, old: Path, new: Path) -> None:
        second = write_source(new.parent / "b.parquet", NEW[:20])
        plan, storage = planned(old, new)
        do_parts(plan, storage)
        (old / BUILD).unlink()
        extended(old, second)
        assert verify(open_storage(str(old))).findings == ()
        assert len(read_manifest(open_storage(str(old))).parts) == 3

    def test_a_lost_old_shard_is_told(self, old: Path, new: Path) -> None:
        next(old.glob("train/00000/*")).unlink()
        with pytest.raises(CorruptDatasetError, match="lost train/00000/"):
            planned(old, new)

    @pytest.mark.parametrize("where", ["manifest.json", "train/index.json"])
    def test_publishing_tried_again(
        self, old: Path, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        """Storage fails behind the manifest, or when the manifest is put although it kept it."""
        twin = Path(shutil.copytree(old, tmp_path / "twin"))
        extended(twin, new)
        plan, storage = planned(old, new)
        do_parts(plan, storage)
        put, failed = storage.put, []

        def fail_once(path: str, data: bytes) -> None:
            fails = path == where and not failed
            if not fails or path == "manifest.json":
                put(path, data)
            if fails:
                failed.append(path)
                raise TransientStorageError("503")

        monkeypatch.setattr(storage, "put", fail_once)
        assert plan.base is not None
        with pytest.raises(TransientStorageError):
            publish(plan, storage)
        publish(plan, storage)
        assert without_runs(old) == without_runs(twin)
        (old / "manifest.json").write_bytes(b"{}")
        with pytest.raises(DatasetError, match="was changed during the run"):
            publish(plan, storage)

    @pytest.mark.parametrize("held_out", [0.2, 0])
    def test_between_the_manifest_and_the_indexes(
        self, tmp_path: Path, vocabulary: Path, new: Path, monkeypatch: pytest.MonkeyPatch,
        held_out: float,
    ) -> None:  # fmt: skip
        """It is the next generation: verified and copied as that, with older indexes on top."""
        old = build_dataset(
            tmp_path / "grows", OLD, tokenizer=str(vocabulary), sequence_length=16,
            holdout_fraction=held_out,
        )  # fmt: skip
        twin = Path(shutil.copytree(old, tmp_path / "twin"))
        extended(twin, new)
        before = (old / "train/index.json").read_bytes()
        plan, storage = planned(old, new)
        do_parts(plan, storage)
        put = storage.put

        def killed(path: str, data: bytes) -> None:
            if path == "train/index.json":
                raise TransientStorageError("killed here")
            put(path, data)

        monkeypatch.setattr(storage, "put", killed)
        assert plan.base is not None
        with pytest.raises(TransientStorageError):
            publish(plan, storage)
        assert (old / "manifest.json").read_bytes() == (twin / "manifest.json").read_bytes()
        assert (old / "train/index.json").read_bytes() == before
        assert verify(open_storage(str(old)), deep=True).findings == ()
        copied(old, tmp_path / "copy")
        assert without_runs(tmp_path / "copy") == without_runs(twin)
        (old / "train/index.json").write_bytes(before[:-1] + b" ")
        found = verify(open_storage(str(old))).findings
        assert [each.file for each in found] == ["train/index.json"]
        assert extended(old, new).todo == ()
        assert without_runs(old) == without_runs(twin)


class TestTwoAtOnce:
    def test_one_that_ended_while_the_other_looked(
        self, old: Path, new: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All of the first one's parts are recorded when the second one looks at the records."""
        second = write_source(new.parent / "b.parquet", NEW[:20])
        first, storage = planned(old, new)
        do_parts(first, storage)
        hashed = planning.new_sources

        def ended_meanwhile(*arguments: Any) -> tuple[SourceFile, ...]:
            assert first.base is not None
            if (old / BUILD).exists():
                publish(first, storage)
            return hashed(*arguments)

        monkeypatch.setattr(planning, "new_sources", ended_meanwhile)
        plan, other = planned(old, second)
        assert verify(open_storage(str(old)), deep=True).findings == ()
        assert plan.todo == (3,)
        finish(plan, other)
        assert verify(open_storage(str(old)), deep=True).findings == ()
        assert len(read_manifest(open_storage(str(old))).generations) == 2


class TestLost:
    """An extended dataset that lost what lies beside its parts."""

    @pytest.fixture
    def grown(self, old: Path, new: Path) -> Path:
        """All of its sources in one folder, the newer one last in the order of their names."""
        sources = old.parent / "sources"
        extended(old, shutil.copy(new, sources / "002.parquet"))
        extended(old, write_source(sources / "003.parquet", NEW[:9]))
        return old

    @pytest.mark.parametrize(
        "lost", ["train/index.json", "train/index-*.json", "generations/*.json"]
    )
    def test_shard_refuses_and_extend_makes_it_again(
        self, grown: Path, vocabulary: Path, lost: str
    ) -> None:
        before = without_runs(grown)
        sources = grown.parent / "sources"
        for file in grown.glob(lost):
            file.unlink()
        left = without_runs(grown)
        assert left != before
        with pytest.raises(ConfigMismatchError, match=r"was extended.*shardmill extend"):
            build_from(sources, grown, tokenizer=str(vocabulary), sequence_length=16)
        assert without_runs(grown) == left
        assert extended(grown, sources).todo == ()
        assert without_runs(grown) == before

    @pytest.mark.parametrize("more", [False, True], ids=["nothing new", "a further file"])
    @pytest.mark.parametrize("lost", ["tokenizer/*", "tokenizer/tokenizer_spec.json"])
    def test_a_tokenizer_that_is_given_again(
        self, grown: Path, vocabulary: Path, lost: str, more: bool, tmp_path: Path
    ) -> None:
        before = without_runs(grown)
        sources = [grown.parent / "sources"]
        if more:
            sources += [write_source(tmp_path / "more/004.parquet", ["one more text"])]
        for file in grown.glob(lost):
            file.unlink()
        with pytest.raises(TokenizerError, match="missing. Give the tokenizer .* as --tokenizer"):
            extended(grown, *sources)
        other = tmp_path / "other.tiktoken"
        other.write_text("".join(vocabulary.read_text().splitlines(keepends=True)[:-1]))
        with pytest.raises(TokenizerError, match="the dataset was made with .*Give that one"):
            extended(grown, *sources, tokenizer=str(other))
        extended(grown, *sources, tokenizer=str(vocabulary))
        assert verify(open_storage(str(grown)), deep=True).findings == ()
        after = without_runs(grown)
        assert {name: after[name] for name in before if "tokenizer" in name} == {
            name: data for name, data in before.items() if "tokenizer" in name
        }
        assert (after == before) is not more

    @pytest.mark.parametrize("lost", ["train/00000/shard.*", "parts/00002.json"])
    def test_what_a_part_needs(self, grown: Path, vocabulary: Path, lost: str) -> None:
        """Nobody is told to remove the manifest, which names the generations."""
        sources = grown.parent / "sources"
        next(iter(grown.glob(lost))).unlink()
        with pytest.raises(
            (CorruptDatasetError, ConfigMismatchError),
            match="was extended, and lost files",
        ):
            build_from(sources, grown, tokenizer=str(vocabulary), sequence_length=16)
        with pytest.raises(
            (CorruptDatasetError, ConfigMismatchError), match=r"from a copy|shardmill verify"
        ):
            extended(grown, sources)

    def test_shard_of_all_its_sources_finds_it_whole(self, grown: Path, vocabulary: Path) -> None:
        asked = ShardConfig(
            sources=(str(grown.parent / "sources"),), output=str(grown), pattern="gpt2",
            tokenizer=str(vocabulary), sequence_length=16, holdout_fraction=0.2, shard_size=4096,
        )  # fmt: skip
        assert plan_shard(asked, open_storage(str(grown))).published


class TestHoldout:
    def test_a_text_of_the_old_holdout_is_never_in_train(self, old: Path, tmp_path: Path) -> None:
        extended(old, write_source(tmp_path / "new" / "again.parquet", [*NEW, *OLD[0]]))
        found = documents_in(old)
        train, holdout = ({tuple(ids) for ids in found[split]} for split in ("train", "holdout"))
        assert len(holdout) > 10
        assert not train & holdout


class TestWhole:
    def test_copied_and_merged(
        self, old: Path, new: Path, tmp_path: Path, vocabulary: Path
    ) -> None:
        parent = content_hash((old / "manifest.json").read_bytes())
        extended(old, new)
        copy = tmp_path / "copy"
        copied(old, copy)
        assert without_runs(copy) == without_runs(old)
        assert opened(copy, parent).size == opened(old, parent).size
        other = build_dataset(
            tmp_path / "other", [NEW[:9]], tokenizer=str(vocabulary), sequence_length=16
        )
        both = tmp_path / "both"
        merged([old, other], both)
        assert verify(open_storage(str(both))).findings == ()
        found = read_manifest(open_storage(str(both)))
        assert [each.parts for each in found.merged] == [2, 1, 1]
        assert found.merged[0].manifest == parent
        with pytest.raises(UsageError, match="is a merged dataset"):
            planned(both, new)
