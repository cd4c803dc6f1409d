"""Impossible paths: in the home of an unknown user, or with bytes that are not text."""

import os
from pathlib import Path

import pytest

from flows.commands.app import app
from flows.commands.check import inspect, verify
from flows.commands.demo import demo
from flows.commands.options import OutputOptions
from streaming_ext.base.errors import UsageError
from streaming_ext.store.locations import local_path, require_writable_name
from streaming_ext.text.listing import list_sources
from streaming_ext.text.tokenizer.load import load_tokenizer
from tasks.core.derive.config import CopyConfig, MergeConfig
from tasks.core.estimate.config import EstimateConfig
from tasks.core.estimate.estimate import estimate

NOBODY = "~nosuchuser/x"
BYTES = os.fsdecode(b"a\xff")


@pytest.mark.parametrize(
    "taken",
    [
        inspect,
        verify,
        lambda path: demo(Path(path)),
        lambda path: app(["copy", "--config", path], exit_on_error=False, print_error=False),
        load_tokenizer,
        lambda path: list_sources([path]),
        lambda path: OutputOptions(log_file=Path(path)).applied().__enter__(),
    ],
)
def test_the_home_of_nobody(tmp_path, monkeypatch, taken) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="~nosuchuser") as raised:
        taken(NOBODY)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("field", ["output", "dataset", "scratch"])
@pytest.mark.parametrize(
    ("path", "said"), [(NOBODY, "nobody"), (BYTES, "xff' is not UTF-8"), ("a\0b", "zero byte")]
)
def test_a_configuration_refuses_them(field, path, said) -> None:
    given = {"dataset": "a", "output": "b", "scratch": "c"} | {field: path}
    with pytest.raises(ValueError, match=said) as raised:
        CopyConfig.model_validate(given)
    assert "what can stand there" not in str(raised.value)
    with pytest.raises(ValueError, match="nobody"):
        MergeConfig(datasets=("a", NOBODY), output="b")


def test_a_relative_path_in_a_folder_that_is_not_utf8(tmp_path, monkeypatch) -> None:
    folder = tmp_path / BYTES
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match="folder whose name is not UTF-8"):
        CopyConfig(dataset="/a", output="b")
    assert CopyConfig(dataset="/a", output="s3://b/c").output == "s3://b/c"
    assert CopyConfig(dataset="/a", output="/b").output == "/b"


def test_folders_and_sources_that_are_not_utf8(vocabulary, tmp_path, monkeypatch) -> None:
    source = tmp_path / "source" / "a.jsonl"
    source.parent.mkdir()
    source.write_text('{"text": "a"}')
    (tmp_path / f"{BYTES}.jsonl").write_text("{}")
    with pytest.raises(UsageError, match=r"a\\+xff.jsonl'.* is not UTF-8"):
        list_sources([str(tmp_path)])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / BYTES))
    with pytest.raises(UsageError, match="not UTF-8"):
        estimate(EstimateConfig(sources=(str(source),), tokenizer=str(vocabulary), pattern="gpt2"))


def test_names_that_can_be(tmp_path) -> None:
    require_writable_name("s3://bucket/ü")
    require_writable_name(str(tmp_path / "ü"))
    assert local_path("~/x") == Path.home() / "x"
