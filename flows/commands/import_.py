"""`shardmill import`: what another trainer reads, as a published dataset."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from flows.commands.shard import run_shard
from flows.console.output_options import DEFAULT_OUTPUT, OutputOptions
from tasks.core.config import ShardConfig
from tasks.core.imports.config import ImportConfig

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State


def import_(
    config: Annotated[ImportConfig, Parameter(name="*")],
    *,
    config_file: Annotated[Path | None, Parameter(name="--config")] = None,
    printing: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Make a dataset of files of ids that another trainer reads, without tokenizing.

    Run the same command again after any stop: it goes on where it was, to the same bytes.

    Parameters
    ----------
    config_file
        YAML file with any of these options; what the command line says goes first.
    """

    def load_flow(run: ShardConfig) -> "Callable[[], State]":
        from flows.import_dataset import import_dataset

        return lambda: import_dataset(config, return_state=True)

    return run_shard(config.run, printing, load_flow)
