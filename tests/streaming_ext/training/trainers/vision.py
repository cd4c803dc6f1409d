"""On import, make torchvision importable with a torch that its operators were not built for.

The package index has torchvision for CUDA alone. With a CPU-only torch its operators do not load.
Declaring the two that its import needs is enough: Lightning and Transformers import torchvision
if it is installed, as mosaicml-streaming requires, but use none of its operators here.
"""

import sys

import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")


def _load() -> None:
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision  # noqa: F401


_load()
