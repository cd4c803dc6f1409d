"""What of mosaicml-streaming is loaded, and when."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from streaming_ext.stock import _loaded_when_used

TEXT_DATASETS = """
import importlib.util, sys
from streaming_ext.stock import streaming
heavy = "transformers.models.auto"
assert "transformers" not in sys.modules
import streaming.text
assert importlib.util.find_spec("streaming.text").origin == streaming.text.__file__
assert heavy not in sys.modules
from streaming.text import StreamingC4
from streaming.text.c4 import StreamingC4 as the_same
assert heavy in sys.modules
assert StreamingC4 is the_same is streaming.text.StreamingC4

from collections import UserDict
from transformers import BatchEncoding, BatchFeature
count = streaming.StreamingDataLoader([0])._get_batch_size
for kind in (BatchEncoding, BatchFeature, dict):
    assert count(kind({"ids": [1, 2]})) == 2, kind
assert count(UserDict({0: [1, 2, 3]})) == 3
"""

RARELY_USED = """
import time
from pathlib import Path
from rarely_used.words import word
time.sleep(0.1)
with Path(__file__).with_name("log").open("a") as log:
    log.write("loaded")
last = word
"""


def test_transformers_is_loaded_when_used() -> None:
    """By text datasets of stock; its loader knows batches of transformers all the same."""
    subprocess.run([sys.executable, "-P", "-c", TEXT_DATASETS], check=True)


def test_a_module_is_loaded_once_by_many_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rarely_used").mkdir()
    (tmp_path / "rarely_used/__init__.py").write_text(RARELY_USED)
    (tmp_path / "rarely_used/words.py").write_text("word = 'found'\n")
    monkeypatch.syspath_prepend(tmp_path)
    spec = PathFinder.find_spec("rarely_used", [str(tmp_path)])
    assert spec is not None
    module = _loaded_when_used(spec)
    monkeypatch.setitem(sys.modules, "rarely_used", module)
    log = tmp_path / "rarely_used/log"
    assert not hasattr(module, "__wrapped__")
    assert not log.exists()
    with ThreadPoolExecutor(8) as threads:
        assert {*threads.map(lambda _: module.last, range(8))} == {"found"}
    assert log.read_text() == "loaded"
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = module.missing
    del sys.modules["rarely_used.words"]
