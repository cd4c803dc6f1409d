"""The commands that make an output: `shard`, `extend`, `import`, `export`, `copy`, `merge`,
`subset` and `annotate`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from flows.commands.options import DEFAULT_OUTPUT, ConfigOptions
from flows.running import run_build
from flows.terminal.printing import out
from flows.watched import Config, Plan
from streaming_ext.base.errors import UsageError
from streaming_ext.store import Storage, open_storage
from tasks.core.config import ExtendConfig, ImportConfig, ShardConfig
from tasks.core.derive.config import (
    AnnotateConfig,
    CopyConfig,
    ExportConfig,
    MergeConfig,
    SubsetConfig,
)

if TYPE_CHECKING:
    from tasks.core.engine.build import OnStatus
    from tasks.core.shard.shard_build import ShardBuild

DryRun = Annotated[bool, Parameter(help="Show what would be done, and do nothing.")]


def shard(
    config: Annotated[ShardConfig, Parameter(name="*")],
    *,
    dry_run: DryRun = False,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> None:
    """Tokenize text files into MDS shards with a holdout split."""
    from tasks.core.shard.plan import plan_shard

    _make_or_show(plan_shard, config, "shard_dataset", printing, dry_run=dry_run)


def extend(
    config: Annotated[ExtendConfig, Parameter(name="*")],
    *,
    dry_run: DryRun = False,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> None:
    """Add source files to a published dataset."""
    from tasks.core.shard.plan import plan_extend

    _make_or_show(plan_extend, config, "extend_dataset", printing, dry_run=dry_run)


def _make_or_show(
    plan: "Callable[[Config, Storage, OnStatus], ShardBuild]",
    config: Config,
    flow: str,
    printing: ConfigOptions,
    *,
    dry_run: bool,
) -> None:
    """Make a dataset of sources, or show what would be done."""
    if not dry_run:
        _make(plan, config, flow, printing)
        return
    from flows.terminal.show_plans import dry_run_facts, show_dry_run

    with printing.applied():
        storage = open_storage(config.output)
        found = plan(config, storage, lambda _status: None)
        printing.result(dry_run_facts(found, storage))
        show_dry_run(found, storage, out, all_parts=printing.verbose)


def import_(
    config: Annotated[ImportConfig, Parameter(name="*")],
    *,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> None:
    """Make a dataset of the token files of another trainer."""
    from tasks.core.shard.plan import plan_import

    _make(plan_import, config, "import_dataset", printing)


def export(
    config: Annotated[ExportConfig, Parameter(name="*")],
    *,
    verify: bool = False,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> int:
    """Write a dataset in the format of another trainer; return the exit code.

    Parameters
    ----------
    verify
        Then compare every byte with the dataset; `--json` prints the result of this.
    """
    from tasks.core.derive.export import plan_export

    _make(plan_export, config, "export_dataset", printing, silent=verify)
    if not verify:
        return 0
    from flows.commands.check import verify as check

    return check(config.output, workers=config.workers, printing=printing)


def copy(
    config: Annotated[CopyConfig, Parameter(name="*")],
    *,
    verify_only: bool = False,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> int:
    """Copy a dataset or an export to any storage; return the exit code.

    Parameters
    ----------
    verify_only
        Copy nothing; compare every byte of the copy with the hashes of the original.
    """
    from tasks.core.derive.move import plan_copy

    if not verify_only:
        _make(plan_copy, config, "copy_dataset", printing)
        return 0
    from flows.commands.check import checked
    from flows.terminal.show_checks import show_compared
    from tasks.core.check.export import compare_copy

    original, copied = open_storage(config.dataset), open_storage(config.output)
    if str(original) == str(copied):
        raise UsageError(f"{copied} is the original itself: `shardmill verify` checks it.")
    return checked(
        lambda on_progress: compare_copy(
            original, copied, workers=config.workers, on_progress=on_progress
        ),
        show_compared,
        printing,
    )


def merge(
    config: Annotated[MergeConfig, Parameter(name="*")],
    *,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> None:
    """Make one dataset of several, without tokenizing again."""
    from tasks.core.derive.move import plan_merge

    _make(plan_merge, config, "merge_datasets", printing)


def subset(
    config: Annotated[SubsetConfig, Parameter(name="*")],
    *,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> None:
    """Make a dataset of some documents of another."""
    from tasks.core.derive.subset import plan_subset

    _make(plan_subset, config, "subset_dataset", printing)


def annotate(
    config: Annotated[AnnotateConfig, Parameter(name="*")],
    *,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> None:
    """Add columns to the documents of a dataset."""
    from tasks.core.derive.annotate import plan_annotate

    _make(plan_annotate, config, "annotate_dataset", printing)


def _make(
    plan: Plan[Config], config: Config, flow: str, printing: ConfigOptions, *, silent: bool = False
) -> None:
    """Make an output; wrong usage is refused before Prefect is loaded.

    Args:
        plan: a function that plans the build of the output.
        config: the configuration of the flow.
        flow: the name of the flow in `flows.datasets`.
        printing: the options of printing.
        silent: True to print no JSON, because another result follows.
    """
    with printing.applied():
        shown = replace(printing, json=printing.json and not silent)
        run_build(plan, config, flow, shown)
