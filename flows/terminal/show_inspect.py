"""What `shardmill inspect` tells, on the terminal."""

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from flows.terminal.columns import show_facts, show_table
from flows.terminal.visible import bytes_text, counted, say
from streaming_ext.base.units import size_text
from streaming_ext.format.filters import option
from streaming_ext.format.layout import DUPLICATES_FOLDER
from streaming_ext.format.record import PartRecord
from streaming_ext.format.spec import DatasetSpec
from tasks.core.check.decode import DecodedSample, Piece
from tasks.core.check.inspect import DatasetDescription, SplitDescription
from tasks.core.reporting.lengths import Lengths
from tasks.core.reporting.report import RunReport

_FIRST_PARTS, _LAST_PARTS = 5, 3
_MOST_BAD = 20
_BAR = 40  # characters of the longest bar


def show_dataset(dataset: DatasetDescription, console: Console) -> None:
    """Configuration, counts, document lengths, parts and runs."""
    _heading(console, dataset.dataset)
    show_facts(_facts(dataset), console)
    _heading(console, "splits")
    show_table([_split(*each) for each in sorted(dataset.splits.items(), reverse=True)], console)
    _heading(console, "tokens a document")
    _show_lengths(dataset.lengths, console)
    _heading(console, "parts")
    parts = [_part(part, shuffled=dataset.manifest.shuffled is not None) for part in dataset.parts]
    if (more := len(parts) - _FIRST_PARTS - _LAST_PARTS) > 1:
        rest = dict.fromkeys(parts[0], "") | {"part": "…", "source": f"{more:,} more"}
        parts[_FIRST_PARTS:-_LAST_PARTS] = [rest]
    show_table(parts, console, left=("source",))
    if bad := dataset.manifest.bad_documents:
        _heading(console, "left out, for they cannot be read")
        listed = [str(one) for each in dataset.counted for one in each.bad_listed]
        lines = listed[:_MOST_BAD]
        if bad > _MOST_BAD:
            rest_of_them = f"and {bad - _MOST_BAD:,} more; parts/*.json list the first of each part"
            lines.append(rest_of_them)
        _show_lines(lines, console)
    if given := dataset.manifest.spec.filters.given():
        _heading(console, "dropped by filters")
        for name, wanted in given.items():
            dropped = sum(each.dropped_documents.get(name, 0) for each in dataset.counted)
            words = f"{counted(dropped, 'document')} by {option(name)} {wanted}"
            _show_lines([words], console)
    if dataset.runs:
        _heading(console, "latest runs")
        show_table([_run(run) for run in dataset.runs], console, left=("host",))


def show_samples(samples: Iterable[DecodedSample], console: Console) -> None:
    """Texts of samples, piece by piece; each says which document it is and where that goes on."""
    for sample in samples:
        padding = f", {sample.padding} ids of padding at its end" if sample.padding else ""
        console.print()
        console.print(Rule(Text(f"{sample.split} sample {sample.sample}", style="bold")))
        where = f"sample {sample.sample_in_shard} of {sample.shard}{padding}"
        say(console, where, style="dim")
        for piece in sample.pieces:
            _show_piece(piece, console)
        if sample.padding:
            say(console, f"[{sample.padding} ids of padding]", style="dim")


def _show_piece(piece: Piece, console: Console) -> None:
    last = piece.first_token + piece.tokens
    which = (
        f"{piece.document_tokens} tokens, whole"
        if piece.begins and piece.ends
        else f"tokens {piece.first_token} to {last} of {piece.document_tokens}"
    )
    say(console, f"▶ {piece.place} · {which}", style="bold cyan")
    if not piece.begins:
        say(console, "… goes on from the sample before", style="dim")
    say(console, piece.text, keep="\n\t")
    if piece.ends:
        say(console, "■ end of text", style="bold green")
    else:
        say(console, "… goes on in the next sample", style="dim")


def _heading(console: Console, words: str) -> None:
    console.print()
    say(console, words, style="bold")


