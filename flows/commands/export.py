"""`shardmill export`: a published dataset as another trainer reads it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from flows.console.consoles import out
from flows.console.output_options import DEFAULT_OUTPUT, OutputOptions
from flows.making.command import run_making, say_why
from tasks.core.exports.config import ExportConfig
from tasks.core.exports.records import ExportManifest, read_export
from tasks.core.linux import require_linux
from tasks.core.storage import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from prefect.client.schemas.objects import State

    from tasks.core.reporting.report import RunReport


def export(
    config: Annotated[ExportConfig, Parameter(name="*")],
    *,
    verify: bool = False,
    config_file: Annotated[Path | None, Parameter(name="--config")] = None,
    printing: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Write a published dataset as another trainer reads it.

    Run the same command again after any stop: it goes on where it was, to the same bytes.

    Parameters
    ----------
    verify
        Then check every byte of it against the dataset; with `--json`, what that found is printed.
    config_file
        YAML file with any of these options; what the command line says goes first.
    """
    require_linux()
    with printing.applied() as listen:
        report, manifest = _run(config, listen)
        if manifest is None or not verify:  # else what the check found is the result
            printing.result(_facts(config, report, manifest))
    if manifest is None:
        return say_why(report, quiet=printing.quiet)
    if verify:
        from flows.commands.verify import verify as check

        return check(config.output, workers=config.workers, printing=printing)
    return 0


def _run(
    config: ExportConfig, listen: "Callable[[], None]"
) -> "tuple[RunReport | None, ExportManifest | None]":
    """What was done, where anything was, and what there is now, where it is whole."""
    from tasks.core.exports.plan import compare_with_output

    storage = open_storage(config.output)
    plan = compare_with_output(config, storage)  # what is refused is told before Prefect is loaded

    def load() -> "Callable[[], State]":
        from flows.export_dataset import export_dataset

        return lambda: export_dataset(config, return_state=True)

    report, whole = run_making(load, listen, whole=plan.published)
    if not whole:
        return report, None
    from flows.terminal.show_export import show_exported

    manifest = read_export(storage)
    show_exported(manifest, str(storage), out)
    return report, manifest


def _facts(
    config: ExportConfig, report: "RunReport | None", manifest: ExportManifest | None
) -> dict[str, Any]:
    """What is told as JSON."""
    return {
        "output": str(open_storage(config.output)),
        "published": manifest is not None,
        "export": None if manifest is None else manifest.model_dump(mode="json"),
        "report": None if report is None else report.model_dump(mode="json"),
    }
