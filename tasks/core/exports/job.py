"""What a worker is asked to do for an export."""

from typing import Literal

from streaming_ext.dataset.layout import Split
from tasks.core.exports.contract import Extent, Place
from tasks.core.exports.records import ExportIdentity
from tasks.core.workers.messages import Answer, Job, MadePart


class ExportJob(Job[MadePart]):
    """Write one part's share of an export and record it.

    Attributes:
        dataset: where that lies.
        output: where the export goes.
        scratch: folder for the part's files on their way.
        assembly: folder of files that several parts write into; None where there are none.
        places: where the part's share of each split stands.
        totals: what each split holds.
    """

    job: Literal["export"] = "export"
    part: int
    dataset: str
    output: str
    scratch: str
    assembly: str | None
    identity: ExportIdentity
    places: tuple[Place, ...]
    totals: dict[Split, Extent]

    def read_answer(self, line: bytes) -> Answer[MadePart]:
        """Read a line that the worker answers this job with."""
        return Answer[MadePart].model_validate_json(line)
