"""The engines of a process: at most as many as cores, made when they are first needed."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from streaming_ext.text.tokenizer.engine import Engine, choose_engine
from streaming_ext.text.tokenizer.prepared import read_unsafe_code_points
from streaming_ext.text.tokenizer.tokenizer import Tokenizer, open_saved


class Engines:
    """Lends an engine to a thread; none is inherited by a fork, nor sent to another process."""

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
        self._free: list[Engine] = []
        # More threads may fetch; an engine takes memory, and a second to be made.
        self._working = threading.BoundedSemaphore(os.cpu_count() or 1)

    def __getstate__(self) -> dict[str, object]:
        """What another process needs."""
        return {"_folder": self._folder, "_engine": self._engine}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Start without an engine."""
        self.__dict__.update(state)
        self._start()

    @contextlib.contextmanager
    def one(self) -> Iterator[tuple[Tokenizer, Engine]]:
        """The tokenizer, and an engine that nobody else has until the block ends."""
        if self._process != os.getpid():
            self._start()
        with self._working:
            with self._guard:
                tokenizer = self._tokenizer
                if tokenizer is None:
                    tokenizer = self._tokenizer = open_saved(self._folder)
                engine = self._free.pop() if self._free else None
            if engine is None:
                unsafe = read_unsafe_code_points(self._folder)
                engine = choose_engine(tokenizer, engine=self._engine, unsafe=unsafe)
            yield tokenizer, engine  # one that failed is not lent again
            with self._guard:
                self._free.append(engine)
