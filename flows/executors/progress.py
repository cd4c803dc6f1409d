"""Having people see how far other hosts are."""

from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import FailedFile, PartTimes


def count(result: PartTimes | FailedFile, size: int, progress: RunProgress) -> None:
    """A part has ended; `size` of its source, in bytes."""
    failed = isinstance(result, FailedFile)
    if not isinstance(result, FailedFile):
        progress.update(
            result.part, source_bytes=size, text_bytes=result.text_bytes, tokens=result.tokens
        )
    progress.finish(result.part, source_bytes=size, failed=failed)
