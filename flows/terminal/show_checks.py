"""The results of `shardmill inspect` and `verify`, and of `copy --verify-only`, on the terminal."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from flows.terminal.printing import (
    bytes_text,
    counted,
    say,
    show_facts,
    show_table,
    spec_facts,
    time_text,
)
from streaming_ext.base.errors import option_name
from streaming_ext.format.layout import DUPLICATES_FOLDER
from streaming_ext.format.record import PartRecord
from tasks.core.check.decode import DecodedSample, Excerpt
from tasks.core.check.export import CopyReport, ExportReport
from tasks.core.check.findings import DatasetReport, Finding
from tasks.core.check.inspect import DatasetDescription, NearDescription
from tasks.core.derive.export_format import ExportDescription
from tasks.core.reporting.lengths import Lengths
from tasks.core.reporting.report import RunReport

_FIRST_PARTS, _LAST_PARTS = 5, 3
_MOST_BAD = 20
_BAR = 40  # characters of the longest bar


def show_dataset(dataset: DatasetDescription, console: Console) -> None:
    """Show configuration, counts, document lengths, parts and runs of a dataset."""
    manifest = dataset.manifest
    _heading(console, dataset.dataset)
    show_facts(_facts(dataset), console)
    _heading(console, "splits")
    splits = [
        {
            "split": name,
            **{
                noun: f"{getattr(split.summary, noun):,}"
                for noun in ("documents", "tokens", "samples", "shards")
            },
            "raw": bytes_text(split.raw_bytes),
            "stored": bytes_text(split.stored_bytes),
        }
        for name, split in sorted(dataset.splits.items(), reverse=True)
    ]
    show_table(splits, console)
    _heading(console, "tokens per document")
    _show_lengths(dataset.lengths, console)
    _heading(console, "parts")
    parts = [_part(part, shuffled=manifest.shuffled is not None) for part in dataset.parts]
    if (more := len(parts) - _FIRST_PARTS - _LAST_PARTS) > 1:
        rest = dict.fromkeys(parts[0], "") | {"part": "…", "source": f"{more:,} more"}
        parts[_FIRST_PARTS:-_LAST_PARTS] = [rest]
    show_table(parts, console, left=("source",))
    if bad := manifest.row_counts.bad_documents:
        _heading(console, "unreadable documents, left out")
        for one in [one for each in dataset.counted for one in each.bad_listed][:_MOST_BAD]:
            say(console, str(one))
        if bad > _MOST_BAD:
            say(console, f"and {bad - _MOST_BAD:,} more; parts/*.json list the first of each part")
    if given := manifest.spec.drops:
        _heading(console, "dropped by filters")
        for name, value in given.items():
            dropped = sum(each.dropped_documents.get(name, 0) for each in dataset.counted)
            say(console, f"{counted(dropped, 'document')} by {option_name(name)} {value}")
    if dataset.near is not None:
        _show_near(dataset.near, console)
    if dataset.runs:
        _heading(console, "latest runs")
        show_table([_run(run) for run in dataset.runs], console, left=("host",))


def _show_near(near: NearDescription, console: Console) -> None:
    """Show the near copies that people should look at."""
    _heading(console, "largest groups of near copies, left out for one witness")
    for group in near.groups:
        say(console, f"{counted(group.documents, 'document')} for {group.witness.source_row}")
        say(console, f"    {group.witness.text}", style="dim")
    _heading(console, "least similar near copies")
    for pair in near.pairs:
        witness = f"{pair.similarity:.3f} similar to {pair.witness.source_row}"
        say(console, f"{pair.source_row}: {witness}")
        say(console, f"    {pair.text}", style="dim")
        say(console, f"    {pair.witness.text}", style="dim")
    _heading(console, "near copies of each source")
    for loss in near.losses[:_MOST_BAD]:
        say(console, str(loss))
    if (more := len(near.losses) - _MOST_BAD) > 0:
        say(console, f"and {more:,} more, which lost a lesser part")


def show_export(export: ExportDescription, console: Console) -> None:
    """Show the format of an export, its dataset and its contents."""
    manifest = export.manifest
    identity, tokenizer = manifest.identity, manifest.tokenizer
    options = identity.options.model_dump(exclude_defaults=True)
    facts = [
        ("export", export.location),
        ("format", identity.export),
        *((name.replace("_", " "), str(value)) for name, value in options.items()),
        ("made from", manifest.dataset),
        ("its manifest", f"xxh128 {identity.dataset_manifest.xxh128}"),
        ("tokenizer", f"{tokenizer.name} ({tokenizer.fingerprint})"),
        ("parts", f"{len(manifest.records):,}"),
        *(
            (name, f"{counted(split.documents, 'document')}, {counted(split.tokens, 'token')}")
            for name, split in sorted(manifest.splits.items())
        ),
        ("files", f"{len(export.files):,}, {bytes_text(sum(export.files.values()))}"),
    ]
    show_facts(facts, console)


def show_samples(samples: Iterable[DecodedSample], console: Console) -> None:
    """Show the text of samples, document by document, with the source of each document."""
    for sample in samples:
        console.print()
        console.print(Rule(Text(f"{sample.split} sample {sample.sample}", style="bold")))
        say(console, f"sample {sample.sample_in_shard} of {sample.shard}", style="dim")
        for span in sample.excerpts:
            _show_span(span, console)
        if sample.padding:
            say(console, f"[{sample.padding} ids of padding]", style="dim")


def _show_span(span: Excerpt, console: Console) -> None:
    """Show the span of a document that a sample holds."""
    stop = span.first_token + span.tokens
    tokens = f"tokens {span.first_token} to {stop} of {span.document_tokens}"
    if span.begins and span.ends:
        tokens = f"all {span.document_tokens} tokens"
    say(console, f"▶ {span.source_row} · {tokens}", style="bold cyan")
    if not span.begins:
        say(console, "… continued from the sample before", style="dim")
    say(console, span.text, keep="\n\t")
    if span.ends:
        say(console, "■ end of text", style="bold green")
    else:
        say(console, "… continued in the next sample", style="dim")


def _heading(console: Console, words: str) -> None:
    console.print()
    say(console, words, style="bold")


def _facts(dataset: DatasetDescription) -> Iterator[tuple[str, str]]:
    manifest = dataset.manifest
    spec = manifest.spec
    yield "documents", f"{dataset.documents:,} of {counted(dataset.files, 'source file')}"
    yield "tokens", f"{manifest.tokens:,}, one end-of-text id per document among them"
    if spec.imported is None and spec.subset is None:  # else the size of the text is unknown
        yield "text", bytes_text(manifest.text_bytes)
        yield "bytes per token", f"{dataset.bytes_per_token:.3f} of text, without end-of-text ids"
    yield from spec_facts(spec)
    if manifest.added:
        yield "added columns", ", ".join(manifest.columns[len(spec.keep_columns) :])
    if manifest.merged:
        yield "merged", f"of {counted(len(manifest.merged), 'dataset')}"
    if manifest.generations:
        generations = [
            (each.manifest.xxh128, each.parts, sum(s.tokens for s in each.splits.values()))
            for each in manifest.generations
        ]
        generations.append((dataset.generation, len(dataset.parts), manifest.tokens))
        for number, (content, parts, tokens) in enumerate(generations):
            yield f"generation {number}", f"{content}: {counted(parts, 'part')}, {tokens:,} tokens"
    if words := manifest.row_counts.left_out_text:
        yield "left out", f"of {counted(manifest.row_counts.rows, 'row')}: {words}"
    if spec.deduplicate is not None and spec.subset is None:
        copies, tokens = manifest.duplicate_documents, manifest.duplicate_tokens
        before = max(dataset.documents + copies, 1)
        part = f"{copies:,} of {before:,} documents ({copies / before:.2%}), {tokens:,} tokens"
        yield "copies", f"{part}, left out ({spec.deduplicate}); {DUPLICATES_FOLDER}/ lists them"


def _part(part: PartRecord, *, shuffled: bool) -> dict[str, str]:
    return {
        "part": f"{part.part:05}",
        "documents": f"{part.documents_kept:,}",
        "null": f"{part.null_documents:,}",
        "empty": f"{part.empty_documents:,}",
        "text": bytes_text(part.text_bytes),
        "tokens": f"{part.tokens_kept:,}",
        "source": "all sources" if shuffled else part.made_of_text,
    }


def _run(run: RunReport) -> dict[str, str]:
    return {
        "began (UTC)": f"{run.began:%Y-%m-%d %H:%M}",
        "parts": f"{run.files_done:,}",
        "2nd phase": f"{len(run.merged):,}",
        "failed": f"{len(run.failed):,}",
        "text": bytes_text(run.text_bytes),
        "time": time_text(run.seconds),
        "MB/s": f"{run.megabytes_per_second:,.1f}",
        "workers": f"{run.workers:,}",
        "host": run.host,
    }


def _show_lengths(lengths: Lengths, console: Console) -> None:
    figures = lengths.figures().items()
    say(console, "   ".join(f"{name} {value:,.0f}" for name, value in figures))
    bars = lengths.histogram()
    most = max((count for _, _, count in bars), default=1)
    rows = (
        (f"{start:,} to {end - 1:,}", "█" * round(count / most * _BAR), f"{count:,}")
        for start, end, count in bars
    )
    show_facts(rows, console)


def show_findings(findings: Iterable[Finding], console: Console) -> None:
    """Show each damaged file with its problems."""
    for file, of_file in groupby(sorted(findings), key=lambda finding: finding.file):
        say(console, file, style="bold red")
        for finding in of_file:
            say(console, f"  {finding.problem}")


def show_verified(report: DatasetReport, console: Console) -> None:
    """Show the result for a dataset, and the numbers of compared things."""
    counts = asdict(report.checked)
    read = _read(counts.pop("files"), counts.pop("bytes"), report.seconds)
    _show(report.dataset, report.findings, read, console)
    if report.deep:
        counts["retokenized, at least"] = min(report.requested, report.checked.documents)
    rows = (
        (name.replace("_", " "), f"{count:,}")
        for name, count in {"parts": report.parts, **counts}.items()
        if count
    )
    show_facts(rows, console)


def show_verified_export(report: ExportReport, console: Console) -> None:
    """Show the result for an export."""
    compared = (
        f"not compared: {report.not_compared}"
        if report.not_compared
        else f"compared with {report.dataset}, {counted(report.documents, 'document')} of "
        f"{counted(report.tokens, 'token')}"
    )
    read = _read(report.files, report.bytes, report.seconds)
    _show(report.export, report.findings, f"{read}; {compared}", console)


def show_compared(compared: CopyReport, console: Console) -> None:
    """Show the result for a copy."""
    read = _read(compared.files, compared.bytes, compared.seconds)
    read += f", compared with the hashes of {compared.original}"
    _show(compared.copy, compared.findings, read, console, sound="the same")


def _show(
    name: str, findings: Sequence[Finding], read: str, console: Console, sound: str = "sound"
) -> None:
    """Show the findings, the verdict, and the size and time of the check."""
    show_findings(findings, console)
    files = len({finding.file for finding in findings})
    wrong = f"{counted(len(findings), 'finding')} in {counted(files, 'file')}"
    say(console, f"{name}: {wrong if findings else sound}", style="red" if findings else "green")
    say(console, f"  {read}")


def _read(files: int, num_bytes: int, seconds: float) -> str:
    rate = num_bytes / 1e6 / seconds if seconds else 0.0
    read = f"{bytes_text(num_bytes)} in {time_text(seconds)} ({rate:,.0f} MB/s)"
    return f"read {counted(files, 'file')}, {read}"
