"""Workers of a DataLoader: how they start, what they send, and how they end."""

import multiprocessing
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkContext, ForkProcess
from multiprocessing.util import Finalize, _exit_function  # type: ignore[attr-defined]
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from streaming_ext.base.errors import (
    TransientStorageError,
    UsageError,
    WorkerDiedError,
    one_line,
)
from streaming_ext.base.kinds import count

# Torch looks for workers that died when this time without a message has passed. Without it, one
# that a fork server started is missed only when the whole timeout has.
_LOOK_SECONDS: Final = 5.0


def forks(context: Any) -> bool:
    """Return whether a `multiprocessing_context` of a DataLoader forks its workers."""
    if context is None:
        return multiprocessing.get_start_method() == "fork"
    return (context if isinstance(context, str) else context.get_start_method()) == "fork"


def pinned(value: Any) -> Any:
    """Dictionaries with their tensors in pinned memory, for copies to a GPU that overlap."""
    if isinstance(value, dict):
        return {name: pinned(one) for name, one in value.items()}
    return value.pin_memory() if isinstance(value, torch.Tensor) else value


def require_settings(*, num_workers: int, prefetch_factor: int, pin_memory: bool) -> None:
    """Refuse settings of a loader that cannot be.

    Raises:
        UsageError: names the one that is wrong.
    """
    count("num_workers", num_workers, least=0)
    count("prefetch_factor", prefetch_factor, least=1)
    if pin_memory and not torch.cuda.is_available():
        raise UsageError("pin_memory=True needs a GPU. Pass torch.cuda.is_available() instead.")


class Sendable:
    """Objects that workers get by value if they are not forked, with lambdas of a notebook too."""

    def __getstate__(self) -> bytes:
        """The attributes, pickled.

        Raises:
            UsageError: one cannot be sent.
        """
        import cloudpickle

        try:
            return cloudpickle.dumps(self.__dict__)  # type: ignore[no-any-return]
        except Exception as error:  # whatever the user's objects raise
            raise UsageError(
                f"This cannot be sent to a worker: {one_line(error)}. Leave that out of functions "
                "and samples, or open it within the function; or pass num_workers=0, or "
                "multiprocessing_context='fork'."
            ) from error

    def __setstate__(self, state: bytes) -> None:
        self.__dict__ = pickle.loads(state)  # noqa: S301 - made by this job


class _Begin(Sendable):
    def __init__(self, begin: Callable[[int], None]) -> None:
        self._begin = begin

    def __call__(self, worker: int) -> None:
        self._begin(worker)


class _Messages(IterableDataset[Any]):
    def __init__(self, make: Callable[[int, int], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make(*this_worker())


def this_worker() -> tuple[int, int]:
    """Number of this worker of a DataLoader, and the number of workers; 0 and 1 elsewhere."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def _as_it_is(message: Any) -> Any:
    return message


def messages_of(
    make: Callable[[int, int], Iterator[Any]],
    *,
    worker_init_fn: Callable[[int], None] | None = None,
    **settings: Any,
) -> Iterator[Any]:
    """The messages of the workers of a DataLoader, which end when this is closed.

    Args:
        make: makes the messages of a worker, from its number and the number of workers.
        worker_init_fn: called in each worker, with its number.
        settings: more of torch's DataLoader.

    Raises:
        TransientStorageError: none sends anything within the timeout.
        WorkerDiedError: one was killed.
    """

    def start(worker: int) -> None:
        end_with_parent()
        if worker_init_fn is not None:
            worker_init_fn(worker)

    patience = settings.pop("timeout", 0)
    begin: Callable[[int], None] | None = start
    if forks(settings.get("multiprocessing_context")):
        settings["multiprocessing_context"] = Forks()
    else:
        begin = worker_init_fn and _Begin(worker_init_fn)
    loader: DataLoader[Any] = DataLoader(
        _Messages(make),
        batch_size=None,
        collate_fn=_as_it_is,
        worker_init_fn=begin,
        timeout=min(patience, _LOOK_SECONDS),
        **settings,
    )
    iterator = iter(loader)
    try:
        yield from _within(patience, iterator)
    except RuntimeError as error:
        text = str(error)
        if "timed out" in text:
            raise TransientStorageError(
                f"No worker gave a batch within {patience:g} s. Look at the storage, or "
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


def _within(seconds: float, messages: Iterator[Any]) -> Iterator[Any]:
    """Messages that follow each other within this time, which is longer than torch's timeout."""
    heard = time.monotonic()
    while True:
        try:
            message = next(messages)
        except StopIteration:
            return
        except RuntimeError as error:
            if "timed out" in str(error) and time.monotonic() - heard < seconds:
                continue
            raise
        yield message
        heard = time.monotonic()


def end_with_parent() -> None:
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


def end_without_hooks() -> None:
    """Have a worker that is a fork end without the exit hooks of the process that it is a copy of.

    They wait for threads, which a copy lacks: those of Prefect end it with an error.
    """
    process = multiprocessing.current_process()
    # Without a context, the class of a process does not say how it was started.
    if isinstance(process, ForkProcess) or (
        isinstance(process, multiprocessing.Process) and forks(None)
    ):
        # The last, as others send what is left. A copy inherits the error that is being handled.
        Finalize(None, _end, [sys.exception()], exitpriority=-sys.maxsize)


class _Fork(ForkProcess):
    def run(self) -> None:
        super().run()
        # What is in its queues is sent first, and their locks are free for the other workers.
        _exit_function()
        _leave()


class Forks(ForkContext):
    """Has processes fork that end as `end_without_hooks` says, on Python 3.14 too."""

    Process = _Fork


def _end(inherited: BaseException | None) -> None:
    if sys.exception() is inherited:  # an error of its own is printed, and has an exit code
        _leave()


def _leave() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
