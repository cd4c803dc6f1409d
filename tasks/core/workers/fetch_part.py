"""The job that brings the spans of a part here."""

import time
from pathlib import Path

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.parts.part import Part
from streaming_ext.writing.part_documents import fetch_part
from tasks.core.workers.jobs import FetchedPart
from tasks.core.workers.messages import Job, JobProgress, Kept, Report


class FetchJob(Job[FetchedPart]):
    """Bring a part's spans to a folder on scratch; see `fetch_part`."""

    RESULT = FetchedPart

    part: Part
    folder: str
    options: ReadOptions
    check: bool = False

    def do(self, kept: Kept, report: Report) -> FetchedPart:
        """See `fetch_part`."""
        began = time.monotonic()
        paths, fetched = fetch_part(
            self.part,
            Path(self.folder),
            lambda done: report(JobProgress(fraction=done / max(self.part.size, 1))),
            options=self.options,
            check=self.check,
        )
        return FetchedPart(
            paths=tuple(map(str, paths)), fetched_bytes=fetched, seconds=time.monotonic() - began
        )
