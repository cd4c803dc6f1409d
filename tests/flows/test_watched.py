"""A run that a command watches."""

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

from flows.watched import watch, watched


def test_watches_nest_and_end_on_errors() -> None:
    with watch() as outer:
        with pytest.raises(RuntimeError), watch() as inner:
            assert watched() is inner
            raise RuntimeError
        assert watched() is outer
        context = copy_context()  # as a thread of Prefect has it
    assert watched() is not watched() is not outer
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(context.run, watched).result() is outer
