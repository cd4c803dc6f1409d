"""`shardmill export`, `copy`, `merge` and `subset`: what is made of published datasets."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from flows.commands.builds import run_build, show_dataset
from flows.commands.options import DEFAULT_OUTPUT, ConfigOptions
from flows.terminal.consoles import out
from flows.terminal.visible import bytes_text, counted, say
from streaming_ext.base.errors import UsageError
from streaming_ext.store import Storage, open_storage
from tasks.core.derive.config import CopyConfig, ExportConfig, MergeConfig, SubsetConfig

if TYPE_CHECKING:
    from collections.abc import Mapping


def export(
    config: Annotated[ExportConfig, Parameter(name="*")],
    *,
    verify: bool = False,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> int:
    """Write a published dataset as another trainer reads it.

    Run the same command again after any stop: it goes on where it was, to the same bytes.

    Parameters
    ----------
    verify
        Then check every byte of it against the dataset; with `--json`, what that found is printed.
    """
    from tasks.core.derive.export_plan import plan_export

    with printing.applied() as listen:
        plan = plan_export(config, open_storage(config.output))
        once = replace(printing, json=printing.json and not verify)  # what the check found is told
        code = run_build(
            config,
            "export_dataset",
            lambda: plan.published,
            _show_export,
            printing=once,
            listen=listen,
        )
    if code or not verify:
        return code
    from flows.commands.verify import verify as check

    return check(config.output, workers=config.workers, printing=printing)


def copy(
    config: Annotated[CopyConfig, Parameter(name="*")],
    *,
    verify_only: bool = False,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> int:
    """Copy a dataset or an export from any storage to any other, every byte against its hash.

    Run the same command again after any stop: it goes on where it was.

    Parameters
    ----------
    verify_only
        Copy nothing: read every byte of the copy, and compare it with what the original says.
    """
    from tasks.core.derive.move_plan import plan_copy

    if verify_only:
        return _compare(config, printing)

    with printing.applied() as listen:
        plan = plan_copy(config, open_storage(config.output))
        show = partial(_show_files, plan.contents.sizes)
        return run_build(
            config, "copy_dataset", lambda: plan.published, show, printing=printing, listen=listen
        )


def merge(
    config: Annotated[MergeConfig, Parameter(name="*")],
    *,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> int:
    """Make one dataset of several: nothing is tokenized or compressed again.

    Their files become hard links on one disk, and copies that the store makes in one S3 store.
    """
    from tasks.core.derive.move_plan import plan_merge

    with printing.applied() as listen:
        plan = plan_merge(config, open_storage(config.output))
        show = partial(_show_files, plan.contents.sizes)
        return run_build(
            config, "merge_datasets", lambda: plan.published, show, printing=printing, listen=listen
        )


def subset(
    config: Annotated[SubsetConfig, Parameter(name="*")],
    *,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> int:
    """Make a dataset of some documents of another: exactly so many, with their ids and origins."""
    from tasks.core.derive.subset_plan import plan_subset

    with printing.applied() as listen:
        plan = plan_subset(config, open_storage(config.output))
        return run_build(
            config,
            "subset_dataset",
            lambda: plan.published,
            show_dataset,
            printing=printing,
            listen=listen,
        )


def _compare(config: CopyConfig, printing: ConfigOptions) -> int:
    from flows.commands.verify import told
    from flows.terminal.show_export import show_compared
    from tasks.core.check.export import compare_copy

    original, copied = open_storage(config.dataset), open_storage(config.output)
    if str(original) == str(copied):
        raise UsageError(f"{copied} is the original itself: `shardmill verify` checks it.")
    found = partial(compare_copy, original, copied, workers=config.workers)
    return told(found, show_compared, printing)


def _show_export(storage: Storage) -> dict[str, Any]:
    from tasks.core.derive.export_records import read_export

    manifest = read_export(storage)
    splits = ", ".join(
        f"{name} {counted(split.documents, 'document')} of {counted(split.tokens, 'token')}"
        for name, split in sorted(manifest.splits.items())
    )
    say(out, f"{storage}: {manifest.identity.export} of {manifest.dataset}; {splits}")
    return {"export": manifest.model_dump(mode="json")}


def _show_files(sizes: "Mapping[str, int]", storage: Storage) -> dict[str, Any]:
    size = sum(sizes.values())
    say(out, f"{storage}: {counted(len(sizes), 'file')} of {bytes_text(size)}")
    return {"files": len(sizes), "bytes": size}
