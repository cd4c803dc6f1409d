"""The place of an output: inside a dataset, or inside its own sources."""

import shutil
from pathlib import Path

import pytest

from streaming_ext.base.errors import ShardmillError, UsageError
from streaming_ext.format.layout import BUILD
from streaming_ext.store import open_storage
from streaming_ext.text.sources import SourceFile, datasets
from tasks.core.config import ShardConfig
from tasks.core.shard.plan import plan_shard
from tasks.core.shard.sources import find_sources
from tests.streaming_ext.build import build, numbered_parts, some_documents
from tests.tasks.core.doubles import write_source
from tests.tasks.core.running import begun


def tree(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in root.rglob("*")}


class TestInsideADataset:
    @pytest.fixture
    def dataset(self, tmp_path) -> Path:
        return build(tmp_path / "data", numbered_parts(some_documents(30))).root

    def refuse(self, config: ShardConfig, output: object, words: str) -> None:
        changed = config.model_copy(update={"output": str(output)})
        with pytest.raises(ShardmillError, match=words):
            plan_shard(changed, open_storage(changed.output))

    @pytest.mark.parametrize("below", ["train", "elsewhere/deep", "../data/x"])
    def test_it_is_refused(self, config, dataset, tmp_path, below) -> None:
        (dataset / "runs").mkdir()
        before = tree(tmp_path)
        self.refuse(config, dataset / below, f"lies inside the dataset {dataset},")
        (dataset / "manifest.json").rename(dataset / BUILD)  # the mark of one that is started
        self.refuse(config, dataset / below, f"lies inside the dataset {dataset},")
        (dataset / BUILD).rename(dataset / "manifest.json")
        assert tree(tmp_path) == before

    def test_it_is_refused_in_a_bucket(self, config, dataset, bucket) -> None:
        storage = open_storage(f"s3://{bucket}/a/data")
        for path in ("manifest.json", "train/index.json"):
            storage.put(path, (dataset / path).read_bytes())
        before = storage.list()
        for below in ("train", "x/y"):
            self.refuse(config, f"{storage}/{below}", f"lies inside the dataset {storage},")
        self.refuse(config, storage, "tokenizer")
        assert storage.list() == before

    def test_a_manifest_of_something_else_is_no_dataset(self, config, tmp_path) -> None:
        (tmp_path / "manifest.json").write_text('{"name": "a web site"}')
        storage = open_storage(config.output)
        found = plan_shard(config, storage)
        assert found.todo == (0, 1, 2, 3)
        assert not (tmp_path / "out").exists()
        assert begun(found, storage).todo == found.todo


def found_for(config: ShardConfig, **changes: object) -> tuple[SourceFile, ...]:
    config = config.model_copy(update=changes)
    return find_sources(config, config.read_options)


