"""Fanning out a chain of tasks per part, a bounded number of parts at a time.

Thousands of task runs submitted at once swamp a thread pool and the server behind it.
"""

import queue
from collections.abc import Iterable, Iterator
from typing import Any

from prefect.futures import PrefectFuture
from prefect.states import State

from tasks.download import download
from tasks.run import Part, Run
from tasks.tokenize import tokenize
from tasks.write import write

Chain = dict[str, PrefectFuture[Any]]  # step -> its task


def done_in_any_order(
    run: Run, parts: Iterable[Part], *, at_once: int
) -> Iterator[tuple[Part, dict[str, State[Any]]]]:
    """Submit download, tokenize and write for each part; yield parts as they end, well or not.

    Args:
        run: what the tasks share.
        parts: in the order to begin them.
        at_once: parts between download and record at any moment.
    """
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    begun: dict[int, tuple[Part, Chain]] = {}
    waiting = iter(parts)

    def begin() -> None:
        part = next(waiting, None)
        if part is None:
            return
        downloaded = download.submit(run, part)
        tokenized = tokenize.submit(run, part, downloaded)  # type: ignore[arg-type]
        written = write.submit(run, part, tokenized)  # type: ignore[arg-type]
        begun[part.number] = part, {
            "download": downloaded,
            "tokenize": tokenized,
            "write": written,
        }
        written.add_done_callback(lambda _: ended.put(part.number))

    for _ in range(at_once):
        begin()
    while begun:
        part, chain = begun.pop(ended.get())
        for future in chain.values():
            future.wait()  # before that, its state may still read as pending
        yield part, {step: future.state for step, future in chain.items()}
        begin()
