"""Other packages stay as they are: the source replaces none of their attributes."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OWN = {"flows", "tasks", "streaming_ext", "shardmill"}
FILES = [
    ROOT / "shardmill.py",
    *(file for name in sorted(OWN - {"shardmill"}) for file in sorted((ROOT / name).rglob("*.py"))),
]

PROCESS = ("os.environ", "sys.argv", "sys.path[", "sys.std")  # the process may set its own state
_SETTERS = {"setattr", "delattr", "vars"}


def replaced_in(tree: ast.AST) -> Iterator[str]:
    """Yield what the code of a file sets or deletes of the packages that it imports."""
    foreign: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            foreign |= {
                (alias.asname or alias.name).split(".")[0]
                for alias in node.names
                if alias.name.split(".")[0] not in OWN
            }
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] not in OWN:
            foreign |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        places: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            places = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            places = [node.target]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in _SETTERS and node.args:
            places = [ast.Attribute(node.args[0], "*", ast.Load())]
        for place in places:
            root: ast.expr = place
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            mine = ast.unparse(place).startswith(PROCESS)
            if root is not place and isinstance(root, ast.Name) and root.id in foreign and not mine:
                yield f"{ast.unparse(place)} in line {getattr(node, 'lineno', 0)}"


@pytest.mark.parametrize(
    "code",
    [
        "import prefect.settings\nprefect.settings.Settings.hash_key = None",
        "import sys\nsys.modules['a'] = None",
        "from httpx import Client as C\nsetattr(C, '__init__', None)",
        "import builtins\ndel builtins.__import__",
    ],
)
def test_the_check_sees_what_is_replaced(code) -> None:
    assert list(replaced_in(ast.parse(code)))


def test_no_source_replaces_anything_of_another_package() -> None:
    found = {
        str(file.relative_to(ROOT)): [*replaced_in(ast.parse(file.read_text()))] for file in FILES
    }
    assert len(found) > 200
    assert {file: places for file, places in found.items() if places} == {}
