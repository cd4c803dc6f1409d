"""What `shardmill plan` tells, on the terminal."""

from datetime import timedelta

from rich.console import Console

from flows.terminal.columns import show_facts
from flows.terminal.visible import bytes_text, counted
from tasks.core.estimate.cost import Resource
from tasks.core.estimate.estimate import Estimate
from tasks.core.estimate.ratio import Quantity

_RESOURCES: dict[Resource, str] = {
    "network": "network",
    "workers": "workers (CPU)",
    "disk": "disk",
}


def show_estimate(found: Estimate, console: Console) -> None:
    """What would be made, then what it would take."""
    cost = found.cost
    made: list[tuple[str, str, str]] = []
    origin = "as given, like the sample's" if found.scaled else "listed"
    made.append(("source files", f"{found.files:,}", f"{bytes_text(found.source_bytes)}, {origin}"))
    made.append(("documents", _count(found.documents.value), _sure(found.documents)))
    made.append(("text", bytes_text(found.text_bytes.value), _sure(found.text_bytes)))
    made.append(("tokens", _count(found.tokens.value), _sure(found.tokens)))
    per_token = found.bytes_per_token
    tokens_a_byte = f"{1 / per_token.value:.4f} tokens a byte"
    made.append(("bytes a token", f"{per_token.value:.3f}", f"{_sure(per_token)}; {tokens_a_byte}"))
    made.append(("samples", _count(found.samples.value), ""))
    made.append(("shards", bytes_text(found.shard_bytes.value), f"{found.shards:,} files"))
    show_facts(made, console)
    taken: list[tuple[str, str, str]] = []
    taken.append(
        ("on", f"{counted(found.hosts, 'host')} of {counted(found.workers, 'worker')}", "")
    )
    rate = f"{found.worker_rate / 1e6:.0f} MB/s"
    taken.append(("a worker does", rate, "of text, timed here"))
    taken.append(("time", _duration(cost.seconds), f"{cost.text_rate / 1e6:,.0f} MB/s of text"))
    taken.append(("decided by", _RESOURCES[cost.bottleneck], ""))
    for name, seconds in sorted(cost.busy.items(), key=lambda item: -item[1]):
        if seconds:
            taken.append(("", _duration(seconds), _reason(name, found)))
    if cost.fetched or cost.uploaded:
        moved = f"fetched, {bytes_text(cost.uploaded)} uploaded"
        taken.append(("network", bytes_text(cost.fetched), moved))
    share = f", {bytes_text(cost.output / found.hosts)} a host" if found.hosts > 1 else ""
    taken.append(("disk: output", bytes_text(cost.output), f"in all{share}"))
    if cost.runs:
        taken.append(("disk: runs", bytes_text(cost.runs), "on the output, until it is published"))
    taken.append(("disk: scratch", bytes_text(cost.scratch), "on each host, at most"))
    show_facts(taken, console)
    console.print(
        f"From {bytes_text(found.sample_bytes)} of text of {counted(found.sample_files, 'file')}. "
        "± is the 95% interval of the sampling; it knows nothing of other machines.",
        soft_wrap=True,
    )
    if found.unreadable:
        console.print(f"{counted(found.unreadable, 'file')} could not be read.", style="red")


def _reason(name: Resource, found: Estimate) -> str:
    if name == "network" and found.link:
        return f"{_RESOURCES[name]}, {found.link * 8 / 1e9:g} Gbit/s a host"
    if name == "disk" and found.disk:
        return f"{_RESOURCES[name]}, {found.disk / 1e6:g} MB/s a host"
    return _RESOURCES[name]


def _sure(quantity: Quantity) -> str:
    if quantity.error is None:
        return "no interval: too small a sample"
    if quantity.error == 0:
        return "counted"
    return f"±{quantity.error:.2%}"


def _count(number: float) -> str:
    return f"{number:,.0f}" if number < 1e7 else f"{number / 1e9:,.4g} G"


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds))) if seconds >= 60 else f"{seconds:.1f} s"
