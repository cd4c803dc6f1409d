"""`shardmill shard`: the main job, with its progress in the terminal."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from flows.commands.consoles import err, out
from flows.commands.exit_codes import EXIT_FAILED, EXIT_TERMINATED
from flows.commands.quiet import quiet_prefect
from streaming_ext.dataset.reading import read_manifest
from tasks.core.config import ShardConfig
from tasks.core.storage import open_storage


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

    check_sources(config)  # a slip of the pen is told at once, before Prefect is even loaded
    quiet_prefect()
    from flows.prefect_api.embedded_api import prefect_api
    from flows.shard_dataset import shard_dataset
    from flows.terminal.run_progress import show_published, show_report, shown
    from tasks.core.reporting.progress import watch

    with watch() as progress:
        with shown(progress, err), prefect_api():
            state = shard_dataset(config, return_state=True)
        if state.is_cancelled() or state.is_cancelling():
            err.print("shardmill: cancelled in Prefect. Run the same command again to go on.")
            return EXIT_TERMINATED
        if progress.report is not None:
            show_report(progress.report, out, page=progress.page)
            if progress.report.failed:
                err.print(
                    f"{len(progress.report.failed)} of {progress.report.files} files failed; the "
                    "others are kept. Run the same command again to do only what is missing.",
                    soft_wrap=True,
                )
                return EXIT_FAILED
    state.result()
    storage = open_storage(config.output)
    show_published(read_manifest(storage), str(storage), out)
    return 0
