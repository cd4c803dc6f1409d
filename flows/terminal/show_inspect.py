"""What `shardmill inspect` tells, on the terminal."""

from collections.abc import Iterable

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from flows.terminal.columns import show_facts, show_table
from flows.terminal.visible import bytes_text, counted, visible
from streaming_ext.dataset.layout import DUPLICATES_FOLDER
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.text.filters.filters import option
from streaming_ext.units import size_text
from tasks.core.check.decode import DecodedSample, Piece
from tasks.core.check.inspect import DatasetDescription
from tasks.core.reporting.length_classes import Lengths

_FIRST_PARTS, _LAST_PARTS = 5, 3
_MOST_BAD = 20
_BAR = 40  # characters of the longest bar
_PARTS_OF_A_BLOCK = " ▏▎▍▌▋▊▉█"


def show_dataset(dataset: DatasetDescription, console: Console) -> None:
    """Configuration, counts, document lengths, parts and runs."""
    _heading(console, visible(dataset.dataset))
    show_facts(_facts(dataset), console, indent="  ")
    _heading(console, "splits")
    _show_splits(dataset, console)
    _heading(console, "tokens a document")
    for line in _lengths(dataset.lengths, console.width if console.is_terminal else None):
        console.print(line, soft_wrap=not console.is_terminal)
    _heading(console, "parts")
    _show_parts(dataset, console)
    if any(part.bad_documents for part in dataset.parts):
        _heading(console, "left out, for they cannot be read")
        _show_bad(dataset, console)
    if given := dataset.manifest.spec.filters.given():
        _heading(console, "dropped by filters")
        for name, wanted in given.items():
            dropped = sum(each.dropped_documents.get(name, 0) for each in dataset.counted)
            by = f"{counted(dropped, 'document')} by {option(name)} {visible(str(wanted))}"
            console.print(Text(f"  {by}"), soft_wrap=True)
    if dataset.runs:
        _heading(console, "latest runs")
        _show_runs(dataset, console)


def show_samples(samples: Iterable[DecodedSample], console: Console) -> None:
    """Texts of samples, piece by piece; each says which document it is and where that goes on."""
    for sample in samples:
        padding = f", {sample.padding} ids of padding at its end" if sample.padding else ""
        console.print()
        console.print(Rule(Text(f"{sample.split} sample {sample.sample}", style="bold")))
        place = f"sample {sample.sample_in_shard} of {sample.shard}{padding}"
        console.print(Text(place, style="dim"), soft_wrap=True)
        for piece in sample.pieces:
            _show_piece(piece, console)
        if sample.padding:
            console.print(Text(f"[{sample.padding} ids of padding]", style="dim"))


def _show_piece(piece: Piece, console: Console) -> None:
    last = piece.first_token + piece.tokens
    share = (
        f"{piece.document_tokens} tokens, whole"
        if piece.begins and piece.ends
        else f"tokens {piece.first_token} to {last} of {piece.document_tokens}"
    )
    title = f"▶ {visible(str(piece.place))} · {share}"
    console.print(Text(title, style="bold cyan"), soft_wrap=True)
    if not piece.begins:
        console.print(Text("… goes on from the sample before", style="dim"))
    console.print(Text(visible(piece.text, keep="\n\t")), soft_wrap=True)
    if piece.ends:
        console.print(Text("■ end of text", style="bold green"))
    else:
        console.print(Text("… goes on in the next sample", style="dim"))


def _heading(console: Console, words: str) -> None:
    console.print()
    console.print(Text(words, style="bold"), soft_wrap=True)


