"""A process that draws a run's pictures, made ready while the run works.

Drawing takes more than a second, and most of that is loading matplotlib.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from flows.dashboard.drawing import load_drawing
from flows.forked import fork
from streaming_ext.errors import ShardmillError
from tasks.core.reporting.figures import Figures

_NICENESS = 5  # a picture may wait for tokens
_MOST_SECONDS = 60.0  # for drawing; the dataset is done, and nobody waits for its report for ever


class DrawingError(ShardmillError):
    """The process that draws did not draw."""


_beside: ContextVar[Connection | None] = ContextVar("drawn_beside", default=None)


@contextmanager
def drawing_beside() -> Iterator[None]:
    """Have the pictures of the block drawn by a fork, which ends with it.

    To be entered before there are threads.
    """
    here, there = Pipe()
    pid = fork(lambda: _draw(there), keep={there.fileno()})
    there.close()
    token = _beside.set(here)
    try:
        yield
    finally:
        _beside.reset(token)
        here.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def drawn(figures: Figures) -> dict[str, str]:
    """Title -> SVG, as `draw_charts`, by the process beside this one where there is one.

    Raises:
        DrawingError: it is gone, or cannot.
    """
    beside = _beside.get()
    if beside is None:
        from flows.dashboard.charts import draw_charts

        return draw_charts(figures)
    try:
        beside.send(figures)
        if not beside.poll(_MOST_SECONDS):
            raise DrawingError(f"its pictures are not drawn within {_MOST_SECONDS:.0f} s")
        charts: dict[str, str] | str = beside.recv()
    except (EOFError, BrokenPipeError, ConnectionResetError) as error:
        raise DrawingError("the process that draws its pictures ended") from error
    if isinstance(charts, str):
        raise DrawingError(f"its pictures cannot be drawn: {charts}")
    return charts


def _draw(pipe: Connection) -> None:
    os.nice(_NICENESS)
    load_drawing()
    from flows.dashboard.charts import draw_charts

    try:
        while True:
            figures = pipe.recv()
            try:
                pipe.send(draw_charts(figures))
            except Exception as error:  # noqa: BLE001  it is told by who waits for it
                pipe.send(f"{type(error).__name__}: {error}")
    except (EOFError, ConnectionResetError, BrokenPipeError):
        return  # the command is over
