"""The commands as functions: arguments, results and errors."""

import inspect
import re
import shutil
import sys
from pathlib import Path

import pytest

import shardmill
from streaming_ext.base.errors import CorruptDatasetError, NotADatasetError, UsageError
from tasks.core.config import ShardConfig
from tests.command_line import run_program, succeeded
from tests.flows.functions_stub import STUB, write_stub

MAKE = """
import pyarrow as pa
import pyarrow.parquet as pq

import shardmill

config = {config!r}
made = shardmill.shard(config.pop("sources"), quiet=True, **config)
print(made, made.verify(deep=True).sound, made.inspect().documents)
more = shardmill.extend(made.path, {more!r})
assert more.tokens > made.tokens
few = shardmill.subset(made.path, output="few", documents=20)
both = shardmill.merge([few.path, few.path], output="both", repeats=True)
assert both.documents == {{name: 2 * each for name, each in few.documents.items()}}
away = shardmill.export("megatron", few.path, output="few-megatron")
print(away, away.verify().sound, away.inspect().manifest.identity.export)
assert shardmill.copy(away.path, "copied").tokens == few.tokens
assert shardmill.copy(few.path, "copied too").samples == few.samples
pq.write_table(pa.table({{"source": ["x"], "row": [0], "score": [1.0]}}), "scores.parquet")
assert shardmill.annotate(few.path, "scores.parquet", partial=True).inspect().manifest.added
dataset = few.open(batch_size=1, sequence_length=64)
assert dataset.size == len(list(dataset)) > 0
"""


def test_the_stub_is_current(tmp_path) -> None:
    write_stub(tmp_path / "functions.pyi")
    how = "python -m tests.flows.functions_stub"
    assert STUB.read_text() == (tmp_path / "functions.pyi").read_text(), how


def test_each_setting_of_a_command_is_an_argument() -> None:
    parameters = inspect.signature(shardmill.shard).parameters
    assert set(parameters) == {*ShardConfig.model_fields, "quiet"}
    assert all(f"    {name}: " in (shardmill.shard.__doc__ or "") for name in parameters)
    assert set(shardmill.__all__) == set(dir(shardmill))


def test_results(served, tmp_path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more/one.parquet").write_bytes(min(served.sources.glob("*.parquet")).read_bytes())
    config = served.shard_config(tmp_path / "out")
    script = tmp_path / "script.py"
    script.write_text(MAKE.format(config=config, more=str(tmp_path / "more")))
    ended = succeeded(run_program(sys.executable, str(script), env=served.env, folder=tmp_path))
    assert ended.stdout.startswith(f"Dataset('{tmp_path}/out': ")
    assert f"Export('{tmp_path}/few-megatron': " in ended.stdout
    assert " True megatron\n" in ended.stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shard_size": "many"}, "shard_size: must be a size such as 64MiB, got 'many'"),
        ({"nodes": 2}, "node_rank: goes with nodes"),
        ({"output": "https://user:secret@example.org/"}, "output"),
    ],
)
def test_wrong_values_name_the_argument(changes, message) -> None:
    wanted = {"output": "out", "tokenizer": "gpt2"} | changes
    with pytest.raises(UsageError, match=message) as raised:
        shardmill.shard("text", **wanted)
    assert "secret" not in str(raised.value)


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="tokeniser"):
        shardmill.shard("text", tokeniser="gpt2", tokenizer="gpt2", output="out")
    with pytest.raises(TypeError, match="missing a required.*'tokenizer'"):
        shardmill.shard("text", output="out")
    with pytest.raises(AttributeError, match="sharp"):
        shardmill.sharp  # noqa: B018


def test_failed_parts_are_an_error(served, tmp_path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.jsonl").write_text('{"text": "good"}\n')
    (tmp_path / "text/b.jsonl").write_text('{"text": "good"}\n{"text": "cut')
    config = served.shard_config(tmp_path / "out") | {"sources": str(tmp_path / "text")}
    words = f"import shardmill; shardmill.shard(**{config!r})"
    ended = run_program(sys.executable, "-c", words, env=served.env, folder=tmp_path)
    assert ended.stderr.splitlines()[-1] == (
        "streaming_ext.base.errors.PartsFailedError: 1 of 2 parts failed; the others are kept. Run "
        "the same command again to make the missing ones."
    )


def test_damage_is_an_error(dataset, tmp_path) -> None:
    with pytest.raises(NotADatasetError):
        shardmill.Dataset(tmp_path)
    assert shardmill.Dataset(dataset).verify().sound
    damaged = shutil.copytree(dataset, tmp_path / "copied")
    (shard, *_) = sorted(damaged.glob("train/*/*.mds*"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(CorruptDatasetError, match=str(shard.relative_to(damaged))):
        shardmill.Dataset(damaged).verify()


def test_the_page(served, tmp_path) -> None:
    page = Path(__file__).parents[2] / "docs/how-to/python.md"
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "fineweb-edu").symlink_to(served.sources)
    named = f'tokenizer="{served.tokenizer}", pattern="gpt2"'
    script = "".join(blocks).replace('tokenizer="gpt2"', named)
    (tmp_path / "script.py").write_text(script)
    ended = succeeded(run_program(sys.executable, "script.py", env=served.env, folder=tmp_path))
    assert f"\nDataset('{tmp_path}/fineweb-edu-tokens': " in ended.stdout
    assert "torch.Size([4, 128])" in ended.stdout
