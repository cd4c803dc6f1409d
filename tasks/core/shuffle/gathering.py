"""What the second stage of a run with a shuffle knows beside its parts."""

from dataclasses import dataclass

from streaming_ext.dataset.manifest import ShuffleSummary
from streaming_ext.dataset.record import SourceIdentity
from streaming_ext.dataset.schema import FileRecord


@dataclass(frozen=True, slots=True)
class Gathering:
    """What all parts are gathered from.

    Attributes:
        summary: of the sources, for the manifest.
        index: of the runs; None where all parts are there, and only publishing is left.
    """

    summary: ShuffleSummary
    index: FileRecord | None

    @property
    def source(self) -> SourceIdentity:
        """What the record of a part says that it was made of: the table of all sources."""
        return identity_of_table(self.summary.sources)


def identity_of_table(table: FileRecord) -> SourceIdentity:
    """The table of sources as the source of a part."""
    return SourceIdentity(url=table.path, size=table.size, version=f"xxh128:{table.xxh128}")
