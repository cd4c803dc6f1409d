"""`shardmill plan`: what a run would make and take."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from flows.commands.consoles import err, out
from tasks.core.estimate.config import EstimateConfig


def plan(
    config: Annotated[EstimateConfig, Parameter(name="*")],
    *,
    json: bool = False,
    config_file: Annotated[Path | None, Parameter(name="--config")] = None,
) -> int:
    """Tell what a run would make and take: tokens, disk, time, and what decides the time.

    Nothing is made: some rows of some files are read, tokenized and written to the temporary
    folder, on all workers at once, and the rest is reckoned.

    Parameters
    ----------
    json
        Print everything as JSON.
    config_file
        YAML file with any of these options; what the command line says goes first.
    """
    from flows.terminal.show_estimate import show_estimate
    from streaming_ext.text.memory import limit_memory
    from tasks.core.estimate.estimate import estimate

    limit_memory()  # files of unknown origin are read in this process
    with err.status("starting") as status:
        found = estimate(config, status.update)
    if json:
        print(found.model_dump_json(indent=1))
    else:
        show_estimate(found, out)
    return 0
