"""docs/coming-from.md: our commands and programs, run in the order of the page."""

import contextlib
import io
import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.training.stock import streaming
from tasks.core.synthetic import make_documents, write_parquet_files
from tests.test_readme import blocks

DOCUMENT = "docs/coming-from.md"


def write_foreign(folder: Path, tokenizer: Path) -> None:
    """Write an MDS set as llm-foundry does."""
    encode = load_tokenizer(str(tokenizer), pattern="gpt2").encode
    end = load_tokenizer(str(tokenizer), pattern="gpt2").eot_id
    ids = [token for text in make_documents(9, seed=1) for token in [*encode(text), end]]
    columns = {"tokens": "ndarray:int32"}
    with streaming.MDSWriter(out=str(folder), columns=columns) as writer:
        for at in range(0, len(ids) // 64 * 64, 64):
            writer.write({"tokens": np.array(ids[at : at + 64], np.int32)})


@pytest.mark.soak  # fourteen commands, each of which has a test elsewhere
def test_ours(served, vocabulary, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fineweb-edu").mkdir()
    write_parquet_files(tmp_path / "fineweb-edu", 3, 200, seed=5)
    (tmp_path / "oscar").mkdir()
    for number in range(2):
        lines = [json.dumps({"text": text}) + "\n" for text in make_documents(200, seed=number)]
        (tmp_path / f"oscar/{number}.jsonl").write_text("".join(lines))
    write_foreign(tmp_path / "my-copy-c4/train", vocabulary)
    commands = [line for block in blocks(DOCUMENT, "bash") for line in block.splitlines()]
    assert len(commands) >= 13
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "shardmill"
        if "gpt2" in words:
            words[words.index("gpt2")] = str(vocabulary)
            words += ["--pattern", "gpt2"]
        ended = served.run(*words)
        assert ended.returncode == 0, (command, ended.stdout, ended.stderr)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for cell in blocks(DOCUMENT, "python"):
            code = cell.replace('tokenizer="gpt2"', f'tokenizer="{vocabulary}", pattern="gpt2"')
            exec(compile(code, DOCUMENT, "exec"), {})  # noqa: S102 - what the document shows
    assert printed.getvalue() == "(4, 2048)\n(8, 64)\n"
