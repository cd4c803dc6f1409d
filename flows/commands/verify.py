"""`shardmill verify`: a dataset checked against what it says of itself."""

import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter, validators
from rich.console import Console
from rich.progress import Progress

from flows.commands.options import DEFAULT_OUTPUT, OutputOptions
from flows.stops import EXIT_FAILED
from flows.terminal.consoles import err, out
from streaming_ext.base.errors import UsageError
from streaming_ext.store import open_storage
from tasks.core.derive.export_records import is_export

if TYPE_CHECKING:
    from tasks.core.check.export import CopyReport, ExportReport
    from tasks.core.check.findings import DatasetReport

R = TypeVar("R", "DatasetReport", "ExportReport", "CopyReport")


def verify(
    path: str,
    *,
    generation: str | None = None,
    deep: bool = False,
    documents: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 200,
    seed: int = 0,
    workers: Annotated[int, Parameter(validator=validators.Number(gte=1))] = os.cpu_count() or 1,
    printing: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Check every byte of a dataset against what it says of itself.

    Of an export, also against the dataset that it was made from: document for document the same
    ids.

    Parameters
    ----------
    path
        Folder or URL of a dataset or an export.
    generation
        Of a dataset that was extended: how the hash of its manifest begins; default: the newest.
    deep
        Also make some parts again from their source files, by the reference, and compare.
    documents
        Documents that these parts have, at least.
    seed
        Decides which parts those are.
    workers
        Threads.
    """
    storage = open_storage(path)
    if is_export(storage):
        if deep:
            raise UsageError(
                f"{storage} is an export, which is compared with its dataset and not with texts. "
                "Verify the dataset with --deep."
            )
        from flows.terminal.show_export import show_verified
        from tasks.core.check.export import verify_export

        return told(partial(verify_export, storage, workers=workers), show_verified, printing)
    from flows.terminal.show_verify import show_report
    from tasks.core.check.verify import verify as check

    found = partial(
        check,
        storage,
        generation=generation,
        deep=deep,
        deep_documents=documents,
        seed=seed,
        workers=workers,
    )
    return told(found, show_report, printing)


def told(
    check: Callable[..., R], show: Callable[[R, Console], None], printing: OutputOptions
) -> int:
    """Check with a bar of its progress, and print what was found; returns the exit code."""
    from flows.terminal.show_verify import show_findings

    with printing.applied():
        with Progress(transient=True, console=err, disable=not err.is_terminal) as bar:
            task = bar.add_task("verifying", total=None)
            report = check(
                on_progress=lambda done, total: bar.update(task, completed=done, total=total)
            )
        printing.result({"sound": report.sound, **asdict(report)})
        show(report, out)
    if not report.sound and printing.quiet:
        show_findings(report.findings, err)
    return 0 if report.sound else EXIT_FAILED
