"""`shardmill shard`, `import` and `extend`: a dataset of sources, with progress in the terminal."""

from typing import Annotated, Any

from cyclopts import Parameter

from flows.commands.builds import run_build, show_dataset
from flows.commands.options import DEFAULT_OUTPUT, ConfigOptions
from flows.terminal.consoles import err, out
from flows.terminal.visible import counted, say
from tasks.core.config import ShardConfig
from tasks.core.shard.extend_config import ExtendConfig
from tasks.core.shard.import_config import ImportConfig


def shard(
    config: Annotated[ShardConfig, Parameter(name="*")],
    *,
    dry_run: bool = False,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> int:
    """Tokenize files of text, on disk, behind URLs or of the Hub, into MDS shards with a holdout.

    Run the same command again after any stop: it goes on where it was, to the same bytes.

    Parameters
    ----------
    dry_run
        Tell what would be done, and do nothing.
    """
    return _dry_run(config, printing) if dry_run else run_shard(config, printing)


def import_(
    config: Annotated[ImportConfig, Parameter(name="*")],
    *,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> int:
    """Make a dataset of files of ids that another trainer reads, without tokenizing.

    Run the same command again after any stop: it goes on where it was, to the same bytes.
    """

    return _run(config, config.run, "import_dataset", printing)


def extend(
    config: Annotated[ExtendConfig, Parameter(name="*")],
    *,
    dry_run: bool = False,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> int:
    """Add source files to a published dataset, with the configuration that it was made with.

    What is there stays as it is; readers see the new parts once all are done. Run the same command
    again after any stop: it goes on where it was.

    Parameters
    ----------
    dry_run
        Tell what would be done, and do nothing.
    """
    if dry_run:
        return _dry_run(config.run, printing)

    return _run(config, config.run, "extend_dataset", printing)


def run_shard(config: ShardConfig, printing: ConfigOptions = DEFAULT_OUTPUT) -> int:
    """Run `shard-dataset` in this process, with its progress in the terminal; returns the code."""

    return _run(config, config, "shard_dataset", printing)


def _run(
    config: Any,
    run: ShardConfig,
    flow: str,
    printing: ConfigOptions,
) -> int:
    """Run a flow that makes a dataset; returns the exit code.

    Args:
        config: of the flow.
        run: what it does.
        flow: its name in `flows.datasets`.
        printing: what is told.
    """
    from tasks.core.shard.sources import look_into_sources, shortened

    def is_whole() -> bool:
        from flows.terminal.dry_run import look

        return look(run).plan.published

    with printing.applied() as listen:
        _, wrong = look_into_sources(run)  # a slip of the pen is told before Prefect is loaded
        if wrong:
            say(err, f"{counted(len(wrong), 'file')} may hold no such text:")
            for words in shortened(wrong):
                say(err, f"  {words}")
        return run_build(config, flow, is_whole, show_dataset, printing=printing, listen=listen)


def _dry_run(config: ShardConfig, printing: ConfigOptions) -> int:
    """Tell what a run would do, and do nothing; returns the exit code."""
    from flows.terminal.dry_run import look, show_dry_run

    with printing.applied():
        found = look(config)
        printing.result(found.facts())
        show_dry_run(found, out, all_files=printing.verbose)
    return 0
