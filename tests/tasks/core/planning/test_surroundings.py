"""What lies around an output: a dataset that it is inside of, or its own sources."""

import shutil
from pathlib import Path

import pytest

from streaming_ext.base.errors import ShardmillError, UsageError
from streaming_ext.format.layout import BUILD
from streaming_ext.store import open_storage
from streaming_ext.text.sources import SourceFile
from tasks.core.build.outside import made_by_output
from tasks.core.config import ShardConfig
from tasks.core.shard.plan import plan_shard
from tasks.core.shard.sources import check_sources
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
        (dataset / "manifest.json").rename(dataset / BUILD)  # as of one that is started
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


class TestInAFolderOfSources:
    """Its own files are no sources, whatever it holds already."""

    @pytest.fixture
    def inside(self, config, tmp_path) -> ShardConfig:
        """A run from a folder into one below it, where some of it was written already."""
        root = tmp_path / "sources/out"
        write_source(root / "documents/00000.parquet", ["no text of a source"])
        (root / "runs").mkdir()
        (root / BUILD).write_text("{}")
        return config.model_copy(update={"output": str(root)})

    def names(self, config: ShardConfig, **changes: object) -> list[str]:
        return [source.name for source in check_sources(config.model_copy(update=changes))]

    def test_files_of_the_output_are_left_out(self, inside, tmp_path) -> None:
        expected = ["0.parquet", "1.parquet", "2.parquet", "3.parquet"]
        assert self.names(inside) == expected
        (tmp_path / "link").symlink_to("sources")
        assert self.names(inside, output=f"{tmp_path}/link/out") == expected
        assert self.names(inside, sources=(f"{tmp_path}/sources/**/*.parquet",)) == expected
        with pytest.raises(UsageError, match="no file but those of the output itself"):
            self.names(inside, sources=(f"{inside.output}/documents",))
        write_source(tmp_path / "sources/out/raw/4.parquet", ["text"])  # of nobody else's making
        assert self.names(inside) == [*expected, "4.parquet"]

    def test_files_of_another_dataset_or_of_no_run_are_not(self, inside, tmp_path) -> None:
        assert "00000.parquet" in self.names(inside, output=str(tmp_path / "other"))
        shutil.rmtree(tmp_path / "sources/out/runs")
        assert "00000.parquet" in self.names(inside)

    def test_in_a_bucket(self) -> None:
        made = made_by_output("s3://bucket/raw/out/")
        urls = [
            "s3://bucket/raw/out/documents/0",
            "s3://bucket/raw/out/more/0",
            "s3://bucket/raw/out-2/documents/0",
            "/raw/out/documents/0",
        ]
        assert [made(SourceFile(url=url, size=1)) for url in urls] == [True, False, False, False]
