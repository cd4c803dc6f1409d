"""What `shardmill plan` tells, on the terminal."""

from rich.console import Console

from flows.terminal.columns import show_facts
from flows.terminal.visible import bytes_text, counted, duration_text, say
from tasks.core.estimate.cost import Quantity, Resource
from tasks.core.estimate.estimate import Estimate

_RESOURCES: dict[Resource, str] = {
    "network": "network",
    "workers": "workers (CPU)",
    "disk": "disk",
}


def show_estimate(found: Estimate, console: Console) -> None:
    """What would be made, then what it would take."""
    cost, per_token = found.cost, found.bytes_per_token
    origin = "as given, like the sample's" if found.scaled else "listed"
    tokens_a_byte = f"{1 / per_token.value:.4f} tokens a byte"
    show_facts(
        [
            ("source files", f"{found.files:,}", f"{bytes_text(found.source_bytes)}, {origin}"),
            ("documents", _count(found.documents.value), _sure(found.documents)),
            ("text", bytes_text(found.text_bytes.value), _sure(found.text_bytes)),
            ("tokens", _count(found.tokens.value), _sure(found.tokens)),
            ("bytes a token", f"{per_token.value:.3f}", f"{_sure(per_token)}; {tokens_a_byte}"),
            ("samples", _count(found.samples.value), ""),
            ("shards", bytes_text(found.shard_bytes.value), f"{found.shards:,} files"),
        ],
        console,
    )
    moved = f"fetched, {bytes_text(cost.uploaded)} uploaded"
    a_host = f", {bytes_text(cost.output / found.hosts)} a host" if found.hosts > 1 else ""
    rows = [
        ("on", f"{counted(found.hosts, 'host')} of {counted(found.workers, 'worker')}", ""),
        ("a worker does", f"{found.worker_rate / 1e6:.0f} MB/s", "of text, timed here"),
        ("time", _duration(cost.seconds), f"{cost.text_rate / 1e6:,.0f} MB/s of text"),
        ("decided by", _RESOURCES[cost.bottleneck], ""),
        *(
            ("", _duration(seconds), _reason(name, found))
            for name, seconds in sorted(cost.busy.items(), key=lambda item: -item[1])
            if seconds
        ),
        ("network", bytes_text(cost.fetched), moved),
        ("disk: output", bytes_text(cost.output), f"in all{a_host}"),
        ("disk: runs", bytes_text(cost.runs), "on the output, until it is published"),
        ("disk: scratch", bytes_text(cost.scratch), "on each host, at most"),
    ]
    left_out = {
        "network": not cost.fetched and not cost.uploaded,
        "disk: runs": not cost.runs,
    }
    show_facts((row for row in rows if not left_out.get(row[0])), console)
    say(
        console,
        f"From {bytes_text(found.sample_bytes)} of text of {counted(found.sample_files, 'file')}. "
        "± is the 95% interval of the sampling; it knows nothing of other machines.",
    )
    if found.unreadable:
        say(console, f"{counted(found.unreadable, 'file')} could not be read.", style="red")


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
    return duration_text(seconds) if seconds >= 60 else f"{seconds:.1f} s"