def _facts(dataset: DatasetDescription) -> Iterator[tuple[str, str]]:
    manifest = dataset.manifest
    spec, tokenizer = manifest.spec, manifest.spec.tokenizer
    files = counted(dataset.files, "source file")
    yield "documents", f"{dataset.documents:,} of {files}"
    yield "tokens", f"{manifest.tokens:,}, one end-of-text id a document among them"
    if spec.imported is not None:
        yield "imported", f"ids of {spec.imported.set_format}, as they were"
    elif spec.subset is not None:
        yield "text", f"of {_columns(spec)}; nothing tells how many bytes"
    else:
        yield "text", f"{bytes_text(manifest.text_bytes)} in {_columns(spec)}"
        per_token = f"{dataset.bytes_per_token:.3f}"
        yield "bytes a token", f"{per_token} of text, end-of-text ids left out"
    ids = f"{tokenizer.vocab_size:,} ids, {tokenizer.eot_token} is {tokenizer.eot_id}"
    yield "tokenizer", f"{tokenizer.name} ({tokenizer.kind}), {ids}"
    yield "fingerprint", tokenizer.fingerprint
    yield "samples", f"{spec.sequence_length:,} tokens of {spec.dtype}"
    yield "shards", f"up to {size_text(spec.shard_size)}, compression {spec.compression}"
    by = "" if spec.imported is None else ", by the hash of their ids"
    holdout = f"{spec.holdout_fraction:.4%} of the documents{by}, seed {spec.holdout_seed}"
    yield "holdout", holdout if spec.holdout_fraction else "none"
    if (rule := spec.subset) is not None:
        how = "the first ones" if rule.seed is None else f"drawn with seed {rule.seed}"
        of = f"of the dataset whose manifest has the hash {rule.of}"
        yield "subset", f"{counted(rule.documents, 'document')}, {how}, {of}"
    if manifest.merged:
        yield "merged", f"of {counted(len(manifest.merged), 'dataset')}"
    if manifest.generations:
        older = [
            (each.manifest.xxh128, each.parts, sum(s.tokens for s in each.splits.values()))
            for each in manifest.generations
        ]
        newest = (dataset.generation, len(dataset.parts), manifest.tokens)
        for number, (content, parts, tokens) in enumerate([*older, newest]):
            yield f"generation {number}", f"{content}: {counted(parts, 'part')}, {tokens:,} tokens"
    if (found := manifest.shuffled) is not None:
        over = "all parts of each generation" if manifest.generations else "all parts"
        yield "order", f"{spec.shuffle} shuffled over {over}, seed {spec.shuffle_seed}"
        dropped = sum(found.dropped_documents.values())
        lost = f"{found.null_documents:,} null, {found.empty_documents:,} empty"
        bad = f"{found.bad_documents:,} unreadable, {dropped:,} dropped"
        yield "left out", f"{lost}, {bad} of {found.rows:,} rows"
    if spec.deduplicate is not None:
        documents, tokens = manifest.duplicate_documents, manifest.duplicate_tokens
        before = dataset.documents + documents
        part = f"{documents:,} of {before:,} documents ({documents / max(before, 1):.2%})"
        by = f"({spec.deduplicate}); {DUPLICATES_FOLDER}/ lists them"
        yield "copies", f"{part}, {tokens:,} tokens, left out {by}"


def _columns(spec: DatasetSpec) -> str:
    names = [repr(name) for name in spec.read_options.columns]
    if len(names) == 1:
        return f"column {names[0]}"
    return f"columns {', '.join(names)}, with {spec.text_separator!r} between them"


def _split(name: str, split: SplitDescription) -> dict[str, str]:
    summary = split.summary
    return {
        "split": name,
        "documents": f"{summary.documents:,}",
        "tokens": f"{summary.tokens:,}",
        "samples": f"{summary.samples:,}",
        "shards": f"{summary.shards:,}",
        "raw": bytes_text(split.raw_bytes),
        "stored": bytes_text(split.stored_bytes),
    }


def _part(part: PartRecord, *, shuffled: bool) -> dict[str, str]:
    splits = part.splits.values()
    return {
        "part": f"{part.part:05}",
        "documents": f"{sum(split.documents for split in splits):,}",
        "null": f"{part.null_documents:,}",
        "empty": f"{part.empty_documents:,}",
        "text": bytes_text(part.text_bytes),
        "tokens": f"{sum(split.tokens for split in splits):,}",
        "source": "all sources" if shuffled else part.made_of_text,
    }


def _run(run: RunReport) -> dict[str, str]:
    return {
        "began (UTC)": f"{run.began:%Y-%m-%d %H:%M}",
        "parts": f"{run.files_done:,}",
        "2nd phase": f"{len(run.merged):,}",
        "failed": f"{len(run.failed):,}",
        "text": bytes_text(run.text_bytes),
        "seconds": f"{run.seconds:,.1f}",
        "MB/s": f"{run.megabytes_per_second:,.1f}",
        "workers": f"{run.workers:,}",
        "host": run.host,
    }


def _show_lengths(lengths: Lengths, console: Console) -> None:
    quantiles = {"median": 0.5, "p90": 0.9, "p99": 0.99}
    figures = {name: lengths.quantile(share) for name, share in quantiles.items()}
    figures = {"mean": round(lengths.mean), **figures, "longest": lengths.longest}
    _show_lines(["   ".join(f"{name} {value:,}" for name, value in figures.items())], console)
    bars = lengths.histogram()
    most = max((count for _, _, count in bars), default=1)
    show_facts(
        (
            (f"{start:,} to {end - 1:,}", "█" * round(count / most * _BAR), f"{count:,}")
            for start, end, count in bars
        ),
        console,
    )


def _show_lines(lines: Iterable[str], console: Console) -> None:
    for line in lines:
        say(console, line)
