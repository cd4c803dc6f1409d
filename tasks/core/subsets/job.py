"""What a worker is asked to do for a subset."""

from typing import Literal

from streaming_ext.dataset.schema import FileRecord
from streaming_ext.dataset.spec import DatasetSpec
from tasks.core.workers.messages import Answer, Job, MadePart, Message


class OriginalPart(Message):
    """A part of the dataset that gives documents; `first` is the number of its first document."""

    part: int
    first: int


class SubsetJob(Job[MadePart]):
    """Write one part of a subset and record it.

    Attributes:
        part: its number.
        originals: the parts of the dataset that it is made of.
        manifest: of the dataset.
        largest: key that is taken; see `tasks.core.subsets.choosing`.
        scratch: folder for the part's files on their way.
    """

    job: Literal["subset"] = "subset"
    part: int
    originals: tuple[OriginalPart, ...]
    dataset: str
    manifest: FileRecord
    largest: int
    spec: DatasetSpec
    output: str
    scratch: str

    def read_answer(self, line: bytes) -> Answer[MadePart]:
        """Read a line that the worker answers this job with."""
        return Answer[MadePart].model_validate_json(line)
