"""What the second stage of a run knows beside its parts."""

from dataclasses import dataclass

from streaming_ext.dataset.manifest import KeptDigests, ShuffleSummary
from streaming_ext.dataset.record import SourceIdentity
from streaming_ext.dataset.schema import FileRecord


@dataclass(frozen=True, slots=True)
class Gathering:
    """What all parts are gathered from.

    Attributes:
        summary: of the sources, for the manifest; None without a shuffle.
        index: of the runs; None without a shuffle, and where only publishing is left.
        drops: lists of what is left out as copies.
        digests: hashes of what stays, where copies are left out.
    """

    summary: ShuffleSummary | None = None
    index: FileRecord | None = None
    drops: tuple[FileRecord, ...] = ()
    digests: KeptDigests | None = None

    @property
    def source(self) -> SourceIdentity | None:
        """What the record of a part says that it was made of, with a shuffle: all sources."""
        return None if self.summary is None else identity_of_table(self.summary.sources)


def identity_of_table(table: FileRecord) -> SourceIdentity:
    """The table of sources as the source of a part."""
    return SourceIdentity(url=table.path, size=table.size, version=f"xxh128:{table.xxh128}")
