"""Reading the files of a dataset from where it is published, and saying truly why one cannot be."""

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from streaming_ext.errors import (
    DatasetError,
    NotADatasetError,
    ShardmillError,
    StorageError,
    TransientStorageError,
)

Result = TypeVar("Result")

_FIRST_PAUSE = 0.2  # seconds between the first attempt and the second
_S3_CONFIG = {"connect_timeout": 10, "read_timeout": 20, "retries": {"max_attempts": 1}}
_REFUSED = ("AccessDenied", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch", "403",
            "Unable to locate credentials", "NoCredentials")  # fmt: skip
_NO_BUCKET = ("NoSuchBucket", "BucketNotFound")


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
            f"{what} did not come within {seconds:g} s"
            + (f", at last because {failures[-1]}" if failures else ".")
            + " Check the storage and the link, or raise download_timeout."
        )
    return outcome[0]


class _Clients:
    """One client for each dataset, whatever thread asks: to make one takes longer than a shard."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._made: dict[tuple[str, str], tuple[Any, str]] = {}

    def of(self, url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
        """The client for a URL, and how it calls the place there."""
        with self._guard:
            key = url, repr(options)
            if key not in self._made:
                self._made[key] = self._make(url, options)
            return self._made[key]

    def _make(self, url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
        import fsspec

        # fsspec's own memory of instances knows each thread apart.
        client, path = fsspec.core.url_to_fs(url, skip_instance_cache=True, **options)
        if hasattr(client, "set_session"):  # s3fs
            client.retries = 1  # by itself it tries five times, in silence
            client.connect()  # else threads that ask together make a connection pool each
        return client, path


# Those of this process are the last ones. Those of its parents are kept: a forked worker that lets
# go of its copy of a client closes connections, and with them takes those of the parent out of the
# poll set that both share: the parent's next read would wait for its time-out.
_clients = [_Clients()]
os.register_at_fork(after_in_child=lambda: _clients.append(_Clients()))


@dataclass(kw_only=True)
class Remote:
    """The root of a published dataset on a disk or an object store.

    Attributes:
        url: a path or any URL that fsspec opens.
        options: handed to fsspec.
        retries: further attempts after a failure that may pass.
        timeout: seconds for one file, all attempts together.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold a secret
    retries: int = 2
    timeout: float = 60.0

    @property
    def path(self) -> Path | None:
        """The folder, where this is one on a mounted disk."""
        scheme, separator, rest = self.url.partition("://")
        if not separator:
            return Path(self.url)
        return Path(rest) if scheme in {"file", "local"} else None

    def read(self, name: str, *, limit: int) -> bytes:
        """The bytes of a file, at most `limit` and one more to show that there are more.

        Raises:
            FileMissingError: there is no such file.
            StorageError: the storage refuses.
            TransientStorageError: it fails again after all retries.
        """
        failures: list[TransientStorageError] = []
        return within(self.timeout, lambda: self._with_retries(name, limit, failures),
                      what=self._label(name), failures=failures)  # fmt: skip

    def _label(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"

    def _with_retries(self, name: str, limit: int, failures: list[TransientStorageError]) -> bytes:
        deadline = time.monotonic() + self.timeout
        attempt = 0
        while True:
            try:
                return self._read_once(name, limit)
            except TransientStorageError as error:
                failures.append(error)
                # Jitter keeps the ranks of a job from asking again at the same moment.
                pause = _FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1.5)  # noqa: S311
                if attempt >= self.retries or time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
                attempt += 1

    def _read_once(self, name: str, limit: int) -> bytes:
        where = self._label(name)
        try:
            if (root := self.path) is not None:
                with (root / name).open("rb") as file:
                    return file.read(limit + 1)
            client, path = _clients[-1].of(self.url, self._options())
            return bytes(client.cat_file(f"{path.rstrip('/')}/{name}", start=0, end=limit + 1))
        except ImportError as error:
            raise StorageError(
                f"Reading {where} needs a package that is not installed: {error}. "
                "For s3:// install shardmill[s3]."
            ) from error
        except _client_errors() as error:
            raise _translated(error, where) from error

    def _options(self) -> dict[str, Any]:
        if not self.url.startswith(("s3://", "s3a://")):
            return dict(self.options)
        config = {**_S3_CONFIG, **self.options.get("config_kwargs", {})}
        return {**self.options, "config_kwargs": config}


def _client_errors() -> tuple[type[Exception], ...]:
    """What the clients in use raise; those that are not loaded cannot raise anything."""
    errors: list[type[Exception]] = [OSError, TimeoutError]
    if "botocore.exceptions" in sys.modules:
        from botocore.exceptions import (  # type: ignore[import-untyped]
            BotoCoreError,
            ClientError,
        )

        errors += [BotoCoreError, ClientError]
    if "aiohttp" in sys.modules:
        from aiohttp import ClientError as HttpError

        errors += [HttpError]
    return tuple(errors)


def _translated(error: Exception, where: str) -> ShardmillError:
    first = error.__cause__ or error  # s3fs leaves S3's own code to the cause
    text = f"{type(first).__name__}: {first}"
    if any(word in text for word in _NO_BUCKET):
        return StorageError(f"{where}: there is no such bucket ({text}).")
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return FileMissingError(f"{where} is missing ({text}).")
    if isinstance(error, PermissionError) or any(word in text for word in _REFUSED):
        return StorageError(
            f"{where}: access is refused ({text}). Check the credentials and their rights."
        )
    return TransientStorageError(f"{where} cannot be read ({text}).")


def not_a_dataset(url: str, what: str) -> NotADatasetError:
    """The error for a place that holds no dataset."""
    return NotADatasetError(
        f"There is no dataset at {url}: {what}. Give the folder that holds manifest.json, or wait "
        "until the run that writes it has finished."
    )
