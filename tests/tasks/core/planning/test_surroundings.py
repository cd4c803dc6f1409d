"""An output in a folder of sources: its own files are no sources, whatever it holds already."""

import shutil
from pathlib import Path

import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.format.layout import BUILD
from streaming_ext.text.sources import SourceFile
from tasks.core.build.outside import made_by_output
from tasks.core.config import ShardConfig
from tasks.core.shard.sources import check_sources
from tests.tasks.core.doubles import write_source


@pytest.fixture
def inside(config: ShardConfig, tmp_path: Path) -> ShardConfig:
    """A run from a folder into one below it, where some of it was written already."""
    root = tmp_path / "sources/out"
    write_source(root / "documents/00000.parquet", ["no text of a source"])
    (root / "runs").mkdir()
    (root / BUILD).write_text("{}")
    return config.model_copy(update={"output": str(root)})


def names(config: ShardConfig) -> list[str]:
    return [source.name for source in check_sources(config)]


def test_files_of_the_output_are_left_out(inside: ShardConfig, tmp_path: Path) -> None:
    expected = ["0.parquet", "1.parquet", "2.parquet", "3.parquet"]
    assert names(inside) == expected
    (tmp_path / "link").symlink_to("sources")
    assert names(inside.model_copy(update={"output": f"{tmp_path}/link/out"})) == expected
    everywhere = {"sources": (f"{tmp_path}/sources/**/*.parquet",)}
    assert names(inside.model_copy(update=everywhere)) == expected
    write_source(tmp_path / "sources/out/raw/4.parquet", ["text"])  # of nobody else's making
    assert names(inside) == [*expected, "4.parquet"]


def test_files_of_another_dataset_are_not(inside: ShardConfig, tmp_path: Path) -> None:
    elsewhere = inside.model_copy(update={"output": str(tmp_path / "other")})
    assert "00000.parquet" in names(elsewhere)


def test_a_folder_that_no_run_wrote_to_is_like_any_other(
    inside: ShardConfig, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "sources/out/runs")
    assert "00000.parquet" in names(inside)


def test_a_source_inside_of_the_output(inside: ShardConfig) -> None:
    given = inside.model_copy(update={"sources": (f"{inside.output}/documents",)})
    with pytest.raises(UsageError, match="no file but those of the output itself"):
        names(given)


def test_in_a_bucket() -> None:
    made = made_by_output("s3://bucket/raw/out/")
    assert made(SourceFile(url="s3://bucket/raw/out/documents/00000.parquet", size=1))
    assert not made(SourceFile(url="s3://bucket/raw/out/more/00000.parquet", size=1))
    assert not made(SourceFile(url="s3://bucket/raw/out-2/documents/00000.parquet", size=1))
    assert not made(SourceFile(url="/raw/out/documents/00000.parquet", size=1))
