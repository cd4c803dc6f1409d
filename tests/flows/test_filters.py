"""Filters as a user gives them: the documented command, its report, and bad conditions."""

import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.synthetic import make_documents
from tests.command_line import succeeded

PAGE = Path(__file__).parents[2] / "docs/how-to/filter.md"


@pytest.fixture(scope="module")
def languages(tmp_path_factory) -> Path:
    """Two files of 30 documents with columns as FineWeb-Edu has them."""
    folder = tmp_path_factory.mktemp("languages")
    for number in range(2):
        rows = [
            {"text": text, "language": "en" if row % 2 else "de", "language_score": row / 30}
            for row, text in enumerate(make_documents(30, seed=number))
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{number}.parquet")
    return folder


def test_the_documented_command(served, shardmill, languages, vocabulary, tmp_path) -> None:
    found = re.search(r"```bash\n(.+?)```", PAGE.read_text(), re.DOTALL)
    assert found
    program, command, _, *options = shlex.split(found[1].replace("\\\n", " "))
    assert (program, command) == ("shardmill", "shard")
    output = tmp_path / "filtered"
    options[options.index("--output") + 1] = str(output)
    options[options.index("--tokenizer") + 1] = str(vocabulary)
    succeeded(
        served.run("shard", languages, *options, "--pattern", "gpt2", "--sequence-length", 64)
    )
    (report,) = output.glob("runs/*.html")
    assert "dropped by --where language" in report.read_text()
    shown = shardmill("inspect", output)
    words = " ".join(shown.stdout.split())
    # of each 30, those of odd row from 20 on stay
    assert "50 documents by --where language == 'en' and language_score >= 0.65" in words
    assert "0 documents by --min-tokens 16" in words
    succeeded(shardmill("verify", output, "--deep"))


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("language = 'en'", "is not understood"),
        ("lang == 'en'", "has no column 'lang'; its columns are text, language, language_score"),
        ("language > 3", "column 'language' is of type string, and --where compares it with a"),
    ],
)
def test_a_condition_that_cannot_be_is_refused(
    served,
    shardmill,
    languages,
    tmp_path,
    where,
    said,
) -> None:
    ended = shardmill(*served.shard_arguments(tmp_path / "out", sources=languages, where=where))
    assert ended.returncode == 2, ended.stderr
    assert said in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "out/manifest.json").exists()
