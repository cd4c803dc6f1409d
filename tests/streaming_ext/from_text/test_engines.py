"""The engines of a process: each works in one thread, and one that failed does no more work."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from streaming_ext.from_text.engines import Engines
from streaming_ext.text.tokenizer.prepared import save_tokenizer
from streaming_ext.text.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def engines(reference: Tokenizer, tmp_path: Path) -> Engines:
    save_tokenizer(reference, tmp_path / "tokenizer", engine="reference")
    return Engines(tmp_path / "tokenizer", engine="reference")


def here(_: object, engine: Any) -> tuple[int, int]:
    return threading.get_ident(), id(engine)


def test_threads_that_take_turns_have_one_engine_work_in_one_thread(engines: Engines) -> None:
    """Else what it remembers lies in the memory of each, and is never given back."""
    found = set()
    for _ in range(8):
        with ThreadPoolExecutor(1) as asking:
            found.add(asking.submit(engines.run, here).result())
    assert len(found) == 1
    assert threading.get_ident() not in dict(found)


def test_one_that_failed_does_no_more_work(engines: Engines) -> None:
    def failing(_: object, __: object) -> None:
        raise RuntimeError("no ids")

    before = engines.run(lambda _, engine: engine)
    with pytest.raises(RuntimeError, match="no ids"):
        engines.run(failing)
    assert engines.run(lambda _, engine: engine) is not before
