"""What stock streaming is when it is imported here: itself, with a stub for images at most."""

import subprocess
import sys

import pytest

UNCHANGED = """
import builtins, sys
importing = builtins.__import__
from streaming_ext.training.stock import streaming
import streaming_ext.training.token_dataset
import streaming_ext.training.loader, streaming_ext.training.trace
assert builtins.__import__ is importing
for name, module in [*sys.modules.items()]:
    if name.partition(".")[0] in {"streaming", "transformers"}:
        given = vars(module).get("__builtins__", builtins)
        assert given in (builtins, vars(builtins)), name
assert "StreamingC4" in vars(streaming.text)
assert streaming is sys.modules["streaming"]
assert streaming.base is sys.modules["streaming.base"]
"""
STAND_IN = "assert not hasattr(streaming.vision, 'StreamingImageNet')"
REAL = "assert streaming.vision.StreamingImageNet.__module__ == 'streaming.vision.imagenet'"


@pytest.mark.parametrize(
    ("first", "images"),
    [
        ("import sys; sys.modules['torchvision'] = None", STAND_IN),
        ("import tests.streaming_ext.trainers.vision", REAL),
    ],
    ids=["torchvision fails", "torchvision loads"],
)
def test_nothing_of_stock_or_python_is_replaced(first: str, images: str) -> None:
    subprocess.run([sys.executable, "-c", f"{first}\n{UNCHANGED}\n{images}"], check=True)
