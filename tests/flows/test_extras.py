"""The wheel in environments that lack extras: a command or class that needs one names it in one
line, and everything else works.
"""

import json
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import refused, run_program, succeeded
from tests.servers import shared
from tests.servers.environments import ROOT, built_wheel, environment_with

# Runs several commands in one process, to save starts; prints exit code, stdout and stderr of each.
COMMANDS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from flows.cli import main

for words in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""
TRAIN = {"trace {} --step 0 --batch-size 2": "train"}
TOKENIZE = {
    "inspect {} --sample 0": "tokenize",
    "verify {} --deep": "tokenize",
    "plan https://127.0.0.1/x.parquet --tokenizer gpt2": "tokenize",
    "plan ../a.jsonl --tokenizer gpt2": "tokenize",
}
JSON_TOKENIZER = {"plan ../a.txt --tokenizer ../a.json": "tokenize"}  # `train` brings its library
FLOW = dict.fromkeys(
    (
        "shard texts --output out --tokenizer gpt2",
        "extend {} texts",
        "import megatron a.bin --output out --tokenizer gpt2",
        "export megatron {} --output out",
        "copy {} out",
        "merge {} {} --output out",
        "subset {} --output out --documents 2",
        "submit shard-fineweb",
        "demo",
    ),
    "flow",
)
STORES = {
    "verify s3://bucket/data": "s3",
    "inspect gs://bucket/data": "gcs",
    "plan az://bucket/*.parquet --tokenizer gpt2": "azure",
}


def pip(extra: str) -> str:
    return f"The extra `{extra}` brings it: pip install 'shardmill[{extra}]'."


@pytest.fixture(scope="module")
def wheel() -> Path:
    (found,) = shared.folder("wheel", built_wheel).glob("dist/*.whl")
    return found


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory) -> Callable[[str], Path]:
    """The programs of an environment with the given extras, or none; made once for each."""
    made: dict[str, Path] = {}

    def of(extra: str) -> Path:
        if extra not in made:
            home = tmp_path_factory.mktemp("environment") / "venv"
            made[extra] = environment_with(home, wheel, *extra.split())
        return made[extra]

    return of


def ended(python: Path, commands: list[str], folder: Path) -> list[list[Any]]:
    """Return exit code, standard output and standard error of each command."""
    words = json.dumps([command.split() for command in commands])
    lines = succeeded(run_program(python / "python", "-c", COMMANDS, words, folder=folder)).stdout
    return [json.loads(line) for line in lines.splitlines()]


@pytest.mark.parametrize(
    ("extra", "needs"),
    [
        ("", TRAIN | TOKENIZE | JSON_TOKENIZER | FLOW | STORES),
        ("train", {"trace {} --grep a --batch-size 2": "tokenize"} | TOKENIZE | FLOW),
        ("tokenize", TRAIN | FLOW | STORES),
        ("flow", TRAIN | STORES),
    ],
)
def test_commands_name_the_extra_that_they_need(programs, dataset, tmp_path, extra, needs) -> None:
    """Nothing starts. `verify`, `inspect` and help work; so does `trace`, if training does."""
    home, folder = programs(extra), tmp_path / "empty"
    folder.mkdir()
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
    end = {"id": 1, "content": "b", "special": True}
    (tmp_path / "a.json").write_text(json.dumps({"model": model, "added_tokens": [end]}))
    assert succeeded(run_program(home / "shardmill", "--version")).stdout == "0.1.0\n"
    commands = [command.replace("{}", str(dataset)) for command in needs]
    for command, name, (code, out, err) in zip(
        commands, needs.values(), ended(home, commands, folder), strict=True
    ):
        assert (code, out) == (2, ""), (command, out, err)
        assert err.startswith("shardmill: The package "), err
        assert err.endswith(f"{pip(name)}\n"), err
        assert err.count("\n") == 1, err
    assert not list(folder.iterdir())
    works = ["--help", "verify --help", f"inspect {dataset}", f"verify {dataset}"]
    if extra == "train":
        works.append(f"trace {dataset} --step 0 --batch-size 2")
    found = ended(home, works, folder)
    assert [code for code, _, _ in found] == [0] * len(works), found
    compared_by_bytes = pip("tokenize") in found[3][2]
    assert compared_by_bytes is (extra in {"", "train"})
    assert all(" row " in out for _, out, _ in found[4:])


