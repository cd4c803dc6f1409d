"""What `shardmill trace` tells, on the terminal."""

from collections.abc import Iterable, Sequence

from rich.console import Console

from flows.terminal.visible import say
from streaming_ext.training.trace import DocumentVisit, SequenceTrace


def show_trace(traces: Iterable[SequenceTrace], console: Console, *, streams: int) -> None:
    """The sequences of a step of some streams, rank by rank, with the documents that each holds."""
    for trace in traces:
        stream = f" of stream {trace.stream}" if streams > 1 else ""
        say(console, f"rank {trace.rank}: sequence {trace.sequence}{stream}", style="bold cyan")
        for span in trace.spans:
            held = f"{span.tokens} tokens of {span.document}, from its token {span.first} on"
            say(console, f"  token {span.position}: {held}")


def show_visits(visits: Sequence[DocumentVisit], console: Console, *, streams: int) -> None:
    """The steps that hold a document, a line a piece."""
    if not visits:
        say(console, "No step of this epoch holds it: it was excluded, or is left out at its end.")
    for visit in visits:
        span = visit.span
        stream = f" of stream {visit.stream}" if streams > 1 else ""
        where = f"step {visit.step}, rank {visit.rank}: sequence {visit.sequence}{stream}"
        held = f"{span.tokens} tokens of it, from its token {span.first} on"
        say(console, f"{where}, token {span.position}: {held}")