def _facts(dataset: DatasetDescription) -> list[tuple[str, str]]:
    spec, tokenizer = dataset.manifest.spec, dataset.manifest.spec.tokenizer
    ids = f"{tokenizer.vocab_size:,} ids, {visible(tokenizer.eot_token)} is {tokenizer.eot_id}"
    by = "" if spec.imported is None else ", by the hash of their ids"
    holdout = f"{spec.holdout_fraction:.4%} of the documents{by}, seed {spec.holdout_seed}"
    return [
        (
            "documents",
            f"{dataset.documents:,} of {counted(dataset.files, 'source file')}",
        ),
        ("tokens", f"{dataset.manifest.tokens:,}, one end-of-text id a document among them"),
        *_text_facts(dataset),
        ("tokenizer", f"{visible(tokenizer.name)} ({tokenizer.kind}), {ids}"),
        ("fingerprint", visible(tokenizer.fingerprint)),
        ("samples", f"{spec.sequence_length:,} tokens of {spec.dtype}"),
        ("shards", f"up to {size_text(spec.shard_size)}, compression {visible(spec.compression)}"),
        ("holdout", holdout if spec.holdout_fraction else "none"),
        *_subset_facts(spec),
        *(
            [("merged", f"of {counted(len(dataset.manifest.merged), 'dataset')}")]
            if dataset.manifest.merged
            else []
        ),
        *_generation_facts(dataset),
        *_shuffle_facts(dataset),
        *_duplicate_facts(dataset),
    ]


def _text_facts(dataset: DatasetDescription) -> list[tuple[str, str]]:
    imported = dataset.manifest.spec.imported
    if imported is not None:
        return [("imported", f"ids of {imported.set_format}, as they were")]
    if dataset.manifest.spec.subset is not None:
        return [("text", f"of {_columns(dataset.manifest.spec)}; nothing tells how many bytes")]
    return [
        ("text", f"{bytes_text(dataset.manifest.text_bytes)} in {_columns(dataset.manifest.spec)}"),
        ("bytes a token", f"{dataset.bytes_per_token:.3f} of text, end-of-text ids left out"),
    ]


def _subset_facts(spec: DatasetSpec) -> list[tuple[str, str]]:
    if spec.subset is None:
        return []
    how = "the first ones" if spec.subset.seed is None else f"drawn with seed {spec.subset.seed}"
    whole = f"of the dataset whose manifest has the hash {spec.subset.of}"
    return [("subset", f"{counted(spec.subset.documents, 'document')}, {how}, {whole}")]


def _generation_facts(dataset: DatasetDescription) -> list[tuple[str, str]]:
    """Each generation of an extended dataset, the oldest first."""
    if not dataset.manifest.generations:
        return []
    older = [
        (each.manifest.xxh128, each.parts, sum(s.tokens for s in each.splits.values()))
        for each in dataset.manifest.generations
    ]
    all_of_them = [*older, (dataset.generation, len(dataset.parts), dataset.manifest.tokens)]
    return [
        (f"generation {number}", f"{content}: {counted(parts, 'part')}, {tokens:,} tokens")
        for number, (content, parts, tokens) in enumerate(all_of_them)
    ]


def _shuffle_facts(dataset: DatasetDescription) -> list[tuple[str, str]]:
    found, spec = dataset.manifest.shuffled, dataset.manifest.spec
    if found is None:
        return []
    over = "all parts of each generation" if dataset.manifest.generations else "all parts"
    dropped = sum(found.dropped_documents.values())
    left_out = (
        f"{found.null_documents:,} null, {found.empty_documents:,} empty, "
        f"{found.bad_documents:,} unreadable, {dropped:,} dropped of {found.rows:,} rows"
    )
    return [
        ("order", f"{spec.shuffle} shuffled over {over}, seed {spec.shuffle_seed}"),
        ("left out", left_out),
    ]


def _duplicate_facts(dataset: DatasetDescription) -> list[tuple[str, str]]:
    if dataset.manifest.spec.deduplicate is None:
        return []
    documents, tokens = dataset.manifest.duplicate_documents, dataset.manifest.duplicate_tokens
    before = dataset.documents + documents
    told = (
        f"{documents:,} of {before:,} documents ({documents / max(before, 1):.2%}), {tokens:,} "
        f"tokens, left out ({dataset.manifest.spec.deduplicate}); {DUPLICATES_FOLDER}/ lists them"
    )
    return [("copies", told)]


def _columns(spec: DatasetSpec) -> str:
    names = [repr(visible(name)) for name in spec.read_options.columns]
    if len(names) == 1:
        return f"column {names[0]}"
    return f"columns {', '.join(names)}, with {visible(spec.text_separator)!r} between them"


