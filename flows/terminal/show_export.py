"""What `shardmill export`, and `verify` and `inspect` of an export, tell on the terminal."""

from rich.console import Console
from rich.text import Text

from flows.terminal.columns import show_facts
from flows.terminal.run_progress import show_failures
from flows.terminal.show_verify import show_findings
from flows.terminal.visible import bytes_text, counted, duration_text, visible
from tasks.core.check.export import ExportReport
from tasks.core.exports.describe import ExportDescription
from tasks.core.exports.records import ExportManifest
from tasks.core.moving.compare import Compared
from tasks.core.reporting.report import RunReport


def show_report(report: RunReport, console: Console) -> None:
    """The summary of an export that has ended: what was done, what failed and why."""
    rate = f"{report.megabytes_per_second:,.1f} MB/s"
    show_facts(
        [
            ("parts", f"{report.files_done} done, {report.files_skipped} done before"),
            ("tokens", f"{report.tokens:,}"),
            ("written", f"{bytes_text(report.shard_bytes)}"),
            ("time", f"{duration_text(report.seconds)} ({rate})"),
        ],
        console,
    )
    show_failures(report, console)


def show_exported(manifest: ExportManifest, where: str, console: Console) -> None:
    """One line on the export that there is now."""
    splits = ", ".join(
        f"{name} {counted(split.documents, 'document')} of {counted(split.tokens, 'token')}"
        for name, split in sorted(manifest.splits.items())
    )
    console.print(
        f"{visible(where)}: {manifest.identity.export} of {visible(manifest.dataset)}; {splits}",
        markup=False,
        soft_wrap=True,
    )


def show_export(export: ExportDescription, console: Console) -> None:
    """What an export is and what it was made from."""
    manifest = export.manifest
    given = manifest.identity.options.model_dump(exclude_defaults=True)
    facts = [
        ("export", visible(export.place)),
        ("format", manifest.identity.export),
        *((name.replace("_", " "), str(value)) for name, value in given.items()),
        ("made from", visible(manifest.dataset)),
        ("its manifest", f"xxh128 {manifest.identity.dataset_manifest.xxh128}"),
        ("tokenizer", f"{visible(manifest.tokenizer.name)} ({manifest.tokenizer.fingerprint})"),
        ("parts", f"{len(manifest.parts):,}"),
        *(
            (name, f"{counted(held.documents, 'document')}, {counted(held.tokens, 'token')}")
            for name, held in sorted(manifest.splits.items())
        ),
        ("files", f"{len(export.files):,}, {bytes_text(sum(export.files.values()))}"),
    ]
    show_facts(facts, console)


def show_compared(compared: Compared, console: Console) -> None:
    """Where a copy is not as its original says, and what was looked at."""
    show_findings(compared.findings, console)
    verdict = (
        Text("the same", style="bold green")
        if compared.sound
        else Text(counted(len(compared.findings), "finding"), style="bold red")
    )
    rate = compared.bytes / 1e6 / compared.seconds if compared.seconds else 0.0
    console.print(
        Text.assemble(
            f"{visible(compared.copy)}: ",
            verdict,
            f"; read {counted(compared.files, 'file')}, {bytes_text(compared.bytes)} in "
            f"{compared.seconds:.1f} s ({rate:,.0f} MB/s), compared with what "
            f"{visible(compared.original)} says of itself",
        ),
        soft_wrap=True,
    )


def show_verified(report: ExportReport, console: Console) -> None:
    """The findings, and what was looked at."""
    show_findings(report.findings, console)
    verdict = (
        Text("sound", style="bold green")
        if report.sound
        else Text(counted(len(report.findings), "finding"), style="bold red")
    )
    rate = report.bytes / 1e6 / report.seconds if report.seconds else 0.0
    against = (
        f"compared with {visible(report.dataset)}, {counted(report.documents, 'document')} of "
        f"{counted(report.tokens, 'token')}"
        if not report.not_compared
        else f"not compared: {visible(report.not_compared)}"
    )
    lines = [
        Text.assemble(f"{visible(report.export)}: ", verdict),
        Text(
            f"  read {counted(report.files, 'file')}, {bytes_text(report.bytes)} in "
            f"{report.seconds:.1f} s ({rate:,.0f} MB/s); {against}"
        ),
    ]
    for line in lines:
        console.print(line, soft_wrap=True)
