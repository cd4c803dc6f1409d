"""Chains of transforms in docs/: each cell runs, and prints the text below it.

docs/how-to/transforms.md, docs/how-to/transform-steps.md, docs/how-to/transform-workers.md and
docs/how-to/sft.md.
"""

import contextlib
import io
import re
from pathlib import Path

import pytest

from streaming_ext.text.tokenizer.load import load_tokenizer
from tasks.core.synthetic import make_documents
from tests.streaming_ext.transforms.conftest import write_lines
from tests.streaming_ext.transforms.test_sft import TEMPLATE

DOCS = Path(__file__).parents[3] / "docs/how-to"
CELL = re.compile(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["transforms", "transform-steps", "transform-workers", "sft"])
def test_cells(page, tmp_path, vocabulary, hub_tokenizer, monkeypatch) -> None:
    monkeypatch.setattr(hub_tokenizer, "chat_template", TEMPLATE)
    cells = CELL.findall((DOCS / f"{page}.md").read_text())
    assert cells
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        texts = make_documents(20, seed=number)
        write_lines(tmp_path / f"cc-100_{number:02}.jsonl", [{"text": text} for text in texts])
    names = {
        "hub": hub_tokenizer,
        "known": load_tokenizer(str(vocabulary), pattern="gpt2"),
    }
    for cell, expected in cells:
        code = cell.replace('"s3://bucket/cc-100_{00..99}.jsonl"', '"cc-100_{00..01}.jsonl"')
        code = code.replace('tokenizer = "gpt2"', "tokenizer = known")
        code = code.replace('AutoTokenizer.from_pretrained("HuggingFaceTB/SmolLM3-3B")', "hub")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, "cell", "exec"), names)  # noqa: S102 - what the docs show
        assert printed.getvalue() == expected, cell
