"""Putting several files at once, beside the work that makes them."""

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from tasks.core.storage.contract import Storage

Put = Callable[[str, Path], None]


@contextmanager
def uploads(storage: Storage, *, lasting: bool = True) -> Iterator[Put]:
    """Yields a `put` that may come back before the file is there; at the end all of them are.

    As many files are under way, and in memory, as the storage has use for.

    Args:
        storage: where they go.
        lasting: see `Storage.put_file`.

    Raises:
        StorageError: one of them could not be put; those under way are waited for.
    """
    at_once = storage.puts_at_once
    running: set[Future[None]] = set()

    def put(path: str, file: Path) -> None:
        nonlocal running
        if len(running) == at_once:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
        running.add(threads.submit(storage.put_file, path, file, lasting=lasting))

    with ThreadPoolExecutor(at_once, thread_name_prefix="shardmill-put") as threads:
        yield put
        for future in running:
            future.result()
