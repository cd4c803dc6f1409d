"""examples/train_on_text.ipynb: its cells run in order and hold what they assert."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[4] / "examples/train_on_text.ipynb"


def test_cells(tmp_path, vocabulary, monkeypatch, capsys) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    shown: list[list[float]] = []

    def show() -> None:
        shown.append(list(plt.gca().lines[0].get_ydata()))
        plt.close()

    monkeypatch.setattr(plt, "show", show)
    monkeypatch.chdir(tmp_path)
    cells = [
        "".join(cell["source"])
        for cell in json.loads(NOTEBOOK.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    names: dict[str, Any] = {"vocabulary": str(vocabulary)}
    for cell in cells:
        code = cell.replace('tokenizer="gpt2"', 'tokenizer=vocabulary, pattern="gpt2"')
        code = code.replace("in range(100)", "in range(4)")  # stories per file
        exec(compile(code, NOTEBOOK.name, "exec"), names)  # noqa: S102 - what the docs show
    steps = len(names["steps"])
    assert steps > 10
    assert [len(curve) for curve in shown] == [steps]
    assert f"{names['tokens']:,} tokens" in capsys.readouterr().out


def test_it_links_pages_that_exist() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    text = "".join(line for cell in cells for line in cell["source"])
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert links
    assert [link for link in links if not (NOTEBOOK.parent / link).exists()] == []
