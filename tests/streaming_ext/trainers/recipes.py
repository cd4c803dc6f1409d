"""The recipes of docs/how-to/evaluate.md and docs/how-to/trainers, as files and as modules."""

import importlib.util
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def recipe(name: str, folder: Path) -> Path:
    """Write a recipe of the documentation to a file."""
    pages = [ROOT / "docs/how-to/evaluate.md", *ROOT.glob("docs/how-to/trainers/*.md")]
    text = "".join(page.read_text() for page in pages)
    (block,) = re.findall(rf"```python\n(# recipe: {name}\n.*?)```", text, flags=re.DOTALL)
    path = folder / f"{name}_recipe.py"
    takes_vision = re.search(r"^(import|from) (lightning|transformers)", block, re.MULTILINE)
    first = "import tests.streaming_ext.trainers.vision\n" if takes_vision else ""
    path.write_text(first + block)
    return path


def load_recipe(name: str, folder: Path) -> Any:
    """A recipe as a module."""
    spec = importlib.util.spec_from_file_location(name, recipe(name, folder))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
