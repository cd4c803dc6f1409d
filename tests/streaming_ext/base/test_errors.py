"""The error tree stands in one file, as drawn at its head, and the docs list the same errors."""

import ast
import inspect
import re
from pathlib import Path

from streaming_ext.base import errors
from streaming_ext.base.errors import ShardmillError

ROOT = Path(__file__).parents[3]
TREE = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, ShardmillError)
}


def test_the_tree_is_drawn_as_it_is() -> None:
    drawn = re.findall(r"^ {4}( *)(\w+Error)(?: +also an? (\w+))?$", errors.__doc__, re.MULTILINE)
    bases: dict[str, list[str]] = {}
    path = ["Exception"]
    for indent, name, also in drawn:
        depth = len(indent) // 4 + 1
        path[depth:] = [name]
        bases[name] = [path[depth - 1], *filter(None, [also])]
    assert len(bases) > 20
    assert bases == {
        name: [base.__name__ for base in kind.__bases__] for name, kind in TREE.items()
    }
    assert list(bases) == list(TREE)  # in the order of the file


def test_every_error_stands_in_this_file() -> None:
    elsewhere = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for folder in ("streaming_ext", "tasks", "flows")
        for path in (ROOT / folder).rglob("*.py")
        if path != Path(errors.__file__)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        if any(isinstance(base, ast.Name) and base.id in TREE for base in node.bases)
    ]
    assert elsewhere == []


def test_the_pages_of_errors_list_the_tree() -> None:
    reference = ROOT / "docs/reference"
    listed = re.findall(r"^\| `(\w+)` \|", (reference / "errors.md").read_text(), re.MULTILINE)
    assert ["ShardmillError", *listed] == list(TREE)
    (members,) = re.findall(r"members: \[(.*)\]", (reference / "python/errors.md").read_text())
    assert members.split(", ") == list(TREE)
