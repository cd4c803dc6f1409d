"""The programs that Prefect's workers start, which tests fork."""

import inspect

from prefect.runner import _starter_engine, _workspace_starter

from tests.warm.flow_runs import ENGINE, PREPARATION


def test_what_a_prefect_worker_starts_is_known() -> None:
    """Programs with other names would start anew, and only the time would show it."""
    assert f'"{PREPARATION}"' in inspect.getsource(_workspace_starter)
    assert f'"{ENGINE}"' in inspect.getsource(_starter_engine)
