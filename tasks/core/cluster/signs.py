"""Signs of life that the hosts of a run put on the storage of the dataset, which all of them reach.

Below `runs/RUN/`:

    plan.json       what is to be done, the same for every partition
    parent.json     the sign of life of the run that plans and publishes
    00003-1.json    that of partition 3 in its first attempt, with what it has done so far

Each sign is put again every few seconds with a higher number. A reader compares it with what it
read before, on its own clock, so no clock of another host needs to be right.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

from streaming_ext.base.errors import StorageError
from streaming_ext.format.layout import RUNS_FOLDER
from streaming_ext.format.schema import to_json
from streaming_ext.store import Storage
from streaming_ext.store.patience import seconds_of
from tasks.core.reporting.progress import WorkingFile
from tasks.core.reporting.report import FailedFile, PartTimes
from tasks.core.workers.messages import Failure, Message

BEAT_SECONDS = 2.0
SILENCE_VARIABLE = "SHARDMILL_SILENCE"
_SILENT_SECONDS = 20.0


class ParentSign(Message):
    """The parent run lives, and counts these attempts of its partitions."""

    beat: int
    attempts: tuple[int, ...]
    stopped: bool = False


class PartitionSign(Message):
    """A partition lives; what it has done so far.

    Attributes:
        ended: it did what it could; nothing more comes.
        stopped: it was given up before that, and nothing of it runs any more.
        fault: why it ended early, if every other partition would meet the same.
    """

    beat: int
    host: str
    in_hand: tuple[WorkingFile, ...] = ()
    done: tuple[PartTimes, ...] = ()
    failed: tuple[FailedFile, ...] = ()
    ended: bool = False
    stopped: bool = False
    fault: Failure | None = None


def run_folder(run: str) -> str:
    """The folder for what passes between the hosts of a run."""
    return f"{RUNS_FOLDER}/{run}"


def plan_path(run: str) -> str:
    """Where the shared plan lies."""
    return f"{run_folder(run)}/plan.json"


def parent_path(run: str) -> str:
    """Where the parent's sign of life lies."""
    return f"{run_folder(run)}/parent.json"


def partition_path(run: str, partition: int, attempt: int) -> str:
    """Where a partition's sign of life lies."""
    return f"{run_folder(run)}/{partition:05}-{attempt}.json"


def silent_seconds() -> float:
    """Seconds without a change of a sign after which its host counts as lost.

    Raises:
        UsageError: the environment holds no such number.
    """
    return seconds_of(SILENCE_VARIABLE, _SILENT_SECONDS, least=3 * BEAT_SECONDS)


class Heartbeat:
    """Puts a sign every few seconds from a thread, until the block ends.

    Args:
        storage: the dataset's.
        path: of the sign.
        sign: makes it, given the number of the beat.
    """

    def __init__(self, storage: Storage, path: str, sign: Callable[[int], Message]) -> None:
        self._storage = storage
        self._path = path
        self._sign = sign
        self._beats = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="shardmill-heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(BEAT_SECONDS)

    def beat(self) -> None:
        """Put the sign now.

        Raises:
            StorageError: it cannot be put.
        """
        with self._lock:
            self._beats += 1
            self._storage.put(self._path, to_json(self._sign(self._beats)))

    def beat_if_possible(self) -> None:
        """Put the sign now; if storage keeps failing, the work itself reports it."""
        with suppress(StorageError):
            self.beat()

    def _keep(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            self.beat_if_possible()


class Pulse:
    """Whether the sign of another host still changes; `now` is on the monotonic clock.

    Attributes:
        limit: seconds without a change after which that host counts as lost.
    """

    def __init__(self, now: float) -> None:
        self.limit = silent_seconds()
        self._beat: int | None = None
        self._changed = now

    def hear(self, beat: int | None, now: float) -> float:
        """Seconds for which the sign has been the same; `beat` is its number as read just now."""
        if beat != self._beat:
            self._beat, self._changed = beat, now
        return now - self._changed

    def listen_anew(self, now: float) -> None:
        """Forget the silence, in which nothing could be heard."""
        self._changed = now
