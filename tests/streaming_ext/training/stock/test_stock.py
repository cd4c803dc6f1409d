"""Stock streaming remains itself when it is imported here, except for a stub for images."""

import subprocess
import sys

UNCHANGED = """
import builtins, sys
importing = builtins.__import__
from streaming_ext.training.stock import streaming
import streaming_ext.training.token_dataset
import streaming_ext.training.loader, streaming_ext.training.features.trace
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
FORGET = """
for name in [*sys.modules]:
    if name.partition(".")[0] in {"streaming", "streaming_ext", "torchvision"}:
        del sys.modules[name]
"""


def test_nothing_of_stock_or_python_is_replaced() -> None:
    """First torchvision fails, then it loads; all other modules are loaded once."""
    fails = "import sys; sys.modules['torchvision'] = None"
    loads = "import tests.streaming_ext.training.trainers.vision"
    code = "\n".join([fails, UNCHANGED, STAND_IN, FORGET, loads, UNCHANGED, REAL])
    subprocess.run([sys.executable, "-c", code], check=True)
