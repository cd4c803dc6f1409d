"""mosaicml-streaming, without those of its datasets that nobody has asked for.

Use as `from streaming_ext.stock import streaming`.
`import streaming` imports its image datasets, and those torchvision, whose build from the package
index does not load beside a CPU-only torch. Nothing here reads images: where torchvision fails, an
empty `streaming.vision` stands in for it. Its text datasets import the tokenizers of transformers,
a second of each start; they are loaded when something of them is first used.
"""

import importlib
import sys
import threading
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

_VISION = "streaming.vision"
_TEXT = "streaming.text"


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


def _import_streaming() -> ModuleType:
    if "streaming" not in sys.modules:
        if not _torchvision_loads():
            sys.modules[_VISION] = ModuleType(_VISION, "Left out: torchvision does not load here.")
        package = PathFinder.find_spec("streaming")
        text = package and PathFinder.find_spec(_TEXT, package.submodule_search_locations)
        if text:
            sys.modules[_TEXT] = _loaded_when_used(text)
    return importlib.import_module("streaming")


streaming = _import_streaming()
