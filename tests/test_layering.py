"""Imports go one way: flows -> tasks -> tasks.core -> the format that training shares."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PREFECT = {"prefect"}
TRAINING = {"torch", "torchvision", "streaming"}
COMMAND_LINE = {"cyclopts", "typer", "click", "rich"}
# The folders and files of streaming_ext, bottom first: each imports from earlier lines only.
ORDER = (
    "base",
    "own_module",
    "store",
    "format",
    "text",
    "writing",
    "order",
    "reading",
    "training",
)
RANKS = {name: rank for rank, name in enumerate((*ORDER, "transforms"))}


def loaded_by(*stages: Sequence[str]) -> list[set[str]]:
    """Return the top-level packages that a fresh interpreter holds after importing the modules of
    each stage and of those before it."""
    code = "; ".join(
        [
            "import importlib, sys",
            "load = lambda stage: [importlib.import_module(name) for name in stage]",
            "tops = lambda: {name.partition('.')[0] for name in sys.modules}",
            f"[print(*(load(stage) and tops())) for stage in {stages!r}]",
        ]
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [set(line.split()) for line in ended.stdout.splitlines()]


def modules_of(package: str) -> list[str]:
    """Return the dotted name of every module below a folder."""
    files = sorted((ROOT / package).rglob("*.py"))
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names]


def imports_of(module: str) -> Iterator[str]:
    """Yield the dotted names that a module imports anywhere, in functions and for types too."""
    path = ROOT.joinpath(*module.split("."))
    package = path / "__init__.py"  # git keeps a removed package's folder if it holds a cache
    file = package if package.exists() else path.with_suffix(".py")
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules_named(module: str, modules: set[str]) -> set[str]:
    """Return the modules among some that a module imports, or imports names from."""
    named = {name if name in modules else name.rpartition(".")[0] for name in imports_of(module)}
    return named & modules


def allowed_in_core(name: str) -> bool:
    parts = name.split(".")
    if parts[0] == "streaming_ext":
        return parts[1] in {"base", "own_module", "store", "format", "text", "writing"}
    if parts[0] == "tasks":
        return parts[1] == "core"
    return parts[0] not in {"flows", "prefect", *TRAINING, *COMMAND_LINE}


def test_what_streaming_ext_loads() -> None:
    """The package alone is light, and so are format and manifest. Training from shards needs no
    tokenizer, and nothing needs Prefect."""
    pytest.importorskip("torch")
    alone, manifest, training, everything = loaded_by(
        ["streaming_ext"],
        [f"streaming_ext.format.{name}" for name in ("mds", "manifest", "layout")],
        [
            "streaming_ext.training.token_dataset",
            "streaming_ext.training.loader",
            "streaming_ext.training.features.trace",
        ],
        # Grain is no dependency: users who train with it have it installed.
        [name for name in modules_of("streaming_ext") if not name.endswith(".grain")],
    )
    heavy = PREFECT | TRAINING | COMMAND_LINE | {"tasks", "flows"}
    assert not alone & heavy
    assert "pydantic" in manifest
    assert not manifest & (heavy | {"transformers"})
    assert "torch" in training
    # mosaicml-streaming loads transformers, and with it `tokenizers`, if they are installed.
    assert not training & {"awkward", "bracex", "gigatoken", "httpx", "tiktoken"}
    assert not everything & (PREFECT | {"tasks", "flows"})


def test_a_worker_is_light_and_all_of_core_does_without_prefect_and_torch() -> None:
    modules = modules_of("tasks/core")
    assert {"tasks.core.shard.plan", "tasks.core.workers.worker"} <= set(modules)
    assert len(modules) > 15
    worker, core = loaded_by(
        ["tasks.core.workers.worker", "tasks.core.workers.tokenize_part"], modules
    )
    assert {"tasks", "pyarrow", "pydantic"} <= worker
    assert not worker & (PREFECT | TRAINING | COMMAND_LINE | {"flows", "pandas"})
    assert not core & (PREFECT | TRAINING | {"flows"})


def test_the_command_line_answers_before_prefect_is_loaded() -> None:
    (loaded,) = loaded_by(["flows.cli"])
    assert not loaded & (PREFECT | TRAINING)


def is_upwards(module: str, name: str) -> bool:
    """Return whether a module of streaming_ext imports a later line, `tasks`, `flows` or Prefect.

    The package itself may import anything of its own: it exports the public classes.
    """
    _, *own = module.split(".")
    above, *parts = name.split(".")
    if above != "streaming_ext" or not own or parts[0] == own[0]:
        return above in {"tasks", "flows", "prefect"}
    return RANKS[parts[0]] >= RANKS[own[0]]


FOREIGN_TO_SOURCES = tuple(
    f"streaming_ext.text.{name}" for name in ("formats", "readers", "token_sets")
)


@pytest.mark.parametrize(
    ("package", "is_wrong"),
    [
        ("streaming_ext", is_upwards),
        ("streaming_ext/text/sources", lambda _, name: name.startswith(FOREIGN_TO_SOURCES)),
        ("tasks", lambda _, name: name.partition(".")[0] == "flows"),
        ("tasks/core", lambda _, name: not allowed_in_core(name)),
    ],
)
def test_packages_import_downwards_only(package, is_wrong) -> None:
    found = [(module, name) for module in modules_of(package) for name in imports_of(module)]
    assert found
    assert [each for each in found if is_wrong(*each)] == []


def test_modules_import_each_other_in_no_circle() -> None:
    """A circle counts even if only a type checker follows its imports."""
    packages = ("streaming_ext", "tasks", "flows")
    modules = {module for package in packages for module in modules_of(package)}
    assert_no_circle({module: modules_named(module, modules) for module in modules})


def assert_no_circle(imports: dict[str, set[str]]) -> None:
    """Check that modules or folders, each with those it imports, form no circle."""
    assert sum(map(len, imports.values())) > len(imports)
    TopologicalSorter(imports).prepare()  # a CycleError names the circle


def test_the_check_sees_imports_everywhere() -> None:
    seen = set(imports_of("tasks.core.shard.run_plan"))
    assert "streaming_ext.format.spec.DatasetSpec" in seen
    assert "pathlib.Path" in seen
    assert any(name.startswith("prefect") for name in imports_of("tasks.steps"))
    for_types_only = "streaming_ext.training.token_dataset.StreamingTokenDataset"
    assert for_types_only in imports_of("streaming_ext.training.features.trace")
    above = ("flows.cli", "prefect.task", "torch", "streaming_ext.training.token_dataset.x")
    assert not [name for name in (*above, "tasks.steps.OURS") if allowed_in_core(name)]


@pytest.mark.parametrize("package", ["flows", "tasks/core"])
def test_folders_side_by_side_import_each_other_in_no_circle(package) -> None:
    depth = package.count("/") + 1
    inside = f"{package.replace('/', '.')}."
    folders: dict[str, set[str]] = {}
    for module in modules_of(package):
        if len(parts := module.split(".")) > depth + 1:
            named = {
                name.split(".")[depth] for name in imports_of(module) if name.startswith(inside)
            }
            folders.setdefault(parts[depth], set()).update(named - {parts[depth]})
    assert_no_circle(folders)


@pytest.mark.parametrize("package", ["streaming_ext", "tasks", "flows"])
def test_each_folder_says_what_it_is(package) -> None:
    for file in (ROOT / package).rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(file.read_text())), file
