"""Jobs that wait: a source that is a named pipe, until the test opens the other end."""

import errno
import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from streaming_ext.text.sources import SourceFile
from tasks.core.workers.tokenize_part import TokenizeJob

MakeJob = Callable[..., TokenizeJob]
GONE = "(?i)no such file or directory"


class Waiting:
    """A source that a worker waits for, until it is let go."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.source = SourceFile(url=str(path), size=0)
        self._end = -1

    def reached(self) -> bool:
        """Whether a worker has come to it; it is held there."""
        if self._end < 0:
            try:
                self._end = os.open(self.source.url, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno not in {errno.ENXIO, errno.ENOENT}:  # nobody reads it, or ever will
                    raise
        return self._end >= 0

    def let_go(self) -> None:
        """The worker comes to the end of the file, and then finds it gone."""
        Path(self.source.url).unlink(missing_ok=True)
        if self._end >= 0:
            os.close(self._end)
            self._end = -1


def failed(future: "Future[Any]", kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        future.result(timeout=240)
