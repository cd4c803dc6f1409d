"""The outcome of `shardmill verify` on the terminal."""

from collections.abc import Iterable
from itertools import groupby

from rich.console import Console
from rich.text import Text

from flows.terminal.visible import visible
from tasks.core.verify.findings import Finding, Report


def show_findings(findings: Iterable[Finding], console: Console) -> None:
    """Each file that something is wrong with, and what."""
    for file, of_file in groupby(sorted(findings), key=lambda finding: finding.file):
        console.print(Text(visible(file), style="bold red"), soft_wrap=True)
        for finding in of_file:
            console.print(Text(f"  {visible(finding.problem)}"), soft_wrap=True)


def show_report(report: Report, console: Console) -> None:
    """The findings, and one paragraph on what was looked at."""
    show_findings(report.findings, console)
    checked = report.checked
    files = len({finding.file for finding in report.findings})
    verdict = (
        Text("sound", style="bold green")
        if report.sound
        else Text(
            f"{_count(len(report.findings), 'finding')} in {_count(files, 'file')}",
            style="bold red",
        )
    )
    rate = checked.bytes / 1e6 / report.seconds if report.seconds else 0.0
    lines = [
        Text.assemble(visible(report.dataset), ": ", verdict),
        Text(
            f"  read {_count(checked.files, 'file')} of {_count(report.parts, 'part')}, "
            f"{checked.bytes / 1e6:,.1f} MB in {report.seconds:.1f} s ({rate:,.0f} MB/s): "
            f"{_count(checked.shards, 'shard')}, {_count(checked.samples, 'sample')}, "
            f"{_count(checked.documents, 'document')}, {_count(checked.tokens, 'token')}"
        ),
    ]
    if report.deep:
        lines.append(
            Text(
                f"  compared with {_count(checked.sources, 'source file')}: "
                f"{_count(checked.source_rows, 'row')} by hash, "
                f"{_count(checked.retokenized, 'document')} of "
                f"{_count(checked.retokenized_tokens, 'token')} by the reference tokenizer"
            )
        )
    for line in lines:
        console.print(line, soft_wrap=True)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
