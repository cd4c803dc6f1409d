"""Jobs that take no tokenizer: exports, subsets, copies, merges, fetching, putting in place."""

from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

from pydantic import BaseModel

from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.schema import FileRecord
from tasks.core.exports.job import ExportJob
from tasks.core.exports.part import export_part, read_dataset_manifest
from tasks.core.memories import Memories
from tasks.core.moving.job import MoveJob
from tasks.core.moving.move import move_unit
from tasks.core.storage import Storage, open_storage
from tasks.core.subsets.job import SubsetJob
from tasks.core.subsets.part import subset_part
from tasks.core.workers.fetch_part import fetch_for
from tasks.core.workers.jobs import FetchJob, WriteJob
from tasks.core.workers.messages import JobProgress
from tasks.core.workers.write_part import write_part


class LightJobs:
    """Does them, and keeps from one to the next what each would open anew.

    Attributes:
        storage: what lies at a URL, with the connections that it keeps.
    """

    def __init__(self) -> None:
        self.storage: Callable[[str], Storage] = cache(open_storage)
        self._manifest = lru_cache(1)(self._read_manifest)

    def do(
        self, job: object, report: Callable[[JobProgress], None], memories: Memories
    ) -> BaseModel | None:
        """Do a job; None where it is none of these.

        Args:
            job: of any kind.
            report: told how far it is.
            memories: that shards are put together in, or read into; of one job at a time.

        Raises:
            ShardmillError: the job failed.
        """
        storage = self.storage
        if isinstance(job, ExportJob):
            manifest = self._manifest(job.dataset, job.identity.dataset_manifest)
            dataset, output = storage(job.dataset), storage(job.output)
            return export_part(job, dataset, manifest, output, report, memories=memories)
        if isinstance(job, SubsetJob):
            manifest = self._manifest(job.dataset, job.manifest)
            dataset, output = storage(job.dataset), storage(job.output)
            return subset_part(job, dataset, manifest, output, report, memories=memories)
        if isinstance(job, MoveJob):
            return move_unit(job.unit, storage(job.output), Path(job.scratch), read=job.read,
                             report=report, opened=storage)  # fmt: skip
        if isinstance(job, FetchJob):
            return fetch_for(job, report)
        if isinstance(job, WriteJob):
            return write_part(job, storage(job.output), report)
        return None

    def _read_manifest(self, dataset: str, file: FileRecord) -> Manifest:
        return read_dataset_manifest(self.storage(dataset), file)
