"""`shardmill plan`: what a run would make and take."""

from contextlib import nullcontext
from typing import Annotated

from cyclopts import Parameter

from flows.commands.options import DEFAULT_OUTPUT, ConfigOptions
from flows.terminal.consoles import err, out
from tasks.core.estimate.config import EstimateConfig
from tasks.core.linux import require_linux


def plan(
    config: Annotated[EstimateConfig, Parameter(name="*")],
    *,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> int:
    """Tell what a run would make and take: tokens, disk, time, and what decides the time.

    Nothing is made: some rows of some files are read, tokenized and written to the temporary
    folder, on all workers at once, and the rest is reckoned.
    """
    from flows.terminal.show_estimate import show_estimate
    from streaming_ext.text.memory import limit_memory
    from tasks.core.estimate.estimate import estimate

    require_linux()
    limit_memory()  # files of unknown origin are read in this process
    with printing.applied():
        with err.status("starting") if err.is_terminal else nullcontext() as status:
            found = estimate(config, *([status.update] if status else []))
        printing.result(found.model_dump(mode="json"))
        show_estimate(found, out)
    return 0
