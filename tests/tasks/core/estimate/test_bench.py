"""The measurement of a tokenizer agrees with runs and with plans."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.terminal.show_plans import show_bench
from streaming_ext.base.errors import EngineMismatchError, SourceError, TokenizerError
from streaming_ext.text.tokenizer.engine import Encoded, FastEngine
from tasks.core.estimate.config import BenchConfig, EstimateConfig
from tasks.core.estimate.estimate import Bench, bench, estimate
from tests.tasks.core.build_dataset import build_from, manifest_of
from tests.tasks.core.check.damage import printed
from tests.tasks.core.doubles import write_source


def benched(tokenizer: object, *sources: Path, **options: Any) -> Bench:
    options = {"pattern": "gpt2", "workers": 1, **options}
    return bench(BenchConfig(tokenizer=str(tokenizer), sources=tuple(map(str, sources)), **options))


def test_what_a_run_makes_and_a_plan_says(sources, vocabulary, tmp_path) -> None:
    found = benched(vocabulary, sources)
    manifest = manifest_of(build_from(sources, tmp_path / "dataset"))
    documents = sum(each.documents for each in manifest.splits.values())
    assert found.text_bytes == manifest.text_bytes
    expected = (manifest.tokens - documents) / manifest.text_bytes
    assert found.tokens_per_byte == pytest.approx(expected)
    planned = estimate(
        EstimateConfig(
            sources=(str(sources),), tokenizer=str(vocabulary), pattern="gpt2", workers=1
        )
    )
    assert planned.compared_bytes == found.compared_bytes > 0
    assert planned.engine == found.engine
    assert planned.bytes_per_token.value == pytest.approx(1 / found.tokens_per_byte)
    (line,) = printed(show_bench, found).splitlines()
    assert line.startswith(f"{vocabulary}: gigatoken ")
    assert "; ids equal to those of tiktoken " in line
    assert " MB/s per core, with 1 at work; " in line
    assert line.endswith(" tokens per byte")


def test_a_tokenizer_that_only_the_reference_serves(sources, tokenizer_json, tmp_path) -> None:
    config = json.loads(tokenizer_json) | {"normalizer": {"type": "Prepend", "prepend": "x"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(config))
    found = benched(tmp_path / "tokenizer.json", sources, pattern=None)
    assert found.engine.startswith(f"{found.reference}, because ")
    assert "expect about" not in found.engine
    assert found.compared_bytes == 0
    assert "; ids of the reference itself on " in printed(show_bench, found)


def test_other_ids_end_it(sources, vocabulary, monkeypatch) -> None:
    """Such ids would end a run too; the error names the file."""
    encode = FastEngine._encode_all

    def wrong(*arguments: Any) -> Any:
        encoded = encode(*arguments)
        if len(encoded.offsets) > 100:  # the vocabulary's, which is compared first
            return encoded
        return Encoded(encoded.ids[::-1].copy(), encoded.offsets)

    monkeypatch.setattr(FastEngine, "_encode_all", wrong)
    with pytest.raises(EngineMismatchError, match=rf"{sources}/.*\.parquet, in a sample: Document"):
        benched(vocabulary, sources)


def test_a_file_that_is_no_text(vocabulary, tmp_path) -> None:
    write_source(tmp_path / "a.parquet", ["Some text."] * 20)
    (tmp_path / "b.parquet").write_text("no parquet")
    found = benched(vocabulary, tmp_path)
    assert "b.parquet" in found.problems[0]
    assert "1 file cannot be used:" in printed(show_bench, found)
    with pytest.raises(SourceError, match=r"b\.parquet"):
        benched(vocabulary, tmp_path / "b.parquet")
    with pytest.raises(TokenizerError, match="No such file"):
        benched("/nowhere/a.tiktoken", tmp_path)
