"""The engines of a process: at most as many as cores, made when they are first needed.

Each works in a thread of its own, whoever asks. What an engine remembers of words is freed when it
begins anew, and the C library keeps that for the thread that asked for it: in eight threads that
took turns it was eight times as much.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

from streaming_ext.text.tokenizer.engine import Engine, choose_engine
from streaming_ext.text.tokenizer.prepared import read_unsafe_code_points
from streaming_ext.text.tokenizer.tokenizer import Tokenizer, open_saved

Result = TypeVar("Result")
Work = Callable[[Tokenizer, Engine], Result]


class _Desk:
    """An engine, and the thread that works with it."""

    def __init__(self, tokenizer: Tokenizer, make: Callable[[], Engine]) -> None:
        self._thread = ThreadPoolExecutor(1, "shardmill-engine")
        self._tokenizer, self._make = tokenizer, make
        self._engine: Engine | None = None

    def run(self, work: Work[Result]) -> Result:
        """Have some work done there."""
        return self._thread.submit(self._work, work).result()

    def _work(self, work: Work[Result]) -> Result:
        if self._engine is None:
            self._engine = self._make()
        return work(self._tokenizer, self._engine)

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False)


class Engines:
    """Has work done with engines; none is inherited by a fork, nor sent to another process."""

    def __init__(self, folder: Path, *, engine: Literal["auto", "reference"]) -> None:
        """Load nothing yet.

        Args:
            folder: of the tokenizer, see `save_tokenizer`.
            engine: see `choose_engine`.
        """
        self._folder = folder
        self._engine: Literal["auto", "reference"] = engine
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._tokenizer: Tokenizer | None = None
        self._free: list[_Desk] = []
        # More threads may fetch; an engine takes memory, and a second to be made.
        self._working = threading.BoundedSemaphore(os.cpu_count() or 1)

    def __getstate__(self) -> dict[str, object]:
        """What another process needs."""
        return {"_folder": self._folder, "_engine": self._engine}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Start without an engine."""
        self.__dict__.update(state)
        self._start()

    def run(self, work: Work[Result]) -> Result:
        """What `work` makes of the tokenizer, and of an engine that nobody else has meanwhile."""
        if self._process != os.getpid():
            self._start()
        with self._working:
            with self._guard:
                tokenizer = self._tokenizer
                if tokenizer is None:
                    tokenizer = self._tokenizer = open_saved(self._folder)
                desk = self._free.pop() if self._free else None
            if desk is None:
                desk = _Desk(tokenizer, lambda: self._made(tokenizer))
            try:
                result = desk.run(work)
            except BaseException:
                desk.close()  # an engine that failed does no more work
                raise
            with self._guard:
                self._free.append(desk)
            return result

    def _made(self, tokenizer: Tokenizer) -> Engine:
        unsafe = read_unsafe_code_points(self._folder)
        return choose_engine(tokenizer, engine=self._engine, unsafe=unsafe)