class TestInAFolderOfSources:
    """The output's own files are no sources, whatever it already holds."""

    @pytest.fixture
    def inside(self, config, tmp_path) -> ShardConfig:
        """A run from a folder into one below it, into which some files were written already."""
        root = tmp_path / "sources/out"
        write_source(root / "documents/00000.parquet", ["no text of a source"])
        (root / "runs").mkdir()
        (root / BUILD).write_text("{}")
        return config.model_copy(update={"output": str(root)})

    def names(self, config: ShardConfig, **changes: object) -> list[str]:
        return [source.name for source in found_for(config, **changes)]

    def test_files_of_the_output_are_left_out(self, inside, tmp_path) -> None:
        expected = ["0.parquet", "1.parquet", "2.parquet", "3.parquet"]
        assert self.names(inside) == expected
        (tmp_path / "link").symlink_to("sources")
        assert self.names(inside, output=f"{tmp_path}/link/out") == expected
        assert self.names(inside, sources=(f"{tmp_path}/sources/**/*.parquet",)) == expected
        with pytest.raises(UsageError, match="no file but those of a dataset"):
            self.names(inside, sources=(f"{inside.output}/documents",))
        write_source(tmp_path / "sources/out/raw/4.parquet", ["text"])  # not made by shardmill
        assert self.names(inside) == [*expected, "4.parquet"]

    def test_no_file_of_any_dataset_is_a_source(self, inside, tmp_path) -> None:
        other = str(tmp_path / "other")
        everything = f"{tmp_path}/sources/**/*.parquet"
        for sources in (inside.sources, (everything,)):
            assert "00000.parquet" not in self.names(inside, output=other, sources=sources)
        for below in ("", "/documents", "/documents/*.parquet", "/documents/00000.parquet"):
            with pytest.raises(UsageError, match="no file but those of a dataset that shardmill"):
                self.names(inside, output=other, sources=(f"{inside.output}{below}",))
        shutil.rmtree(tmp_path / "sources/out/runs")
        assert "00000.parquet" in self.names(inside, output=other)
        manifest = tmp_path / "sources/out/manifest.json"
        manifest.write_text('{"name": "a web site"}')
        assert "00000.parquet" in self.names(inside, output=other)
        manifest.write_text('{"format": 1000}')  # made by a newer shardmill
        assert "00000.parquet" not in self.names(inside, output=other)

    @pytest.mark.parametrize("to", ["upload", "commit"])
    def test_where_files_are_listed(self, config, tmp_path, request, to) -> None:
        raw = tmp_path / "raw"
        build(raw / "out", numbered_parts(some_documents(30)))
        (raw / "train").mkdir()
        for name in ("0.parquet", "train/1.parquet"):
            shutil.copy(tmp_path / "sources/0.parquet", raw / name)
        url = request.getfixturevalue(to)(raw).removesuffix("/raw")
        for sources in ("/raw", "/raw/**/*.parquet", "/{raw,raw/out/documents}/*.parquet"):
            found = self.names(config, sources=(url + sources,))
            assert found == ["0.parquet", "1.parquet"][: 1 if "{" in sources else 2]
        with pytest.raises(UsageError, match="no file but those of a dataset that shardmill"):
            self.names(config, sources=(f"{url}/raw/out/documents",))


class TestANewOutputInItsOwnSources:
    """It is refused before any work; one that was started already resumes."""

    @pytest.mark.parametrize(
        ("sources", "output", "is_refused"),
        [
            ("sources", "sources/out", True),
            ("sources", "sources", True),
            ("sources/", "sources/deep/out", True),
            ("link", "sources/out", True),
            ("sources", "link/out", True),
            ("sources/../sources", "sources/out", True),
            ("sources/**/*.parquet", "sources/out", True),
            ("sou*", "sources/out", True),
            ("{sources,none}/**", "sources/out", True),
            ("sources/*.parquet", "sources/out", False),
            ("sources/**/*.jsonl", "sources/out", False),
            ("sources", "sources-2", False),
            ("sources/0.parquet", "sources/out", False),
            ("sources", "sources/.hidden/out", False),
            ("s3://bucket/raw", "s3://bucket/raw/out", True),
            ("s3://bucket/raw/", "s3://bucket/raw/out/", True),
            ("s3://bucket/**/*.parquet", "s3://bucket/raw/out", True),
            ("s3://bucket/raw", "s3://bucket/raw-2", False),
            ("s3://bucket/raw", "bucket/raw/out", False),
        ],
    )
    def test_it_is_refused(self, tmp_path, monkeypatch, sources, output, is_refused) -> None:
        monkeypatch.setattr(datasets, "is_dataset", lambda folder: False)  # no bucket is asked
        monkeypatch.chdir(tmp_path)
        (tmp_path / "sources").mkdir()
        (tmp_path / "link").symlink_to("sources")
        for given in (sources, sources if "://" in sources else f"{tmp_path}/{sources}"):
            if not is_refused:
                datasets.require_apart(output, [given])
                continue
            with pytest.raises(UsageError, match="lies inside its own sources"):
                datasets.require_apart(output, ["elsewhere", given])

    def test_by_shard_and_not_by_plan(self, config, tmp_path) -> None:
        inside = config.model_copy(update={"output": str(tmp_path / "sources/out")})
        with pytest.raises(UsageError, match="lies inside its own sources"):
            plan_shard(inside, open_storage(inside.output))
        assert [path.name for path in (tmp_path / "sources").iterdir() if path.is_dir()] == []
        assert len(found_for(inside)) == 4  # `plan` writes nothing
        write_source(tmp_path / "sources/out" / BUILD, ["begun"])
        assert plan_shard(inside, open_storage(inside.output)).todo == (0, 1, 2, 3)
