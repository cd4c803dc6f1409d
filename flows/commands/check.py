"""The commands that only read: `plan`, `bench`, `verify`, `inspect` and `check-tokenizer`."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter, validators
from pydantic import BaseModel
from rich.console import Console
from rich.progress import Progress

from flows.commands.options import DEFAULT_OUTPUT, ConfigOptions, OutputOptions
from flows.stops import EXIT_FAILED
from flows.terminal.printing import err, out, print_problem, say
from streaming_ext.base.errors import UsageError
from streaming_ext.base.threads import cores
from streaming_ext.format.layout import Split
from streaming_ext.store import open_storage
from tasks.core.check.tokenizer import CheckTokenizerConfig
from tasks.core.derive.export_format import describe_export, is_export
from tasks.core.estimate.config import BenchConfig, EstimateConfig
from tasks.core.linux import require_linux

if TYPE_CHECKING:
    from tasks.core.check.findings import DatasetReport, Report

Count = Annotated[int, Parameter(validator=validators.Number(gte=1))]
DatasetPath = Annotated[str, Parameter(help="Folder or URL of a dataset or an export.")]
Generation = Annotated[
    str | None,
    Parameter(help="Start of the hash of an earlier manifest of an extended dataset."),
]
_CORES = cores()
OnProgress = Callable[[int, int], None]
ReportT = TypeVar("ReportT", bound="Report")
Measured = TypeVar("Measured", bound=BaseModel)


def plan(
    config: Annotated[EstimateConfig, Parameter(name="*")],
    *,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> int:
    """Estimate tokens, disk and time of a run; return the exit code."""
    from flows.terminal.show_plans import show_estimate
    from tasks.core.estimate.estimate import estimate

    _show_measured(lambda report: estimate(config, report), show_estimate, printing)
    return 0


def bench(
    config: Annotated[BenchConfig, Parameter(name="*")],
    *,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> int:
    """Measure a tokenizer on some files; return the exit code."""
    from flows.terminal.show_plans import show_bench
    from tasks.core.estimate.estimate import bench as measured

    _show_measured(lambda report: measured(config, report), show_bench, printing)
    return 0


def _show_measured(
    measure: Callable[[Callable[[str], None]], Measured],
    show: Callable[[Measured, Console], None],
    printing: OutputOptions,
) -> None:
    from streaming_ext.base.memory import limit_memory

    require_linux()
    limit_memory()  # this process reads files of unknown origin
    with printing.applied():
        with err.status("starting") as status:
            found = measure(status.update)
        printing.result(found.model_dump(mode="json"))
        show(found, out)


def verify(
    path: DatasetPath,
    *,
    generation: Generation = None,
    deep: bool = False,
    documents: Count = 200,
    seed: int = 0,
    workers: Count = _CORES,
    printing: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Check every byte of a dataset or an export; return the exit code.

    Parameters
    ----------
    deep
        Also make some parts again from their source files, and compare.
    documents
        Compare parts with at least this many documents.
    seed
        Seed for the choice of these parts.
    workers
        Number of threads.
    """
    from flows.terminal.show_checks import show_verified, show_verified_export

    storage = open_storage(path)
    if is_export(storage):
        if deep:
            raise UsageError(
                f"{storage} is an export, which is compared with its dataset and not with texts. "
                "Verify the dataset with --deep."
            )
        from tasks.core.check.export import verify_export

        return checked(
            lambda on_progress: verify_export(storage, workers=workers, on_progress=on_progress),
            show_verified_export,
            printing,
        )
    from tasks.core.check.verify import verify as check

    def run(on_progress: OnProgress) -> "DatasetReport":
        return check(
            storage,
            generation=generation,
            deep=deep,
            deep_documents=documents,
            seed=seed,
            workers=workers,
            on_progress=on_progress,
        )

    return checked(run, show_verified, printing)


def checked(
    check: Callable[[OnProgress], ReportT],
    show: Callable[[ReportT, Console], None],
    printing: OutputOptions,
) -> int:
    """Run a check with a progress bar, and print its findings; return the exit code.

    Args:
        check: a function that runs the check, and reports the bytes that are done and all bytes.
        show: a function that prints the report of the check.
        printing: the options of printing.
    """
    from flows.terminal.show_checks import show_findings

    with printing.applied():
        with Progress(transient=True, console=err, disable=not err.is_terminal) as bar:
            task = bar.add_task("verifying", total=None)
            report = check(lambda done, total: bar.update(task, completed=done, total=total))
        printing.result({"sound": report.sound, **asdict(report)})
        show(report, out)
    if not report.sound and printing.quiet:
        show_findings(report.findings, err)
    return 0 if report.sound else EXIT_FAILED


def check_tokenizer(
    config: Annotated[CheckTokenizerConfig, Parameter(name="*")],
    *,
    printing: ConfigOptions = DEFAULT_OUTPUT,
) -> int:
    """Compare a tokenizer with that of a dataset; return the exit code."""
    from tasks.core.check.tokenizer import compare_tokenizers

    with printing.applied():
        with err.status("comparing"):
            found = compare_tokenizers(config)
        printing.result(found.model_dump())
        if not found.same:
            print_problem(found.difference)
            return EXIT_FAILED
        how = "all that decides ids is alike" if found.is_copy else "each token is among them"
        names = f"{config.tokenizer} gives the ids of {config.dataset}"
        say(out, f"{names} for {found.texts:,} texts; {how}.")
    return 0


def inspect(
    path: DatasetPath,
    *,
    sample: Annotated[tuple[int, ...], Parameter(name=("--sample", "-s"))] = (),
    split: Split = "train",
    generation: Generation = None,
    printing: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Show what a dataset or an export holds; return the exit code.

    Parameters
    ----------
    sample
        Number of a sample to decode; may be given several times.
    split
        Split of these samples.
    """
    from flows.terminal.show_checks import show_dataset, show_export, show_samples
    from tasks.core.check.decode import decode_samples
    from tasks.core.check.inspect import describe

    with printing.applied():
        storage = open_storage(path)
        if sample:
            samples = decode_samples(storage, split, list(sample), generation=generation)
            printing.result([asdict(each) for each in samples])
            show_samples(samples, out)
        elif is_export(storage):
            export = describe_export(storage)
            printing.result(export.facts())
            show_export(export, out)
        else:
            dataset = describe(storage, generation=generation)
            printing.result(dataset.facts())
            show_dataset(dataset, out)
    return 0
