"""The plan of a run (`--dry-run`), and the estimate of its costs (`shardmill plan`)."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from flows.terminal.printing import (
    bytes_text,
    count_text,
    counted,
    say,
    show_facts,
    spec_facts,
    time_text,
)
from streaming_ext.store import Storage
from streaming_ext.text.look import shortened
from tasks.core.estimate.estimate import Bench, Estimate, Quantity
from tasks.core.shard.run_plan import RunPlan

_SHOWN = 10  # parts, unless all are requested


def show_estimate(found: Estimate, console: Console) -> None:
    """Show the estimated output, then the resources for making it."""
    cost, per_token = found.cost, found.bytes_per_token
    origin = "as given, like the sample's" if found.scaled else "listed"
    made = [
        ("source files", f"{found.files:,}", f"{bytes_text(found.source_bytes)}, {origin}"),
        ("documents", count_text(found.documents.value), _error(found.documents)),
        ("text", bytes_text(found.text_bytes.value), _error(found.text_bytes)),
        ("tokens", count_text(found.tokens.value), _error(found.tokens)),
        ("bytes per token", f"{per_token.value:.3f}", _error(per_token)),
        ("samples", count_text(found.samples.value), ""),
        ("shards", bytes_text(found.shard_bytes.value), f"{found.shards:,} files"),
    ]
    a_host = f", {bytes_text(cost.output / found.hosts)} per host" if found.hosts > 1 else ""
    busy = sorted(cost.busy.items(), key=lambda item: -item[1])
    taken = [
        ("on", f"{counted(found.hosts, 'host')} of {counted(found.workers, 'worker')}", ""),
        ("engine", found.engine, _compared(found.compared_bytes, "the reference")),
        ("one worker", f"{found.worker_rate / 1e6:.0f} MB/s", "of text, measured here"),
        ("time", time_text(cost.seconds), f"{cost.text_rate / 1e6:,.1f} MB/s of text"),
        ("decided by", cost.bottleneck, ""),
        *(("", time_text(seconds), name) for name, seconds in busy if seconds),
    ]
    if cost.fetched or cost.uploaded:
        moved = f"fetched, {bytes_text(cost.uploaded)} uploaded"
        taken.append(("network", bytes_text(cost.fetched), moved))
    taken.append(("disk: output", bytes_text(cost.output), f"in all{a_host}"))
    if cost.spills:
        taken.append(("disk: spills", bytes_text(cost.spills), "on the output, until the end"))
    taken.append(("disk: scratch", bytes_text(cost.scratch), "on each host, at most"))
    show_facts(made, console)
    show_facts(taken, console)
    sample = f"{bytes_text(found.sample_bytes)} of text of {counted(found.sample_files, 'file')}"
    say(console, f"From {sample}. ± is the 95% interval of the sampling alone.")
    if found.note:
        say(console, found.note)
    rows = found.sample_rows
    if rows.left_out:
        say(console, f"Left out of its {counted(rows.rows, 'row')}: {rows.left_out_text}.")
    _show_problems(found.problems, console)


def show_bench(found: Bench, console: Console) -> None:
    """Show in one line how this machine tokenizes some files."""
    text = bytes_text(found.text_bytes)
    ids = f"ids of the reference itself on {text}"
    if found.compared_bytes:
        ids = f"{_compared(found.compared_bytes, found.reference)} of {text}"
    say(
        console,
        f"{found.tokenizer}: {found.engine}; {found.rate / 1e6:.3g} MB/s per core, with "
        f"{found.workers:,} at work; {ids}; {found.tokens_per_byte:.4f} tokens per byte",
    )
    _show_problems(found.problems, console)


def _compared(size: int, reference: str) -> str:
    return f"ids equal to those of {reference} on {bytes_text(size)}" if size else ""


def _show_problems(problems: Sequence[str], console: Console) -> None:
    if problems:
        say(console, f"{counted(len(problems), 'file')} cannot be used:", style="red")
        for words in shortened(problems):
            say(console, f"  {words}", style="red")


def _error(quantity: Quantity) -> str:
    if quantity.error is None:
        return "no interval: too small a sample"
    return f"±{quantity.error:.2%}" if quantity.error else "counted"


def dry_run_facts(plan: RunPlan, output: Storage) -> dict[str, Any]:
    """Return the plan of a run, for JSON."""
    todo = [plan.parts[part] for part in plan.todo]
    return {
        "output": str(output),
        "published": plan.published,
        "parts": len(plan.parts),
        "done": len(plan.parts) - len(todo),
        "todo": [part.source for part in todo],
        "todo_bytes": sum(part.size for part in todo),
        "scratch": str(plan.scratch),
        "executor": getattr(plan.config, "executor", "here"),
        "workers": plan.config.workers,
        "spec": plan.spec.model_dump(mode="json", exclude_defaults=True),
    }


def show_dry_run(plan: RunPlan, output: Storage, console: Console, *, all_parts: bool) -> None:
    """Show the plan of a run on the terminal."""
    found = dry_run_facts(plan, output)
    todo, size = found.pop("todo"), bytes_text(found.pop("todo_bytes"))
    del found["spec"]
    facts = [(name, str(value)) for name, value in found.items()]
    show_facts([*facts, ("to do", f"{len(todo):,} parts, {size}"), *spec_facts(plan.spec)], console)
    if plan.note:
        say(console, plan.note)
    shown = todo if all_parts else todo[:_SHOWN]
    for source in shown:
        say(console, f"  {source}")
    if len(shown) < len(todo):
        say(console, f"  ... and {len(todo) - len(shown):,} more; --verbose shows all")
