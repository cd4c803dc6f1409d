"""`shardmill verify`: a dataset checked against what it says of itself."""

import os
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter, validators
from rich.progress import Progress

from flows.console.consoles import err, out
from flows.console.exit_codes import EXIT_FAILED
from flows.console.output_options import DEFAULT_OUTPUT, OutputOptions
from tasks.core.storage import open_storage


def verify(
    path: str,
    *,
    deep: bool = False,
    documents: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 200,
    seed: int = 0,
    workers: Annotated[int, Parameter(validator=validators.Number(gte=1))] = os.cpu_count() or 1,
    printing: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Check every byte of a dataset against what it says of itself.

    Parameters
    ----------
    path
        Folder or URL of a dataset.
    deep
        Also read the source files again: tokenize a sample of documents anew and compare.
    documents
        Documents in that sample.
    seed
        Decides which documents those are.
    workers
        Threads.
    """
    from flows.terminal.show_verify import show_findings, show_report
    from tasks.core.verify.verify import verify as check

    with printing.applied():
        with Progress(transient=True, console=err) as bar:
            task = bar.add_task("verifying", total=None)
            report = check(
                open_storage(path),
                deep=deep,
                deep_sample=documents,
                seed=seed,
                workers=workers,
                on_progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
        printing.result({"sound": report.sound, **asdict(report)})
        show_report(report, out)
    if not report.sound and printing.quiet:
        show_findings(report.findings, err)
    return 0 if report.sound else EXIT_FAILED
