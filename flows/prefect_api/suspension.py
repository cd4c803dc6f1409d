"""Suspend, in Prefect's dashboard: a deployed run ends, and Resume has a worker begin it again.

Prefect itself looks for it at the next task run, which may be minutes away, and in a thread of that
task. What is recorded on the output is not done again.
"""

from prefect.context import FlowRunContext


def is_suspended() -> bool:
    """Whether the current flow run is suspended."""
    context = FlowRunContext.get()
    return context is not None and context.flow_run_suspension_request.is_requested()


def end_if_suspended() -> None:
    """End the current flow run where it is suspended.

    Raises:
        Pause: it is suspended; Prefect takes that for the end of the process, not of the run.
    """
    context = FlowRunContext.get()
    if context is not None:
        context.flow_run_suspension_request.raise_if_requested()
