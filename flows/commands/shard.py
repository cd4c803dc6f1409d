"""`shardmill shard`: the main job, with its progress in the terminal."""

import gc
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from flows.commands.consoles import err, out
from flows.commands.exit_codes import EXIT_FAILED, EXIT_TERMINATED
from flows.commands.quiet import quiet_prefect
from flows.stops import Stopped
from streaming_ext.dataset.reading import read_manifest
from tasks.core.config import ShardConfig
from tasks.core.storage import open_storage

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from tasks.core.reporting.progress import RunProgress


def shard(
    config: Annotated[ShardConfig, Parameter(name="*")],
    *,
    config_file: Annotated[Path | None, Parameter(name="--config")] = None,
) -> int:
    """Tokenize files of text, on disk, behind URLs or of the Hub, into MDS shards with a holdout.

    Run the same command again after any stop: it goes on where it was, to the same bytes.

    Parameters
    ----------
    config_file
        YAML file with any of these options; what the command line says goes first.
    """
    return run_shard(config)


def run_shard(config: ShardConfig) -> int:
    """Run the flow in this process, with its progress in the terminal; returns the exit code."""
    from tasks.core.planning.plan import check_sources
    from tasks.core.reporting.progress import watch

    check_sources(config)  # a slip of the pen is told at once, before Prefect is even loaded
    with watch() as progress:
        state = _run_flow(config, progress)
        if state is not None and (state.is_cancelled() or state.is_cancelling()):
            if progress.stopped_by is not None:
                raise Stopped(progress.stopped_by)
            err.print("shardmill: cancelled in Prefect. Run the same command again to go on.")
            return EXIT_TERMINATED
        if progress.report is not None:
            from flows.terminal.run_progress import show_report

            show_report(progress.report, out, page=progress.page)
            if progress.report.failed:
                err.print(
                    f"{len(progress.report.failed)} of {progress.report.files} files failed; the "
                    "others are kept. Run the same command again to do only what is missing.",
                    soft_wrap=True,
                )
                return EXIT_FAILED
    if state is not None:
        state.result()
    from flows.terminal.run_progress import show_published

    storage = open_storage(config.output)
    show_published(read_manifest(storage), str(storage), out)
    return 0


def _run_flow(config: ShardConfig, progress: "RunProgress") -> "State[Any] | None":
    """Run the flow to its end; None where Prefect's server went away before it was told of that."""
    quiet_prefect()
    gc.disable()  # what is loaded stays: looking through it again and again takes a seventh
    from flows.prefect_api.connection import PrefectApi, UnreachableError

    with PrefectApi() as api:  # it gets ready in a process of its own, from here on
        from flows.dashboard.charts import load_drawing
        from flows.preparation import prepared_ahead
        from flows.shard_dataset import shard_dataset
        from flows.terminal.run_progress import shown

        gc.freeze()
        gc.enable()
        with shown(progress, err), prepared_ahead(config, progress):
            threading.Thread(target=load_drawing, daemon=True).start()
            try:
                with api.connected(progress):
                    return shard_dataset(config, return_state=True)
            except UnreachableError:
                if progress.report is None:
                    raise
                err.print(
                    f"shardmill: the Prefect server at {api.url} went away; its pages do not show "
                    "how the run ended.",
                    soft_wrap=True,
                )
                return None
