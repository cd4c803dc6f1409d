"""Settings of Prefect that are changed for a while."""

import threading
from contextvars import copy_context

import pytest
from prefect.settings import get_current_settings

from tasks.prefect_tasks import changed_settings


def retries() -> int:
    return get_current_settings().client.max_retries


def test_as_long_as_the_block() -> None:
    before = retries()
    with changed_settings({"client.max_retries": before + 2, "api.request_timeout": 1.5}):
        assert retries() == before + 2
        assert get_current_settings().api.request_timeout == 1.5
        with changed_settings({"client.max_retries": before + 3}):
            assert retries() == before + 3
            assert get_current_settings().api.request_timeout == 1.5
        assert retries() == before + 2
    assert retries() == before
    assert get_current_settings().api.request_timeout != 1.5


def test_in_threads_that_get_the_context_alone() -> None:
    before, seen = retries(), []
    with changed_settings({"client.max_retries": before + 2}):
        context = copy_context()
        threads = [
            threading.Thread(target=lambda: context.run(lambda: seen.append(retries()))),
            threading.Thread(target=lambda: seen.append(retries())),
        ]
        for thread in threads:
            thread.start()
            thread.join()
    assert seen == [before + 2, before]


def test_a_setting_that_prefect_does_not_have() -> None:
    with (
        pytest.raises(AttributeError, match="no_such"),
        changed_settings({"client.no_such_setting": 1}),
    ):
        pytest.fail("there is none")
