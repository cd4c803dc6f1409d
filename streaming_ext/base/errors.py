"""Every error that Shardmill raises on purpose, as one tree; callers catch by type.

    ShardmillError
        UsageError
            ConfigMismatchError
            MissingExtraError           also an ImportError
            TokenizerError
                MissingTokenError
        SourceError
            DamagedSourceError
        EngineMismatchError
        WorkerDiedError
        StoppedError
        PartsFailedError
        InternalError
        StorageError
            ScratchError
            TransientStorageError
                HeldError
        StorageDownError
        DatasetError
            FileMissingError
            CorruptDatasetError
            NewerVersionError           also a ConfigMismatchError
            NotADatasetError
                MissingFolderError      also a UsageError
        CannotTakePartError
        UnreachableError
        LostSightError

`transient` is True if the same work may succeed when it is repeated. `fatal` is True if every other
file of the run would fail in the same way.
"""

import os
import shlex
from collections.abc import Iterable
from difflib import get_close_matches


class ShardmillError(Exception):
    """The base of all errors with a message for the user, who can act on it without a traceback."""

    transient = False
    fatal = False


class UsageError(ShardmillError):
    """The request itself is wrong: an argument, a configuration, a name that matches nothing."""


class ConfigMismatchError(UsageError):
    """The request contradicts what exists; the message lists the fields."""


class MissingExtraError(UsageError, ImportError):
    """A package is not installed; an extra of this distribution brings it."""


class TokenizerError(UsageError):
    """A tokenizer cannot be found, read or trusted."""


class MissingTokenError(TokenizerError):
    """A tokenizer lacks a special token that belongs around each document.

    Attributes:
        token: the missing token, if only one was wanted.
    """

    token: str | None = None


class SourceError(ShardmillError):
    """A source file cannot be read: missing, truncated, corrupt, or not what its listing said."""


class DamagedSourceError(SourceError):
    """The bytes received differ from the listing, or from the hash that the server reports."""


class EngineMismatchError(ShardmillError):
    """The fast tokenizer engine and the reference disagree on a document."""


class WorkerDiedError(ShardmillError):
    """A worker process ended in the middle of a job, usually killed for memory."""

    transient = True


class StoppedError(ShardmillError):
    """The run is being stopped: its work was abandoned but did not fail."""


class PartsFailedError(ShardmillError):
    """Some parts of a run failed; the others are kept."""


class InternalError(ShardmillError):
    """A defect of Shardmill itself: an exception that nobody expected, with its traceback."""


class StorageError(ShardmillError):
    """Storage refuses; this is fatal since every other file goes to the same storage."""

    fatal = True


class ScratchError(StorageError):
    """The scratch folder of this host is full or cannot be written; another host's may work."""


class TransientStorageError(StorageError):
    """Storage fails for a while: throttling, a cut connection, a time-out.

    Attributes:
        silent: True if no answer came at all.
        asks_to_wait: seconds that the server asks for before the next request.
    """

    transient = True
    fatal = False
    silent: bool = False
    asks_to_wait: float = 0.0


class HeldError(TransientStorageError):
    """Another thread or process holds a lock."""


class StorageDownError(ShardmillError):
    """Storage failed too many files in a row: the others would fail too."""

    fatal = True


class DatasetError(ShardmillError):
    """A dataset on storage is missing, unfinished or damaged."""


class FileMissingError(DatasetError):
    """A file does not exist, though the storage answers."""


class CorruptDatasetError(DatasetError):
    """A file of a published dataset differs from its description in the manifest."""


class NewerVersionError(DatasetError, ConfigMismatchError):
    """A newer shardmill made the dataset or state; this version cannot read it."""


class NotADatasetError(DatasetError):
    """There is no published dataset at this location."""


class MissingFolderError(NotADatasetError, UsageError):
    """There is nothing at the location that was named as a dataset."""


class CannotTakePartError(ShardmillError):
    """This host cannot work for a run; another one may."""


class UnreachableError(ShardmillError):
    """The configured Prefect server does not answer, or refuses."""


class LostSightError(ShardmillError):
    """The Prefect server no longer reports on a run that was submitted; it may continue."""


def command(*words: object) -> str:
    """Return a `shardmill` command for a message, quoted so that it can be pasted into a shell."""
    return f"`shardmill {shlex.join(map(str, words))}`"


def option_name(field: str) -> str:
    """Return the command-line option that sets a field of a configuration: `--shard-size`."""
    return f"--{field.replace('_', '-')}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Ask whether the user meant the known name nearest to `name`; return "" if none is near."""
    found = get_close_matches(name, list(known), n=1)
    return f" Did you mean {found[0]}?" if found else ""


def reason_of(error: OSError) -> str:
    """Return the operating system's own message, which other libraries wrap in theirs."""
    return (os.strerror(error.errno) if error.errno else one_line(error)).lower()


def one_line(error: BaseException, *, limit: int = 400) -> str:
    """Return the message of an error without line breaks, cut if it is long."""
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= limit else f"{text[:limit]} ..."
