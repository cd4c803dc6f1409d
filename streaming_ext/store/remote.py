"""Reading the files of a dataset from where it is published, and saying truly why one cannot be."""

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from streaming_ext.base.errors import (
    CorruptDatasetError,
    DatasetError,
    StorageError,
    TransientStorageError,
)
from streaming_ext.store.client import OBJECT_STORES, ObjectClient, split_url
from streaming_ext.store.faults import client_errors, explained, is_missing
from streaming_ext.store.locations import require_no_secret
from streaming_ext.store.patience import Retry, insist, timeout_seconds
from streaming_ext.store.process_clients import client_of_process

Result = TypeVar("Result")

_ACCOUNT = re.compile(
    r"(?P<scheme>az|abfs)://(?P<container>[^/@:]+)@(?P<account>[^/@:.]+)\.[^/@:]+(?P<path>/.*|)"
)


class FileMissingError(DatasetError):
    """A file is not there, though the storage answers."""


def within(
    seconds: float, work: Callable[[], Result], *, what: str, failures: Sequence[object] = ()
) -> Result:
    """Run `work` and give up waiting after `seconds`: a stuck client must not stop training.

    Args:
        seconds: from now.
        work: what is to be done.
        what: its name for the message.
        failures: what went wrong meanwhile, told where the time runs out over it.

    Raises:
        TransientStorageError: it took longer.
    """
    outcome: list[Result] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True, name="shardmill-read")
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not outcome:
        raise TransientStorageError(
            f"{what} did not come within {seconds:.3g} s"
            + (f", at last because {failures[-1]}" if failures else ".")
            + " Check the storage and the link, or raise download_timeout."
        )
    return outcome[0]


@dataclass(kw_only=True)
class Remote:
    """The root of a published dataset on a disk or an object store.

    Attributes:
        url: a path or any URL that fsspec opens.
        options: handed to fsspec.
        retries: further attempts after a failure that may pass; 0 for none, else half a minute
            of them at least.
        timeout: seconds for one file, all attempts together.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold a secret
    retries: int = 2
    timeout: float = 60.0
    _silence: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Choose how long an object store may say nothing."""
        if not _ACCOUNT.fullmatch(self.url):
            require_no_secret(self.url, "remote")
        # So that a connection that hangs leaves time for another one.
        self._silence = min(timeout_seconds(), self.timeout / 3)

    @property
    def path(self) -> Path | None:
        """The folder, where this is one on a mounted disk."""
        scheme, separator, rest = self.url.partition("://")
        if not separator:
            return Path(self.url)
        return Path(rest) if scheme in {"file", "local"} else None

    def read(
        self, name: str, *, limit: int, seconds: float | None = None, waited: float = 0.0
    ) -> bytes:
        """The bytes of a file, at most `limit` and one more to show that there are more.

        Args:
            name: of the file, below the root.
            limit: bytes.
            seconds: for all attempts, in place of `timeout`.
            waited: seconds that others of this machine tried in vain, while this one waited.

        Raises:
            FileMissingError: there is no such file.
            StorageError: the storage refuses.
            TransientStorageError: it fails again after all retries.
        """
        where = f"{self.url.rstrip('/')}/{name}"
        seconds = self.timeout if seconds is None else seconds
        failures: list[TransientStorageError] = []
        deadline = time.monotonic() + seconds
        retry = Retry.training(self.retries)
        retry = replace(retry, seconds=retry.seconds - waited)

        def read() -> bytes:
            if self.url.partition("://")[0] in OBJECT_STORES:
                return self._read_object(
                    name, limit, where, retry=retry, deadline=deadline, failures=failures
                )

            def once() -> bytes:
                if (root := self.path) is not None:
                    return _read_file(root / name, limit, where)
                return self._read_through_fsspec(name, limit, where)

            return insist(once, retry, deadline=deadline, failures=failures)

        return within(seconds, read, what=where, failures=failures)

    def read_checked(self, name: str, checked: Callable[[bytes], Result], *, limit: int) -> Result:
        """What a file holds, after it was fetched once more where it came damaged.

        Raises:
            CorruptDatasetError: by `checked`, twice.
        """
        try:
            return checked(self.read(name, limit=limit))
        except CorruptDatasetError:
            return checked(self.read(name, limit=limit))

    def _read_object(
        self,
        name: str,
        limit: int,
        where: str,
        *,
        retry: Retry,
        deadline: float,
        failures: list[TransientStorageError],
    ) -> bytes:
        url, options = _account_of(self.url, self.options)
        scheme, bucket, prefix = split_url(url)
        client = ObjectClient(
            scheme=scheme,
            bucket=bucket,
            retry=retry,
            timeout=self._silence,
            options=options,
        )
        try:
            return client.read_at_most(
                f"{prefix}/{name}" if prefix else name,
                limit + 1,
                what=f"read {where}",
                deadline=deadline,
                failures=failures,
            )
        except FileNotFoundError as error:
            raise FileMissingError(f"{where} is missing.") from error

    def _read_through_fsspec(self, name: str, limit: int, where: str) -> bytes:
        """From a place that is no object store: what fails is taken for what may pass."""
        import fsspec

        def make() -> tuple[Any, str]:
            # fsspec's own memory of instances knows each thread apart.
            made: tuple[Any, str] = fsspec.core.url_to_fs(
                self.url, skip_instance_cache=True, **self.options
            )
            return made

        began = time.monotonic()
        try:
            client, path = client_of_process((self.url,), make, self.options)
            return bytes(client.cat_file(f"{path.rstrip('/')}/{name}", start=0, end=limit + 1))
        except ImportError as error:
            raise StorageError(
                f"Reading {where} needs a package that is not installed: {error}."
            ) from error
        except client_errors() as error:
            if is_missing(error) or isinstance(error, NotADirectoryError | IsADirectoryError):
                raise _missing(where, error) from error
            waited = time.monotonic() - began
            raise explained(error, what=f"read {where}", bucket="", seconds=waited) from error


def _read_file(path: Path, limit: int, where: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise _missing(where, error) from error
    except PermissionError as error:
        raise StorageError(f"{where}: access is refused ({error}). Check its rights.") from error
    except OSError as error:
        raise TransientStorageError(f"{where} cannot be read ({error}).") from error


def _missing(where: str, error: Exception) -> FileMissingError:
    return FileMissingError(f"{where} is missing ({type(error).__name__}: {error}).")


def _account_of(url: str, options: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Azure's other way to write a URL, `abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/...`."""
    match = _ACCOUNT.fullmatch(url)
    if match is None:
        return url, options
    return f"{match['scheme']}://{match['container']}{match['path']}", {
        "account_name": match["account"],
        **options,
    }
