"""`shardmill copy`, `merge`, `subset`, `extend`: datasets elsewhere, in one, cut down, grown."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from flows.commands.shard import dry_run_of, run_shard
from flows.commands.verify import told
from flows.console.consoles import out
from flows.console.output_options import DEFAULT_OUTPUT, OutputOptions
from flows.making.command import run_making, say_why
from flows.terminal.visible import bytes_text, counted, visible
from streaming_ext.dataset.reading import read_manifest
from streaming_ext.errors import UsageError
from tasks.core.config import ShardConfig
from tasks.core.extending.config import ExtendConfig
from tasks.core.linux import require_linux
from tasks.core.moving.config import CopyConfig, MergeConfig
from tasks.core.storage import open_storage
from tasks.core.subsets.config import SubsetConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from prefect.client.schemas.objects import State

    from tasks.core.moving.plan import MovePlan
    from tasks.core.reporting.report import RunReport


def copy(
    config: Annotated[CopyConfig, Parameter(name="*")],
    *,
    verify_only: bool = False,
    config_file: Annotated[Path | None, Parameter(name="--config")] = None,
    printing: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Copy a dataset or an export from any storage to any other, every byte against its hash.

    Run the same command again after any stop: it goes on where it was.

    Parameters
    ----------
    verify_only
        Copy nothing: read every byte of the copy, and compare it with what the original says.
    config_file
        YAML file with any of these options; what the command line says goes first.
    """
    if verify_only:
        return _compare(config, printing)
    require_linux()
    with printing.applied() as listen:
        from tasks.core.moving.plan import plan_copy

        plan = plan_copy(config, open_storage(config.output))  # refused before Prefect is loaded

        def load() -> "Callable[[], State]":
            from flows.making.moving import copy_dataset

            return lambda: copy_dataset(config, return_state=True)

        report, whole = run_making(load, listen, whole=plan.published)
        return _told(plan, config.output, report, whole=whole, printing=printing)


def merge(
    config: Annotated[MergeConfig, Parameter(name="*")],
    *,
    config_file: Annotated[Path | None, Parameter(name="--config")] = None,
    printing: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Make one dataset of several: nothing is tokenized or compressed again.

    Their files become hard links on one disk, and copies that the store makes in one S3 store.

    Parameters
    ----------
    config_file
        YAML file with any of these options; what the command line says goes first.
    """
    require_linux()
    with printing.applied() as listen:
        from tasks.core.moving.plan import plan_merge

        plan = plan_merge(config, open_storage(config.output))

        def load() -> "Callable[[], State]":
            from flows.making.moving import merge_datasets

            return lambda: merge_datasets(config, return_state=True)

        report, whole = run_making(load, listen, whole=plan.published)
        return _told(plan, config.output, report, whole=whole, printing=printing)


def subset(
    config: Annotated[SubsetConfig, Parameter(name="*")],
    *,
    config_file: Annotated[Path | None, Parameter(name="--config")] = None,
    printing: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Make a dataset of some documents of another: exactly so many, with their ids and origins.

    Parameters
    ----------
    config_file
        YAML file with any of these options; what the command line says goes first.
    """
    require_linux()
    with printing.applied() as listen:
        from flows.terminal.run_progress import show_published
        from tasks.core.subsets.plan import plan_subset

        storage = open_storage(config.output)
        plan = plan_subset(config, storage)

        def load() -> "Callable[[], State]":
            from flows.making.subset_dataset import subset_dataset

            return lambda: subset_dataset(config, return_state=True)

        report, whole = run_making(load, listen, whole=plan.published)
        manifest = read_manifest(storage) if whole else None
        facts = {
            "output": str(storage),
            "published": whole,
            "manifest": None if manifest is None else manifest.model_dump(mode="json"),
            "report": None if report is None else report.model_dump(mode="json"),
        }
        printing.result(facts)
        if manifest is None:
            return say_why(report, quiet=printing.quiet)
        show_published(manifest, str(storage), out)
        return 0


def _told(
    plan: "MovePlan",
    output: str,
    report: "RunReport | None",
    *,
    whole: bool,
    printing: OutputOptions,
) -> int:
    """Print what there is now; returns the exit code."""
    where, sizes = str(open_storage(output)), plan.contents.sizes
    facts = {
        "output": where,
        "published": whole,
        "files": len(sizes),
        "bytes": sum(sizes.values()),
        "report": None if report is None else report.model_dump(mode="json"),
    }
    printing.result(facts)
    if not whole:
        return say_why(report, quiet=printing.quiet)
    out.print(
        f"{visible(where)}: {counted(len(sizes), 'file')} of {bytes_text(sum(sizes.values()))}",
        markup=False,
        soft_wrap=True,
    )
    return 0


def extend(
    config: Annotated[ExtendConfig, Parameter(name="*")],
    *,
    dry_run: bool = False,
    config_file: Annotated[Path | None, Parameter(name="--config")] = None,
    printing: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Add source files to a published dataset, with the configuration that it was made with.

    What is there stays as it is; readers see the new parts once all are done. Run the same command
    again after any stop: it goes on where it was.

    Parameters
    ----------
    dry_run
        Tell what would be done, and do nothing.
    config_file
        YAML file with any of these options; what the command line says goes first.
    """
    if dry_run:
        return dry_run_of(config.run, printing)

    def load_flow(run: ShardConfig) -> "Callable[[], State]":
        from flows.making.extend_dataset import extend_dataset

        return lambda: extend_dataset(config, return_state=True)

    return run_shard(config.run, printing, load_flow)


def _compare(config: CopyConfig, printing: OutputOptions) -> int:
    from flows.terminal.show_export import show_compared
    from tasks.core.moving.compare import compare_copy

    original, copied = open_storage(config.dataset), open_storage(config.output)
    if str(original) == str(copied):
        raise UsageError(f"{copied} is the original itself: `shardmill verify` checks it.")
    found = partial(compare_copy, original, copied, workers=config.workers)
    return told(found, show_compared, printing)
