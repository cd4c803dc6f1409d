"""Workers of a DataLoader: their start, their messages and their end."""

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

# Torch looks for dead workers after this time without a message. With the whole timeout instead, it
# would notice the death of a worker that a fork server started only after that.
_LOOK_SECONDS: Final = 5.0


def forks(context: Any) -> bool:
    """Return whether a `multiprocessing_context` of a DataLoader forks its workers."""
    if context is None:
        return multiprocessing.get_start_method() == "fork"
    return (context if isinstance(context, str) else context.get_start_method()) == "fork"


def pinned(value: Any) -> Any:
    """Pin the memory of tensors in dictionaries, for asynchronous copies to a GPU."""
    if isinstance(value, dict):
        return {name: pinned(one) for name, one in value.items()}
    return value.pin_memory() if isinstance(value, torch.Tensor) else value


def require_settings(*, num_workers: int, prefetch_factor: int, pin_memory: bool) -> None:
    """Refuse invalid settings of a loader.

    Raises:
        UsageError: a setting is invalid; the message names it.
    """
    count("num_workers", num_workers, least=0)
    count("prefetch_factor", prefetch_factor, least=1)
    if pin_memory and not torch.cuda.is_available():
        raise UsageError("pin_memory=True needs a GPU. Pass torch.cuda.is_available() instead.")


class Sendable:
    """A base of objects that unforked workers get by value, even with a notebook's lambdas."""

    def __getstate__(self) -> bytes:
        """Pickle the attributes.

        Raises:
            UsageError: an attribute cannot be sent.
        """
        import cloudpickle

        try:
            return cloudpickle.dumps(self.__dict__)  # type: ignore[no-any-return]
        except Exception as error:  # the user's objects may raise any error
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
    """Return the number of this DataLoader worker, and of all workers; 0 and 1 elsewhere."""
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
    """Yield the messages of a DataLoader's workers, which end when this iterator is closed.

    Args:
        make: the function that makes messages, given a worker's number and the number of workers.
        worker_init_fn: the function that is called in each worker, with its number.
        settings: further settings of torch's DataLoader.

    Raises:
        TransientStorageError: no worker sends a message within the timeout.
        WorkerDiedError: a worker was killed.
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
                f"A worker died while it made a batch: {text.rstrip('. ')}. If it printed an error "
                "above, that is the cause; a script whose workers are not forked needs `if "
                '__name__ == "__main__":`. If it was killed for memory, lower num_workers. Resume '
                "from the last state."
            ) from error
        raise
    finally:
        # If the garbage collector ends the workers, they may never end, and torch waits five
        # seconds for each of them.
        iterator._shutdown_workers()  # type: ignore[attr-defined]


def _within(seconds: float, messages: Iterator[Any]) -> Iterator[Any]:
    """Yield messages that are at most `seconds` apart; torch's own timeout is shorter."""
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

    Torch checks this too. But if the parent dies before a worker's first check, torch takes the
    process that inherited the worker for the parent, and the worker never ends. A process pool does
    not check: each of its workers holds an end of the pipe on which it waits.
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
    """Make a forked worker end without the exit hooks that it inherited.

    The hooks wait for threads, which a fork lacks: Prefect's hooks end it with an error.
    """
    process = multiprocessing.current_process()
    # Without a context, the class of a process does not say how it was started.
    if isinstance(process, ForkProcess) or (
        isinstance(process, multiprocessing.Process) and forks(None)
    ):
        # This runs last: others send remaining data. A fork inherits the error being handled.
        Finalize(None, _end, [sys.exception()], exitpriority=-sys.maxsize)


class _Fork(ForkProcess):
    def run(self) -> None:
        super().run()
        # First send what is in its queues, and free their locks for the other workers.
        _exit_function()
        _leave()


class Forks(ForkContext):
    """A context of forked processes that end like `end_without_hooks`, on Python 3.14 too."""

    Process = _Fork


def _end(inherited: BaseException | None) -> None:
    if sys.exception() is inherited:  # an error of its own must be printed and set the exit code
        _leave()


def _leave() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
