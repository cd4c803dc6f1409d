"""mosaicml-streaming, importable also where torchvision is not.

Use as `from streaming_ext.stock import streaming`.
`import streaming` imports its image datasets, and those torchvision, whose build from the package
index does not load beside a CPU-only torch. Nothing here reads images: where torchvision fails, an
empty `streaming.vision` stands in for it.
"""

import importlib
import sys
from types import ModuleType

_VISION = "streaming.vision"


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


def _import_streaming() -> ModuleType:
    if "streaming" not in sys.modules and not _torchvision_loads():
        sys.modules[_VISION] = ModuleType(_VISION, "Left out: torchvision does not load here.")
    return importlib.import_module("streaming")


streaming = _import_streaming()
