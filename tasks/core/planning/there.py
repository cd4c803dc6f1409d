"""What the output of a run holds already."""

from collections.abc import Mapping
from typing import Protocol, TypeVar

from streaming_ext.dataset.layout import (
    DIGESTS_FOLDER,
    DOCUMENTS_FOLDER,
    DUPLICATES_FOLDER,
    MANIFEST,
    RUNS_FOLDER,
    SHUFFLE_FOLDER,
    SPLITS,
    TOKENIZER_FOLDER,
)
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.reading import read_manifest
from streaming_ext.dataset.schema import FileRecord
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import CorruptDatasetError, NotADatasetError, UsageError, command
from tasks.core.outputs.whole import lost_files
from tasks.core.shuffle.run_record import run_record_of
from tasks.core.storage import Storage


class HasFiles(Protocol):
    """The record of a part, of either stage."""

    def files(self) -> list[FileRecord]:
        """Every file of the part but the record itself."""
        ...


Record = TypeVar("Record", bound=HasFiles)


def manifest_there(storage: Storage) -> Manifest | None:
    """The manifest, None where the output is no finished dataset.

    Raises:
        CorruptDatasetError: it is damaged.
    """
    try:
        return read_manifest(storage)
    except NotADatasetError:
        return None


def require_ours(storage: Storage, spec: DatasetSpec) -> None:
    """Refuse an output that holds what no run of this kind left there before its first record.

    Raises:
        UsageError: naming some of it.
        ConfigMismatchError: a run with a shuffle, of another specification, goes on there.
    """
    there = storage.list()
    foreign = [path for path in there if not _is_ours(path)]
    if foreign:
        raise UsageError(
            f"{storage} holds other files ({', '.join(foreign[:3])}"
            f"{', ...' if len(foreign) > 3 else ''}). Use an empty folder as --output."
        )
    runs = [path for path in there if path.startswith(SHUFFLE_FOLDER) and path.endswith(".json")]
    if runs:
        record = run_record_of(storage.read(runs[0]), where=f"{storage}/{runs[0]}")
        record.spec.require_same(spec, where=str(storage))


def _is_ours(path: str) -> bool:
    # Before its first record a killed run leaves only what these folders hold.
    top = path.split("/", 1)[0]
    return top in {
        *SPLITS,
        DOCUMENTS_FOLDER,
        RUNS_FOLDER,
        TOKENIZER_FOLDER,
        SHUFFLE_FOLDER,
        DUPLICATES_FOLDER,
        DIGESTS_FOLDER,
    }


def without_lost_files(
    storage: Storage,
    records: dict[int, Record],
    sizes: Mapping[str, int],
    *,
    published: bool,
    extended: bool = False,
) -> dict[int, Record]:
    """The records whose files are all there; the other parts are done again.

    Args:
        storage: names the dataset in messages.
        records: by part.
        sizes: path -> size in bytes, as the storage lists them.
        published: a lost file is an error then, since somebody may be reading the dataset.
        extended: it has older generations, which go with its manifest.
    """
    whole = {}
    for part, record in records.items():
        lost = lost_files(sizes, record.files())
        if not lost:
            whole[part] = record
        elif published:
            raise CorruptDatasetError(
                f"{storage} is published, but {lost[0]} is missing or cut short. "
                f"{command('verify', storage)} tells all; {to_mend(extended=extended)}."
            )
    return whole


def to_mend(*, extended: bool) -> str:
    """What to do where a published dataset lost what a part of it needs."""
    if extended:  # without its manifest, a run would make one generation of it
        return (
            "it was extended: put that back from a copy, or make a dataset of all its sources in "
            "another folder"
        )
    return f"remove {MANIFEST} to have what is lost made again"
