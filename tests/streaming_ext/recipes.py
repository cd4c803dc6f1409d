"""The recipes of docs/training.md, as files."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def recipe(name: str, folder: Path) -> Path:
    """Write a recipe of the documentation to a file."""
    text = (ROOT / "docs/training.md").read_text()
    (block,) = re.findall(rf"```python\n(# recipe: {name}\n.*?)```", text, flags=re.DOTALL)
    path = folder / f"{name}_recipe.py"
    path.write_text(f"import tests.streaming_ext.vision\n{block}")
    return path