def test_what_the_wheel_and_the_archive_hold(wheel) -> None:
    """They hold the packages with their data, but no tests, benchmarks, pages or files of a run."""
    own = {"flows", "tasks", "streaming_ext", "shardmill.py"}
    with zipfile.ZipFile(wheel) as packed:
        names = {*packed.namelist()}
        (info,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        about = packed.read(info).decode()
    assert {name.split("/")[0] for name in names} == {*own, info.split("/")[0]}
    for folder in ("flows", "tasks", "streaming_ext"):
        kept = [path for path in (ROOT / folder).rglob("*") if path.is_file()]
        kept = [path for path in kept if "__pycache__" not in path.parts]
        assert {str(path.relative_to(ROOT)) for path in kept} <= names
    assert not [name for name in names if "__pycache__" in name]
    for field in ("Author", "License-Expression", "Keywords", "Requires-Python", "Summary"):
        assert re.search(rf"^{field}: \S", about, re.MULTILINE), field
    for word in ("Topic ::", "Operating System :: POSIX :: Linux", "Python :: 3.11", "Typed"):
        assert re.search(rf"^Classifier: .*{word}", about, re.MULTILINE), word
    (archive,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        tops = {name.split("/")[1] for name in packed.getnames() if "/" in name}
    documents = {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "MANIFEST.in"}
    assert tops == {*own, *documents, "PKG-INFO", "setup.cfg", "shardmill.egg-info"}


TEXT = "StreamingTextDataset(sources='a.txt', tokenizer='gpt2', sequence_length=8)"


@pytest.mark.parametrize(
    ("extra", "code", "needed"),
    [
        ("", "from streaming_ext import StreamingTokenDataset", "train"),
        ("tokenize", "from streaming_ext import StreamingTextDataset", "train"),
        ("train", f"from streaming_ext import StreamingTextDataset; {TEXT}", "tokenize"),
    ],
)
def test_classes_name_the_extra_that_they_need(programs, tmp_path, extra, code, needed) -> None:
    ended = run_program(programs(extra) / "python", "-c", code, folder=tmp_path)
    assert ended.returncode == 1
    *before, last = ended.stderr.splitlines()
    assert last.startswith("streaming_ext.base.errors.MissingExtraError: The package ")
    assert last.endswith(pip(needed))
    assert "another exception" not in "".join(before)


def test_the_demo_works_without_what_training_needs(programs, served, tmp_path) -> None:
    """The commands that it prints work too, in the user's folder.

    A run that needs the extra of another executor names it.
    """
    shardmill = programs("flow") / "shardmill"
    made = run_program(shardmill, "demo", "a b/demo", env=served.env, folder=tmp_path)
    assert pip("train") in succeeded(made).stdout
    assert (tmp_path / "a b/demo/dataset/manifest.json").exists()
    commands = re.findall(r"^  (\S.*)$", made.stdout.partition("Then try:")[2], re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        assert command.startswith(str(shardmill))  # not on the path
        succeeded(run_program("bash", "-c", command, env=served.env, folder=tmp_path))
    assert (tmp_path / "a b/demo/megatron/export.json").exists()
    assert (tmp_path / "a b/demo/shuffled/manifest.json").exists()
    arguments = served.shard_arguments(tmp_path / "out", executor="dask://127.0.0.1:1")
    ended = refused(run_program(shardmill, *arguments, env=served.env))
    assert ended.stderr.splitlines()[-1].endswith(pip("dask"))
