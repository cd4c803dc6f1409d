"""A process that draws a run's pictures, made ready while the run works.

Drawing takes more than a second, and most of that is loading matplotlib.
"""

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from flows.dashboard.drawing import load_drawing
from streaming_ext.errors import ShardmillError
from streaming_ext.own_module import start_module
from tasks.core.reporting.figures import Figures

_MOST_SECONDS = 60.0  # for drawing; the dataset is done, and nobody waits for its report for ever


class DrawingError(ShardmillError):
    """The process that draws did not draw."""


_beside: ContextVar["subprocess.Popen[bytes] | None"] = ContextVar("drawn_beside", default=None)


@contextmanager
def drawing_beside() -> Iterator[None]:
    """Have the pictures of the block, once, drawn by a process that ends with it."""
    with start_module(
        "flows.dashboard.drawn_beside",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl+C is not for it
    ) as process:
        token = _beside.set(process)
        try:
            yield
        finally:
            _beside.reset(token)
            process.kill()


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
        charts, said = beside.communicate(pickle.dumps(figures), timeout=_MOST_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise DrawingError(f"its pictures are not drawn within {_MOST_SECONDS:.0f} s") from error
    if beside.returncode:
        words = said.decode(errors="replace").splitlines() or ["the process that draws was killed"]
        raise DrawingError(f"its pictures cannot be drawn: {words[-1]}")
    return dict(json.loads(charts))


def main() -> None:
    """Draw the figures that come through standard input."""
    load_drawing()
    from flows.dashboard.charts import draw_charts

    try:
        figures = pickle.load(sys.stdin.buffer)  # noqa: S301  (of the command itself)
    except EOFError:
        return  # the command is over
    json.dump(draw_charts(figures), sys.stdout)


if __name__ == "__main__":
    main()
