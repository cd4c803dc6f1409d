"""The results of `shardmill verify`, and of `copy --verify-only`, on the terminal."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Console

from flows.terminal.printing import bytes_text, counted, say
from tasks.core.check.export import CopyReport, ExportReport
from tasks.core.check.findings import DatasetReport, Finding


def show_findings(findings: Iterable[Finding], console: Console) -> None:
    """Each damaged file, and its problems."""
    for file, of_file in groupby(sorted(findings), key=lambda finding: finding.file):
        say(console, file, style="bold red")
        for finding in of_file:
            say(console, f"  {finding.problem}")


def show_verified(report: DatasetReport, console: Console) -> None:
    """The result for a dataset."""
    _show(report.dataset, report.findings, _dataset_lines(report), console)


def show_verified_export(report: ExportReport, console: Console) -> None:
    """The result for an export."""
    compared = (
        f"not compared: {report.not_compared}"
        if report.not_compared
        else f"compared with {report.dataset}, {counted(report.documents, 'document')} of "
        f"{counted(report.tokens, 'token')}"
    )
    read = _read(report.files, report.bytes, report.seconds)
    _show(report.export, report.findings, [f"{read}; {compared}"], console)


def show_compared(compared: CopyReport, console: Console) -> None:
    """The result for a copy."""
    read = _read(compared.files, compared.bytes, compared.seconds)
    lines = [f"{read}, compared with the hashes of {compared.original}"]
    _show(compared.copy, compared.findings, lines, console, sound="the same")


def _show(
    name: str,
    findings: Sequence[Finding],
    lines: Iterable[str],
    console: Console,
    sound: str = "sound",
) -> None:
    """The findings, the verdict, and what was read."""
    show_findings(findings, console)
    files = len({finding.file for finding in findings})
    wrong = f"{counted(len(findings), 'finding')} in {counted(files, 'file')}"
    say(console, f"{name}: {wrong if findings else sound}", style="red" if findings else "green")
    for line in lines:
        say(console, f"  {line}")


def _read(files: int, num_bytes: int, seconds: float, parts: str = "") -> str:
    rate = num_bytes / 1e6 / seconds if seconds else 0.0
    read = f"{bytes_text(num_bytes)} in {seconds:.1f} s ({rate:,.0f} MB/s)"
    return f"read {counted(files, 'file')}{parts}, {read}"


def _dataset_lines(report: DatasetReport) -> Iterator[str]:
    checked = report.checked
    parts = f" of {counted(report.parts, 'part')}"
    counts = ", ".join(
        counted(getattr(checked, f"{noun}s"), noun)
        for noun in ("shard", "sample", "document", "token")
    )
    yield f"{_read(checked.files, checked.bytes, report.seconds, parts)}: {counts}"
    if checked.bad_documents:
        yield f"{counted(checked.bad_documents, 'unreadable document')} left out when it was made"
    if checked.duplicates:
        yield f"{counted(checked.duplicates, 'document')} left out as copies"
    if report.deep:
        yield "; ".join(_comparisons(report))


def _comparisons(report: DatasetReport) -> Iterator[str]:
    """What `--deep` compared with the sources, and what it did not."""
    checked = report.checked
    yield (
        f"compared with {counted(checked.sources, 'source file')}: the split of "
        f"{counted(checked.source_rows, 'row')} by the hash of the "
        f"{'ids' if report.imported else 'text'}"
    )
    again = "read" if report.imported else "tokenized"
    documents = counted(checked.retokenized, "document")
    some = ""
    if checked.retokenized == checked.documents:
        some = ", all there are"
    elif checked.retokenized < report.requested:
        some = f", of {report.requested:,} wanted: the others are in damaged files"
    tokens = counted(checked.retokenized_tokens, "token")
    by = "" if report.imported else " by the reference"
    yield f"{documents} ({tokens}) {again} again{by}{some}"
    if checked.compared:
        yield f"the texts of {counted(checked.compared, 'document')} compared to find copies"
    if checked.unchecked:
        yield f"{counted(checked.unchecked, 'source file')} not checked: the store has no hash"
