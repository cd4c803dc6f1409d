"""What an export says of itself: the format, what it was made from, its files."""

from dataclasses import dataclass
from typing import Any

from streaming_ext.format.layout import EXPORT
from streaming_ext.store import Storage
from tasks.core.derive.export_plan import all_pieces, read_export_records
from tasks.core.derive.export_records import ExportManifest, file_sizes, read_export


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportDescription:
    """What `inspect` tells of an export; `files` are paths and sizes in bytes."""

    place: str
    manifest: ExportManifest
    files: dict[str, int]

    def facts(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {
            "export": self.place,
            **self.manifest.model_dump(mode="json", exclude={"pieces", "parts"}),
            "files": self.files,
        }


def is_export(storage: Storage) -> bool:
    """Whether a published export lies at a place, rather than a dataset."""
    try:
        storage.read(EXPORT)
    except FileNotFoundError:
        return False
    return True


def describe_export(storage: Storage) -> ExportDescription:
    """Read what an export says of itself.

    Raises:
        NotADatasetError: there is none at this place.
        CorruptDatasetError: a record is damaged.
    """
    manifest = read_export(storage)
    records = read_export_records(storage).values()
    return ExportDescription(
        place=str(storage),
        manifest=manifest,
        files=dict(sorted(file_sizes(all_pieces(manifest, records)).items())),
    )
