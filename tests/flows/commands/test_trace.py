"""`shardmill trace`: some steps at once, and as a table."""

import pyarrow.parquet as pq
import pytest

from flows.commands.trace import trace
from streaming_ext import StreamingTokenDataset
from streaming_ext.errors import UsageError
from tests.streaming_ext.build import build, numbered_parts, some_documents


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("traced") / "dataset"
    return str(build(folder, numbered_parts(some_documents(60)), compression="none").root)


def test_a_table_of_some_steps_is_what_exclude_takes(root, tmp_path, capsys) -> None:
    path = tmp_path / "excluded.parquet"
    assert trace(root, step="2:4", batch_size=2, ranks=2, output=str(path)) == 0
    table = pq.read_table(path).to_pylist()
    assert {row["step"] for row in table} == {2, 3}
    assert {row["rank"] for row in table} == {0, 1}
    assert f"{len(table)} pieces of documents in" in capsys.readouterr().out
    dataset = StreamingTokenDataset(
        local=root, batch_size=2, exclude=path, dp_rank=0, dp_world_size=1
    )
    assert 8 <= dataset.size - dataset.plan.epoch_size < dataset.size


def test_packed_steps_on_the_terminal(root, capsys) -> None:
    assert trace(root, step="0:2", batch_size=2, packing="best_fit") == 0
    told = capsys.readouterr().out
    assert told.count("\n  token 0: ") == 4
    assert "step 1\n" in told


@pytest.mark.parametrize("step", ["x", "3:", ":3", "-1", "4:4", "4:2"])
def test_steps_that_are_none(root, step) -> None:
    with pytest.raises(UsageError, match="--step"):
        trace(root, step=step, batch_size=2)


def test_a_folder_that_is_missing(root, tmp_path) -> None:
    with pytest.raises(UsageError, match="there is no such folder"):
        trace(root, step="1", batch_size=2, output=str(tmp_path / "a/b.parquet"))


def test_where_a_document_comes(root, capsys) -> None:
    assert trace(root, document="source-1.parquet:4", batch_size=2, ranks=2) == 0
    told = capsys.readouterr().out
    assert told.startswith("step ")
    assert "from its token 0 on" in told
    step = told.split()[1].rstrip(",")
    trace(root, step=step, batch_size=2, ranks=2)
    assert "row 4 of mem://source-1.parquet" in capsys.readouterr().out


@pytest.mark.parametrize("document", ["a", "a:", ":3", "a:b"])
def test_a_document_that_is_none(root, document) -> None:
    with pytest.raises(UsageError, match="SOURCE:ROW"):
        trace(root, document=document, batch_size=2)
    with pytest.raises(UsageError, match="either"):
        trace(root, document=document, step="1", batch_size=2)


def test_a_step_of_a_schedule(root, capsys) -> None:
    changes = {"global_batch": "0:4 50:8", "sequence_length": "0:4 50:8", "ranks": 2}
    assert trace(root, step="1:5", **changes) == 0
    told = capsys.readouterr().out
    steps = [part.count("rank ") for part in told.split("step ")[1:]]
    assert steps == [4, 4, 4, 8]  # of 16, 16, 16 and 64 tokens
    with pytest.raises(UsageError, match="Give `--batch-size`.*or `--global-batch`"):
        trace(root, step="1")
    with pytest.raises(UsageError, match="Give `--batch-size`.*or `--global-batch`"):
        trace(root, step="1", batch_size=2, global_batch="4")
