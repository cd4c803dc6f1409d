"""Importing this makes torchvision importable beside a torch that its operators were not built for.

The package index has torchvision for CUDA alone. Beside a CPU-only torch its operators do not load,
and declaring the two that it asks for is enough: Lightning and Transformers import it if it is
installed, as mosaicml-streaming has it, and use none of them here.
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
