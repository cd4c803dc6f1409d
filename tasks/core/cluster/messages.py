"""What the hosts of a run tell each other, and where: files on the dataset's storage.

Below `runs/RUN/`:

    plan.json       what is to be done, the same for every partition
    parent.json     the sign of life of the run that plans and publishes
    00003-1.json    that of partition 3 in its first attempt, with what it has done so far
"""

from contextlib import suppress
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from streaming_ext.dataset.layout import RUNS_FOLDER
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import (
    StorageError,
)
from streaming_ext.text.parts.part import Part
from tasks.core.planning.run_plan import StageName
from tasks.core.reporting.report import FailedFile, PartTimes
from tasks.core.shuffle.gathering import Gathering
from tasks.core.storage import Storage
from tasks.core.workers.messages import Failure

_UUID_LETTERS = 36


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SharedPlan(_Message):
    """What every partition of a run knows.

    Attributes:
        config: as the user gave it; what was left out is each host's own, such as its workers.
        parts: all of them; the index is the part's number.
        partitions: the parts of each.
        unsafe: code points that the fast engine is not trusted with; None leaves it unused.
        versions: of the packages that the parent run has.
        stage, gathering, first_part: see `RunPlan`.
        first_source: number of the first source that the run reads, where there is a shuffle.
    """

    format: Literal[1] = 1
    config: dict[str, Any]
    spec: DatasetSpec
    parts: tuple[Part, ...]
    partitions: tuple[tuple[int, ...], ...]
    unsafe: tuple[tuple[int, int], ...] | None
    versions: dict[str, str]
    stage: StageName = "shard"
    first_part: int = 0
    first_source: int = 0
    gathering: Gathering | None = None


class ParentSign(_Message):
    """The parent run lives, and counts these attempts of its partitions."""

    beat: int
    attempts: tuple[int, ...]
    stopped: bool = False


class FileInHand(_Message):
    """A file that a partition has begun: its step, and what of it is done so far."""

    part: int
    step: str
    source_bytes: float
    text_bytes: int
    tokens: int


class PartitionSign(_Message):
    """A partition lives, and has done so much.

    Attributes:
        ended: it did what it could; nothing more comes.
        stopped: it was given up before that, and nothing of it runs any more.
        fault: why it ended early, where every other partition would meet the same.
    """

    beat: int
    host: str
    in_hand: tuple[FileInHand, ...] = ()
    done: tuple[PartTimes, ...] = ()
    failed: tuple[FailedFile, ...] = ()
    ended: bool = False
    stopped: bool = False
    fault: Failure | None = None


def run_name(flow_run: str, begun: int, stage: str = "") -> str:
    """What a run is called among its hosts.

    Args:
        flow_run: its id.
        stage: the second one of a run with two, whose hosts join anew.
        begun: how often it was begun: Resume in Prefect begins it again, and what hosts told of
            the time before does not count.
    """
    name = f"{flow_run}-{begun}" if begun > 1 else flow_run
    return f"{name}-{stage}" if stage else name


def flow_run_of(run: str) -> UUID:
    """The id of a run by its name among its hosts."""
    return UUID(run[:_UUID_LETTERS])


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


def remove_run_folder(storage: Storage, run: str) -> None:
    """Remove what passed between the hosts; where that fails, the next run does it."""
    with suppress(StorageError):
        for path in storage.list(run_folder(run)):
            storage.remove(path)
