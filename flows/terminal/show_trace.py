"""What `shardmill trace` tells, on the terminal."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from flows.terminal.visible import visible
from streaming_ext.trace import DocumentVisit, SequenceTrace


def show_trace(traces: Iterable[SequenceTrace], console: Console, *, streams: int) -> None:
    """The sequences of a step of some streams, rank by rank, with the documents that each holds."""
    for trace in traces:
        stream = f" of stream {trace.stream}" if streams > 1 else ""
        title = f"rank {trace.rank}: sequence {trace.sequence}{stream}"
        console.print(Text(title, style="bold cyan"), soft_wrap=True)
        for span in trace.spans:
            console.print(
                Text(
                    f"  token {span.place}: {span.tokens} tokens of "
                    f"{visible(str(span.document))}, from its token {span.first} on"
                ),
                soft_wrap=True,
            )


def show_visits(visits: Sequence[DocumentVisit], console: Console, *, streams: int) -> None:
    """The steps that hold a document, a line a piece."""
    if not visits:
        console.print("No step of this epoch holds it: it was excluded, or is left out at its end.")
    for visit in visits:
        span = visit.span
        stream = f" of stream {visit.stream}" if streams > 1 else ""
        console.print(
            Text(
                f"step {visit.step}, rank {visit.rank}: sequence {visit.sequence}{stream}, token "
                f"{span.place}: {span.tokens} tokens of it, from its token {span.first} on"
            ),
            soft_wrap=True,
        )
