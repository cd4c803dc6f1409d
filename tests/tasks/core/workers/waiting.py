"""Jobs that wait: their source is a named pipe, whose other end the test opens."""

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
    """A source at which a worker waits until it is let go."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.source = SourceFile(url=str(path), size=0)
        self._end = -1

    def reached(self) -> bool:
        """Return whether a worker has come to the source, and hold it there."""
        if self._end < 0:
            try:
                self._end = os.open(self.source.url, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno not in {errno.ENXIO, errno.ENOENT}:  # nobody reads it, or ever will
                    raise
        return self._end >= 0

    def let_go(self) -> None:
        """Let the worker come to the end of the file, which is then gone."""
        Path(self.source.url).unlink(missing_ok=True)
        if self._end >= 0:
            os.close(self._end)
            self._end = -1


def failed(future: "Future[Any]", kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        future.result(timeout=240)