def _show_splits(dataset: DatasetDescription, console: Console) -> None:
    rows = []
    for name, split in sorted(dataset.splits.items(), reverse=True):
        summary = split.summary
        counts = (summary.documents, summary.tokens, summary.samples, summary.shards)
        sizes = (bytes_text(split.raw_bytes), bytes_text(split.stored_bytes))
        rows.append((name, *(f"{n:,}" for n in counts), *sizes))
    columns = ("split", "documents", "tokens", "samples", "shards", "raw", "stored")
    show_table(columns, rows, console)


def _lengths(lengths: Lengths, columns: int | None) -> Iterable[Text]:
    figures = {
        "mean": lengths.mean,
        "median": lengths.quantile(0.5),
        "p90": lengths.quantile(0.9),
        "p99": lengths.quantile(0.99),
        "longest": lengths.longest,
    }
    yield Text("  " + "   ".join(f"{name} {value:,.0f}" for name, value in figures.items()))
    bars = lengths.doublings()
    most = max((count for _, count in bars), default=1)
    width = len(f"{2 * bars[-1][0] - 1:,}") if bars else 0
    beside = 2 * width + len(f"{most:,}") + 9  # label, count, and what is between
    longest = _BAR if columns is None else max(min(_BAR, columns - beside), 0)
    for start, count in bars:
        label = f"{start:>{width},} to {2 * start - 1:>{width},}"
        yield Text.assemble(
            (f"  {label}  ", "dim"),
            (_bar(count / most * longest), "cyan"),
            f" {count:,}",
            no_wrap=True,
        )


def _bar(characters: float) -> str:
    whole, rest = divmod(round(characters * 8), 8)
    return "█" * whole + (_PARTS_OF_A_BLOCK[rest] if rest else "")


def _show_parts(dataset: DatasetDescription, console: Console) -> None:
    rows = []
    parts = dataset.parts
    shown = _FIRST_PARTS + _LAST_PARTS
    few = len(parts) <= shown + 1
    for part in parts if few else (*parts[:_FIRST_PARTS], None, *parts[-_LAST_PARTS:]):
        if part is None:
            rows.append(("…", *[""] * 5, f"{len(parts) - shown:,} more"))
            continue
        splits = part.splits.values()
        rows.append(
            (
                f"{part.part:05}",
                f"{sum(split.documents for split in splits):,}",
                f"{part.null_documents:,}",
                f"{part.empty_documents:,}",
                bytes_text(part.text_bytes),
                f"{sum(split.tokens for split in splits):,}",
                visible("all sources" if dataset.manifest.shuffled else part.made_of_text),
            )
        )
    columns = ("part", "documents", "null", "empty", "text", "tokens", "source")
    show_table(columns, rows, console, left=("source",))


def _show_bad(dataset: DatasetDescription, console: Console) -> None:
    total = dataset.manifest.bad_documents
    for bad in [bad for each in dataset.counted for bad in each.bad_listed][:_MOST_BAD]:
        console.print(Text(f"  {visible(str(bad))}"), soft_wrap=True)
    if total > _MOST_BAD:
        rest = f"{total - _MOST_BAD:,} more; parts/*.json list the first of each part"
        console.print(Text(f"  and {rest}", style="dim"), soft_wrap=True)


def _show_runs(dataset: DatasetDescription, console: Console) -> None:
    two_stages = any(run.gathered for run in dataset.runs)
    rows = [
        (
            f"{run.began:%Y-%m-%d %H:%M}",
            f"{run.files_done:,}",
            *([f"{len(run.gathered):,}"] if two_stages else []),
            f"{len(run.failed):,}",
            bytes_text(run.text_bytes),
            f"{run.seconds:,.1f}",
            f"{run.megabytes_per_second:,.1f}",
            f"{run.workers:,}",
            visible(run.host),
        )
        for run in dataset.runs
    ]
    stages = ("parts", "2nd stage") if two_stages else ("parts",)
    columns = ("began (UTC)", *stages, "failed", "text", "seconds", "MB/s", "workers", "host")
    show_table(columns, rows, console, left=("host",))
