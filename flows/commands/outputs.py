"""The commands that make an output: `shard`, `extend`, `import`, `export`, `copy`, `merge` and
`subset`.
"""

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

from flows.commands.options import DEFAULT_OUTPUT, ConfigOptions
from flows.running import run_build
from flows.terminal.printing import counted, err, out, say
from streaming_ext.base.errors import UsageError
from streaming_ext.store import Storage, open_storage
from tasks.core.config import ShardConfig
from tasks.core.derive.config import CopyConfig, ExportConfig, MergeConfig, SubsetConfig
from tasks.core.engine.build import Build, OnStatus
from tasks.core.shard.extend_config import ExtendConfig
from tasks.core.shard.import_config import ImportConfig

DryRun = Annotated[bool, Parameter(help="Show what would be done, and do nothing.")]


def shard(
    config: Annotated[ShardConfig, Parameter(name="*")],
    *,
    dry_run: DryRun = False,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> None:
    """Tokenize text files into MDS shards with a holdout split."""
    _make_dataset(config, config, "shard_dataset", printing, dry_run=dry_run)


def extend(
    config: Annotated[ExtendConfig, Parameter(name="*")],
    *,
    dry_run: DryRun = False,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> None:
    """Add source files to a published dataset."""
    _make_dataset(config, config.run, "extend_dataset", printing, dry_run=dry_run)


def import_(
    config: Annotated[ImportConfig, Parameter(name="*")],
    *,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> None:
    """Make a dataset of the token files of another trainer."""
    _make_dataset(config, config.run, "import_dataset", printing)


def _make_dataset(
    config: Any, run: ShardConfig, flow: str, printing: ConfigOptions, *, dry_run: bool = False
) -> None:
    """Make a dataset of sources.

    Args:
        config: of the flow.
        run: what the flow shards.
        flow: its name in `flows.datasets`.
        printing: what to print.
        dry_run: show what would be done, and do nothing.
    """
    from streaming_ext.text.look import shortened
    from tasks.core.shard.plan import compare_with_output, plan_shard
    from tasks.core.shard.sources import look_into_sources

    def plan(output: Storage, on_status: OnStatus) -> Build:
        on_status("looking at the sources")
        sources, doubtful = look_into_sources(run)
        if doubtful:
            say(err, f"{counted(len(doubtful), 'file')} may hold no such text:")
            for words in shortened(doubtful):
                say(err, f"  {words}")
        on_status("preparing the tokenizer")
        return compare_with_output(run, output, sources)

    with printing.applied():
        if dry_run:
            from flows.terminal.show_plans import dry_run_facts, show_dry_run

            storage = open_storage(run.output)
            found = plan_shard(run, storage)
            printing.result(dry_run_facts(found, storage))
            show_dry_run(found, storage, out, all_parts=printing.verbose)
            return
        run_build(config, flow, plan, printing)


def export(
    config: Annotated[ExportConfig, Parameter(name="*")],
    *,
    verify: bool = False,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> int:
    """Write a dataset in the format of another trainer; returns the exit code.

    Parameters
    ----------
    verify
        Then compare every byte with the dataset; `--json` prints the result of this.
    """
    from tasks.core.derive.export import plan_export

    _derive(config, plan_export, "export_dataset", printing, silent=verify)
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
    """Copy a dataset or an export to any storage; returns the exit code.

    Parameters
    ----------
    verify_only
        Copy nothing; compare every byte of the copy with the hashes of the original.
    """
    from tasks.core.derive.move import plan_copy

    if not verify_only:
        _derive(config, plan_copy, "copy_dataset", printing)
        return 0
    from flows.commands.check import checked
    from flows.terminal.show_checks import show_compared
    from tasks.core.check.export import compare_copy

    original, copied = open_storage(config.dataset), open_storage(config.output)
    if str(original) == str(copied):
        raise UsageError(f"{copied} is the original itself: `shardmill verify` checks it.")
    return checked(
        partial(compare_copy, original, copied, workers=config.workers), show_compared, printing
    )


def merge(
    config: Annotated[MergeConfig, Parameter(name="*")],
    *,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> None:
    """Make one dataset of several, without tokenizing again."""
    from tasks.core.derive.move import plan_merge

    _derive(config, plan_merge, "merge_datasets", printing)


def subset(
    config: Annotated[SubsetConfig, Parameter(name="*")],
    *,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> None:
    """Make a dataset of some documents of another."""
    from tasks.core.derive.subset import plan_subset

    _derive(config, plan_subset, "subset_dataset", printing)


def _derive(
    config: Any, plan: Any, flow: str, printing: ConfigOptions, *, silent: bool = False
) -> None:
    """Make an output of published datasets; wrong usage is refused before Prefect is loaded.

    Args:
        config: of the flow.
        plan: plans its build.
        flow: its name in `flows.datasets`.
        printing: what to print.
        silent: print no JSON, as another result follows.
    """
    with printing.applied():
        shown = replace(printing, json=printing.json and not silent)
        run_build(config, flow, partial(plan, config), shown)
