"""Reading of the files of a published dataset, with a time limit and the true cause of failures."""

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from streaming_ext.base.errors import (
    CorruptDatasetError,
    FileMissingError,
    StorageError,
    TransientStorageError,
)
from streaming_ext.store.faults import ask, words_of
from streaming_ext.store.locations import require_no_secret
from streaming_ext.store.patience import Attempts, Retry, timeout_seconds

if TYPE_CHECKING:
    from streaming_ext.store.buckets import Bucket

Result = TypeVar("Result")

_ACCOUNT = re.compile(
    r"(?P<scheme>az|abfs)://(?P<container>[^/@:]+)@(?P<account>[^/@:.]+)\.[^/@:]+(?P<path>/.*|)"
)


def within(
    seconds: float,
    work: Callable[[], Result],
    *,
    what: str,
    attempts: Attempts | None = None,
    waited: float = 0.0,
) -> Result:
    """Run `work`, but wait at most `seconds`, since a stuck client must not stop training.

    Args:
        seconds: the time limit, from now.
        work: the function to run.
        what: name of the file that `work` reads, for the message.
        attempts: the attempts of `work`; the message includes their last failure.
        waited: seconds for which others tried in vain before, for the message.

    Raises:
        TransientStorageError: `work` took longer.
    """
    results: list[Result] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True, name="shardmill-read")
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not results:
        cause = f", at last because {attempts.last}" if attempts and attempts.last else "."
        late = TransientStorageError(
            f"{what} did not come within {waited + seconds:.3g} s{cause} Check the storage and the "
            "link, or raise download_timeout."
        )
        late.silent = True
        raise late
    return results[0]


@dataclass(kw_only=True)
class Remote:
    """The root of a published dataset on a disk or an object store.

    Attributes:
        url: a path, or any URL that fsspec opens.
        options: the user's `storage_options`. fsspec reads the dataset if our client does not take
            all of them, or if the scheme is not one of an object store.
        retries: further attempts after a failure that may pass; unless 0, reading is retried for at
            least half a minute.
        timeout: seconds for all attempts to read one file.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold a secret
    retries: int = 2
    timeout: float = 60.0

    def __post_init__(self) -> None:
        """Refuse a URL that holds a secret."""
        if not _ACCOUNT.fullmatch(self.url):
            require_no_secret(self.url, "remote")

    @property
    def path(self) -> Path | None:
        """The folder of a dataset on a mounted disk; None for others."""
        scheme, separator, rest = self.url.partition("://")
        if not separator:
            return Path(self.url)
        return Path(rest) if scheme in {"file", "local"} else None

    def read(
        self, name: str, *, limit: int, seconds: float | None = None, waited: float = 0.0
    ) -> bytes:
        """Read a file, but at most `limit` bytes and one more, which shows that there are more.

        Args:
            name: the name of the file, below the root.
            limit: the limit in bytes.
            seconds: the time limit of all attempts, instead of `timeout`.
            waited: seconds for which another process of this machine tried in vain while this one
                waited.

        Raises:
            FileMissingError: there is no such file.
            StorageError: the storage refuses.
            TransientStorageError: the last attempt failed.
        """
        where = f"{self.url.rstrip('/')}/{name}"
        seconds = self.timeout if seconds is None else seconds
        retry = Retry.training(self.retries, waited=waited)
        attempts = Attempts(retry, deadline=time.monotonic() + seconds)

        def read() -> bytes:
            try:
                if (found := self._bucket()) is not None:
                    bucket, prefix = found
                    key = f"{prefix}/{name}" if prefix else name
                    return bucket.read_at_most(key, limit + 1, attempts)
                return ask(f"read {where}", lambda: self._read_once(name, limit), attempts)
            except FileNotFoundError as error:
                raise FileMissingError(f"{where} is missing.") from error

        return within(seconds, read, what=where, attempts=attempts, waited=waited)

    def read_checked(self, name: str, checked: Callable[[bytes], Result], *, limit: int) -> Result:
        """Return the result of `checked` for a file; fetch the file once more if it is damaged.

        Raises:
            CorruptDatasetError: `checked` raised it twice.
        """
        try:
            return checked(self.read(name, limit=limit))
        except CorruptDatasetError:
            return checked(self.read(name, limit=limit))

    def _bucket(self) -> "tuple[Bucket, str] | None":
        """Return the bucket and the prefix in it; None if fsspec or the disk is used instead."""
        if self.path is not None:
            return None
        from streaming_ext.store.buckets import OBJECT_STORES, Bucket, split_url, store_type

        url, options = self.url, dict(self.options)
        if match := _ACCOUNT.fullmatch(url):
            url = f"{match['scheme']}://{match['container']}{match['path']}"
            options.setdefault("account_name", match["account"])
        scheme = url.partition("://")[0]
        if scheme not in OBJECT_STORES or not options.keys() <= store_type(scheme).OPTIONS:
            return None
        # If a connection hangs, this leaves time for another one.
        timeout = min(timeout_seconds(), self.timeout / 3)
        scheme, name, prefix = split_url(url)
        return Bucket(scheme=scheme, name=name, timeout=timeout, options=options), prefix

    def _read_once(self, name: str, limit: int) -> bytes:
        try:
            if (root := self.path) is not None:
                with (root / name).open("rb") as file:
                    return file.read(limit + 1)
            from streaming_ext.store.process_clients import client_of_process

            client, path = client_of_process((self.url,), self._open, self.options)
            return bytes(client.cat_file(f"{path.rstrip('/')}/{name}", start=0, end=limit + 1))
        except ImportError as error:
            raise StorageError(
                f"Reading {self.url} needs a package that is not installed: {words_of(error)}."
            ) from error

    def _open(self) -> tuple[Any, str]:
        import fsspec

        # fsspec's own cache would make an instance per thread.
        made: tuple[Any, str] = fsspec.core.url_to_fs(
            self.url, skip_instance_cache=True, **self.options
        )
        return made
