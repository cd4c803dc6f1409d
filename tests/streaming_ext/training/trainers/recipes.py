"""The recipes of examples/trainers and of docs/how-to/evaluate.md, as files and as modules.

docs/how-to/trainers.md shows the files.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[4]


def recipe(name: str, folder: Path) -> Path:
    """Copy a recipe to a folder, with the import that it needs here."""
    if name == "evaluation":
        (block,) = re.findall(
            r"```python\n(.*?)```", (ROOT / "docs/how-to/evaluate.md").read_text(), flags=re.DOTALL
        )
    else:
        block = (ROOT / f"examples/trainers/{name}.py").read_text()
    path = folder / f"{name}_recipe.py"
    takes_vision = re.search(r"^(import|from) (lightning|transformers)", block, re.MULTILINE)
    first = "import tests.streaming_ext.training.trainers.vision\n" if takes_vision else ""
    path.write_text(first + block)
    return path


def load_recipe(name: str, folder: Path) -> Any:
    """Import a recipe as a module."""
    spec = importlib.util.spec_from_file_location(name, recipe(name, folder))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
