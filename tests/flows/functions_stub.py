"""flows/functions.pyi: the run-time signatures of the functions, for editors.

`python -m tests.flows.functions_stub` writes it.
"""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

from flows import functions

SOURCE = Path(functions.__file__)
STUB = SOURCE.with_suffix(".pyi")


def write_stub(path: Path) -> None:
    """Write each function with its arguments, and the imports that these need."""
    _, *nodes = ast.parse(SOURCE.read_text()).body
    nodes[:0] = ast.parse("from collections.abc import Sequence").body
    body = [kept for node in nodes for kept in _kept(node)]
    text = ast.unparse(ast.Module(body, []))
    path.write_text(f"# Made by `python -m {__spec__.name}`.\n{text}\n")
    for words in (["check", "--select=F401,I,UP037", "--fix", "--quiet"], ["format", "--quiet"]):
        config = f"--config={SOURCE.parents[1] / 'pyproject.toml'}"
        subprocess.run([sys.executable, "-m", "ruff", *words, config, str(path)], check=True)


def _kept(node: ast.stmt) -> list[ast.stmt]:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.If():
            return [node]
        case ast.FunctionDef(returns=ast.expr() as returns) if node.decorator_list:
            function = getattr(functions, node.name)
            text = f"def {node.name}({_parameters(function)}) -> {ast.unparse(returns)}: ..."
            (made,) = ast.parse(text).body
            assert isinstance(made, ast.FunctionDef)
            made.body = [ast.Expr(ast.Constant(function.__doc__))]
            return [made]
    return []


def _parameters(function: object) -> str:
    """Return the parameters as source code; their annotations are strings."""
    shown = ["*"]
    for each in inspect.signature(function).parameters.values():  # type: ignore[arg-type]
        default = "" if each.default is each.empty else f" = {each.default!r}"
        parameter = f"{each.name}: {each.annotation}{default}"
        by_position = each.kind is not each.KEYWORD_ONLY
        shown.insert(shown.index("*") if by_position else len(shown), parameter)
    return ", ".join(shown)


if __name__ == "__main__":
    write_stub(STUB)
