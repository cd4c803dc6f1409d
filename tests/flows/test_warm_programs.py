"""Programs that Prefect's workers start in forks."""

import inspect

from prefect.runner import _starter_engine, _workspace_starter

from tests.warm.flow_runs import ENGINE, PREPARATION


def test_what_a_prefect_worker_starts_is_known() -> None:
    """Under other names it would start anew, and nobody would notice but for the time."""
    assert f'"{PREPARATION}"' in inspect.getsource(_workspace_starter)
    assert f'"{ENGINE}"' in inspect.getsource(_starter_engine)
