"""What `shardmill export`, and `verify` and `inspect` of an export, tell on the terminal."""

from rich.console import Console

from flows.terminal.columns import show_facts
from flows.terminal.show_verify import read_text, show_check
from flows.terminal.visible import bytes_text, counted
from tasks.core.check.export import CopyReport, ExportReport
from tasks.core.derive.export_records import ExportDescription


def show_export(export: ExportDescription, console: Console) -> None:
    """What an export is and what it was made from."""
    manifest = export.manifest
    given = manifest.identity.options.model_dump(exclude_defaults=True)
    facts = [
        ("export", export.location),
        ("format", manifest.identity.export),
        *((name.replace("_", " "), str(value)) for name, value in given.items()),
        ("made from", manifest.dataset),
        ("its manifest", f"xxh128 {manifest.identity.dataset_manifest.xxh128}"),
        ("tokenizer", f"{manifest.tokenizer.name} ({manifest.tokenizer.fingerprint})"),
        ("parts", f"{len(manifest.records):,}"),
        *(
            (name, f"{counted(held.documents, 'document')}, {counted(held.tokens, 'token')}")
            for name, held in sorted(manifest.splits.items())
        ),
        ("files", f"{len(export.files):,}, {bytes_text(sum(export.files.values()))}"),
    ]
    show_facts(facts, console)


def show_compared(compared: CopyReport, console: Console) -> None:
    """Where a copy is not as its original says, and what was looked at."""
    read = f"{counted(compared.files, 'file')}, {read_text(compared.bytes, compared.seconds)}"
    against = f"compared with what {compared.original} says of itself"
    show_check(compared.copy, compared.findings, [f"read {read}, {against}"], console, "the same")


def show_verified(report: ExportReport, console: Console) -> None:
    """The findings, and what was looked at."""
    read = f"{counted(report.files, 'file')}, {read_text(report.bytes, report.seconds)}"
    counts = f"{counted(report.documents, 'document')} of {counted(report.tokens, 'token')}"
    against = (
        f"not compared: {report.not_compared}"
        if report.not_compared
        else f"compared with {report.dataset}, {counts}"
    )
    show_check(report.export, report.findings, [f"read {read}; {against}"], console)
