"""Workers of a DataLoader: how they start, what they send, and how they end."""

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from streaming_ext.base.errors import TransientStorageError, WorkerDiedError


def forks(context: Any) -> bool:
    """Whether workers are forked, of what a DataLoader takes as `multiprocessing_context`."""
    if context is None:
        return multiprocessing.get_start_method() == "fork"
    return (context if isinstance(context, str) else context.get_start_method()) == "fork"


def as_it_is(message: Any) -> Any:
    """A collate function that leaves messages alone."""
    return message


def messages_of(loader: DataLoader[Any]) -> Iterator[Any]:
    """The messages of workers, which end when this is closed.

    Raises:
        TransientStorageError: none sends anything within the timeout.
        WorkerDiedError: one was killed.
    """
    iterator = iter(loader)
    try:
        yield from iterator
    except RuntimeError as error:
        text = str(error)
        if "timed out" in text:
            raise TransientStorageError(
                f"No worker gave a batch within {loader.timeout:g} s. Look at the storage, or "
                "raise timeout=."
            ) from error
        if "DataLoader worker" in text and ("exited" in text or "killed" in text):
            raise WorkerDiedError(
                f"A worker died while it made a batch: {text} Resume from the last state; if "
                "it was killed for memory, lower num_workers."
            ) from error
        raise
    finally:
        # Left to the garbage collector, workers may never end, and torch waits
        # five seconds for each of them.
        iterator._shutdown_workers()  # type: ignore[attr-defined]


def end_with_parent(_: int = 0) -> None:
    """End this forked process when its parent is gone.

    Torch looks too, but if the parent dies before a worker first looks, it takes the process that
    inherited the worker for its parent, and the worker never ends. A pool of processes does
    not look: each of its workers holds an end of the pipe that it waits at.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch(pid: int | None) -> None:
        while os.getppid() == pid:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, args=(parent.pid,), daemon=True).start()
