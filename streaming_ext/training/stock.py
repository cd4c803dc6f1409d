"""mosaicml-streaming, even if its image datasets do not load.

Use as `from streaming_ext.training.stock import streaming`.
`import streaming` imports its image datasets, which import torchvision. The build of torchvision
from the package index does not load beside a CPU-only torch. Shardmill reads no images: if these
datasets do not load, an empty `streaming.vision` replaces them.
"""

import importlib
import sys
from types import ModuleType

_VISION = "streaming.vision"


def _import_streaming() -> ModuleType:
    before = set(sys.modules)
    try:
        return importlib.import_module("streaming")
    except (ImportError, RuntimeError, OSError, AttributeError):
        # A half-imported package would make a later import fail in another place.
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in {"streaming", "torchvision"}:
                sys.modules.pop(name)
    stub = ModuleType(_VISION, "Left out: the image datasets do not load.")
    sys.modules.setdefault(_VISION, stub)
    return importlib.import_module("streaming")


streaming = _import_streaming()


def stock_ranks() -> int:
    """Return the number of ranks that stock StreamingDataLoader sees."""
    count: int = streaming.base.world.World.detect().num_ranks
    return count
