"""mosaicml-streaming, without those of its datasets that nobody has asked for.

Use as `from streaming_ext.stock import streaming`.
`import streaming` imports its image datasets, and those torchvision, whose build from the package
index does not load beside a CPU-only torch. Nothing here reads images: where torchvision fails, an
empty `streaming.vision` stands in for it. Its text datasets import the tokenizers of transformers,
a second of each start; they are loaded when something of them is first used. Its loader imports
transformers, as long again, to know two kinds of batches; it knows them without, for nobody has
one who has not imported transformers.
"""

import builtins
import importlib
import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec
from types import ModuleType, SimpleNamespace
from typing import Any

_VISION = "streaming.vision"
_TEXT = "streaming.text"
_LOADER = "streaming.base.dataloader"
_BATCHES = {
    "transformers.feature_extraction_utils": "BatchFeature",
    "transformers.tokenization_utils_base": "BatchEncoding",
}


def _torchvision_loads() -> bool:
    before = set(sys.modules)
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError, OSError, AttributeError):
        # A half-imported package would make a later import fail in another place.
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "torchvision":
                del sys.modules[name]
        return False
    return True


def _loaded_when_used(spec: ModuleSpec) -> ModuleType:
    """A module of which only names like `__path__` are there, until another is asked for."""
    module = module_from_spec(spec)
    lock = threading.RLock()
    loading = False

    def load(name: str) -> Any:
        nonlocal loading
        if not name.startswith("__"):
            with lock:
                if not loading and "__getattr__" in vars(module):
                    loading = True
                    try:
                        spec.loader.exec_module(module)  # type: ignore[union-attr]
                        del module.__getattr__
                    finally:
                        loading = False
                if name in vars(module):
                    return vars(module)[name]
        raise AttributeError(f"module {spec.name!r} has no attribute {name!r}")

    module.__getattr__ = load  # type: ignore[method-assign]
    return module


class _KnownWhenThere(type):
    """Of a class that stands for one of a module, which is not imported for it."""

    def __instancecheck__(cls, instance: object) -> bool:
        there = sys.modules.get(cls.__module__)
        return isinstance(instance, getattr(there, cls.__name__, ()))


def _import(name: str, *arguments: Any) -> Any:
    if name in _BATCHES:
        kind = _BATCHES[name]
        return SimpleNamespace(**{kind: _KnownWhenThere(kind, (), {"__module__": name})})
    return __import__(name, *arguments)


class _WithoutTransformers(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": _import}
        super().exec_module(module)


class _FindsTheLoader(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path, target) if name == _LOADER else None
        if found and type(found.loader) is SourceFileLoader:
            found.loader = _WithoutTransformers(found.loader.name, found.loader.path)
        return found


def _import_streaming() -> ModuleType:
    if "streaming" not in sys.modules:
        if not _torchvision_loads():
            sys.modules[_VISION] = ModuleType(_VISION, "Left out: torchvision does not load here.")
        package = PathFinder.find_spec("streaming")
        text = package and PathFinder.find_spec(_TEXT, package.submodule_search_locations)
        if text:
            sys.modules[_TEXT] = _loaded_when_used(text)
    finder = _FindsTheLoader()
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module("streaming")
    finally:
        sys.meta_path.remove(finder)


streaming = _import_streaming()
