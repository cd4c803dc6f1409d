"""Suspend, in Prefect's dashboard: a deployed run ends, and Resume has a worker begin it again.

Prefect notices it at the next task run, which may be minutes away, and in a thread of that task.
"""

from prefect.context import FlowRunContext
from prefect.exceptions import Pause

from streaming_ext.errors import ShardmillError


def end_if_suspended() -> None:
    """End the current flow run where it is suspended; what is recorded is not done again.

    Raises:
        Pause: it is suspended; Prefect takes that for the end of the process, not of the run.
    """
    context = FlowRunContext.get()
    if context is not None:
        context.flow_run_suspension_request.raise_if_requested()


def refuse_suspension() -> None:
    """Fail the current flow run, whose files are worked on elsewhere, where it is suspended.

    Raises:
        ShardmillError: it is suspended.
    """
    try:
        end_if_suspended()
    except Pause as error:
        raise ShardmillError(
            "The run was suspended, which a run on several hosts cannot be. Cancel such a run, and "
            "run the deployment again: it goes on where it was."
        ) from error
