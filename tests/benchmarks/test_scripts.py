"""Benchmarks run on tiny input and without peers; the figures from here mean nothing."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command_line import run_program, succeeded
from tests.tokenizers import train_model

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cache(tmp_path_factory, sources, vocabulary) -> Path:
    """A cache that the scripts share; the session's small files stand in for the made-up ones."""
    folder = tmp_path_factory.mktemp("cache")
    shutil.copytree(sources, folder / "made-up")
    shutil.copy(vocabulary, folder / "made-up/made_up.tiktoken")
    return folder


def run_script(name: str, *arguments: object, cache: Path) -> str:
    """Run a benchmark and return what it prints to stdout."""
    environment = {key: value for key, value in os.environ.items() if key != "SHARDMILL_SHARED"}
    environment["SHARDMILL_BENCH_CACHE"] = str(cache)
    command = (sys.executable, "-m", f"benchmarks.{name}", *arguments)
    return succeeded(run_program(*command, env=environment, folder=ROOT)).stdout


def test_scripts_that_the_pages_name_exist() -> None:
    table = ROOT / "benchmarks/README.md"
    for page in (ROOT / "README.md", table, *ROOT.glob("docs/**/*.md")):
        text = page.read_text()
        commands = re.findall(r"-m (benchmarks\.[\w.]*\w)", text)
        if page == table:
            results = text.partition("## How it is compared")[0]
            rows = re.findall(r"^\| [^|`]+ \| `([a-z][\w.]+)", results, re.MULTILINE)
            assert len(rows) > 10
            commands += [f"benchmarks.{row}" for row in rows]
        for name in (command.replace(".", "/") for command in commands):
            scripts = (ROOT / f"{name}.py", ROOT / name / "__main__.py")
            assert any(script.is_file() for script in scripts), f"{page} runs {name}"
        for name in re.findall(r"`(benchmarks/[\w/]+)(?:\.py)?`", text):
            assert (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file(), f"{page} names {name}"


def saved(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    assert set(result.pop("machine")) == {"processor", "cores", "memory", "system", "Python"}
    return result


def test_shard_throughput(cache, tmp_path) -> None:
    result = tmp_path / "result.json"
    contenders = ("shardmill", "bare limit")
    sizes = ("--megabytes", 1, "--files", 2, "--rounds", 1)
    printed = run_script(
        "throughput", *sizes, "--result", result, "--only", *contenders, cache=cache
    )

    assert all(f"| {name} |" in printed for name in contenders)
    facts = saved(result)["facts"]
    # The counts include the ends of documents, so the bare limit has read every document too.
    assert len({facts[name]["tokens"] for name in contenders}) == 1
    assert facts["shardmill"]["tokens"] > 50_000


def test_recall_of_near_copies(cache, tmp_path) -> None:
    result = tmp_path / "result.json"
    run_script("deduplicate", "--recall", 120, "--result", result, cache=cache)
    facts = saved(result)
    for kind in ("ids", "words"):
        assert facts[f"pairs by {kind}"]["true"] > 10
        assert facts[f"pairs by {kind}"]["found"] > 0.7
        assert facts[f"pairs by {kind}"]["of those above 0.9"] > 0.9
        assert facts[f"pairs by {kind}"]["precision at 0.7"] > 0.9
    assert facts["left out"]["documents"] > 10
    assert facts["left out"]["least"] > 0.5


def test_tokenizers_beside_each_other(tokenizer_json, sources, cache, tmp_path) -> None:
    for name in ("fast", "model", "broken"):
        (tmp_path / name).mkdir()
    (tmp_path / "fast/tokenizer.json").write_text(tokenizer_json)
    (tmp_path / "broken/tokenizer.json").write_text("{}")
    train_model(tmp_path / "model/small.model", model_type="unigram", vocab_size=300)
    texts, result = tmp_path / "texts", tmp_path / "result.json"
    texts.mkdir()
    shutil.copy(next(sources.glob("*.parquet")), texts)
    pq.write_table(pa.table({"text": ["एक और पाठ"] * 8}), texts / "other.parquet")
    arguments = (tmp_path, texts, "--megabytes", 0.2, "--beside", "fast", "--result", result)
    printed = run_script("tokenizers", *arguments, cache=cache)
    found = {each["name"]: each for each in saved(result)["found"]}
    assert found["fast"]["words"].startswith("gigatoken ")
    assert found["model"]["words"].startswith("sentencepiece ")
    assert found["model"]["beginning"] == "<s>"
    assert "is not a tokenizer.json" in found["broken"]["words"]
    for name in ("fast", "model"):
        for script in ("Latin", "other"):
            assert len(found[name][script]) == 3
            assert min(found[name][script]) > 0
    assert re.search(r"\| fast \|( [\d.]+ \(1\.00\) \|){6}", printed)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "options", "key", "measured"),
    [
        ("footprint", "--rounds 1 --megabytes 1 --many 1 --document 1", "peak_mib", 3),
        ("whole", "--rounds 1 --times 1 --requests 1 --only copies", "copies", 6),
        ("whole", "--rounds 1 --times 1 --requests 1 --only requests", "requests", 6),
        ("whole", "--rounds 1 --times 1 --requests 1 --only merges", "merges", 1),
        ("export", "--rounds 1 --only megatron webdataset", "rates", 6),
        ("shuffle", "--rounds 1", "seconds", 3),
        ("deduplicate", "--rounds 1", "seconds", 9),
        ("from_text", "--length 64", "runs", 5),
    ],
)
def test_all_is_measured(name, options, key, measured, cache, tmp_path) -> None:
    result = tmp_path / "result.json"
    small = () if "--megabytes" in options else ("--megabytes", 1)
    run_script(name, *options.split(), *small, "--result", result, cache=cache)
    assert len(saved(result)[key]) == measured


@pytest.mark.parametrize(
    ("options", "measured"),
    [
        (["--only", "bare gather, in process", "shardmill, in process"], 2),
        pytest.param(["--extras"], 4, marks=pytest.mark.soak),
    ],
)
def test_reading(options, measured, cache) -> None:
    sizes = ("--megabytes", 1, "--batches", 8, "--rounds", 2)
    printed = run_script("reading", *sizes, *options, cache=cache)
    assert len(re.findall(r"million tokens/s|us of processor time", printed)) == measured


def conformance(loader: str, cache: Path, *options: object) -> dict[str, str]:
    """Run the conformance benchmark and return a loader's row of the table, by case."""
    result = cache / "conformance.json"
    given = ("--only", loader, "--sequences", 512, *options, "--result", result)
    run_script("conformance", *given, cache=cache)
    (cells,) = saved(result)["cells"].values()
    return dict(cells)


def test_conformance(cache) -> None:
    cells = conformance("Shardmill", cache)
    # A worker that has read all of its pass may end; nothing is lost without an error.
    assert re.fullmatch(r"exact|\w+Error", cells.pop("worker"))
    damaged = "CorruptDatasetError"
    exact = dict.fromkeys(("resume", "world", "mixture", "evaluation"), "exact")
    # 497 sequences make 31 steps of 16; one is left out in each of two passes.
    assert cells == {"epoch": "2 lost", "missing": damaged, "damaged": damaged, **exact}


@pytest.mark.soak
def test_conformance_of_stock(cache) -> None:
    cells = conformance("mosaicml-streaming", cache, "--seconds", 30)
    assert (cells["epoch"], cells["resume"]) == ("2 doubled", "exact")
    assert cells["mixture"].endswith(" doubled *")
    assert cells["evaluation"] == "1 doubled *"
