"""The build of a dataset from sources: each phase, and publishing."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from pydantic import BaseModel

from streaming_ext.base.errors import ConfigMismatchError, SourceError, StorageError, UsageError
from streaming_ext.format.record import PartRecord
from streaming_ext.store import Storage
from streaming_ext.store.scratch import writing_scratch
from streaming_ext.text.fetch import local_name
from streaming_ext.text.formats import format_of
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from tasks.core.engine.build import Build, OnStatus, PartWork, Published, Words
from tasks.core.engine.lifecycle import is_started
from tasks.core.engine.output_files import Stretch
from tasks.core.reading.dataset_files import (
    existing_manifest,
    read_records,
    remove_spills,
    remove_unrecorded,
    tables_of,
)
from tasks.core.reporting.report import ReportedCounts
from tasks.core.shard.arrange import arrange
from tasks.core.shard.part_work import ShardPartWork
from tasks.core.shard.publish import publish
from tasks.core.shard.run_plan import RecordedParts, RunPlan, to_grow
from tasks.core.shard.sources import require_same_parts
from tasks.core.shuffle.spills import SpillRecord, read_spill_records
from tasks.core.workers.tokenize_part import LoadTokenizerJob

_SOURCES = 4  # to sample for their text
# Bytes of text per token: few tokenizers reach this, so a refused run would certainly not fit.
_MOST_BYTES_PER_TOKEN = 6.0
_PACKED = 0.5  # least size of the shards, as a fraction of the spills


@dataclass(frozen=True, kw_only=True)
class ShardBuild(RunPlan):
    """A dataset made from sources, in one phase or in two."""

    @property
    def identity(self) -> BaseModel:
        """The specification; or for an extension, the manifest that is extended."""
        return self.spec if self.base is None else self.base.file

    @property
    def words(self) -> Words:
        """The words for people about this phase."""
        return _WORDS[self.phase]

    def is_published(self, output: Storage) -> bool:
        """Return whether the output has the manifest of this dataset."""
        if self.base is not None:
            return True
        if (manifest := existing_manifest(output)) is None:
            return False
        manifest.spec.require_same(self.spec, where=str(output))
        made, wanted = manifest.node_partition, self.node_partition
        if made != wanted:
            every = "all nodes"
            raise ConfigMismatchError(
                f"{output} holds the parts of {made or every}, this run makes those of "
                f"{wanted or every}. Use another --output."
            )
        if self.spec.shuffle is None and len(self.parts) != len(manifest.parts):
            instead = "" if self.spec.imported else f" {to_grow(output)}"
            raise ConfigMismatchError(
                f"{output} is a complete dataset of {len(manifest.parts)} parts, this run has "
                f"{len(self.parts)}. Use another --output.{instead}"
            )
        return True

    def recorded(self, output: Storage, *, published: bool) -> RecordedParts:
        """Return the recorded parts; all must be made from these sources.

        Parts of the dataset that is extended are not hashed, nor are spills: the second phase
        compares spills with their hashes when it reads them.
        """
        first = len(self.parts) if self.is_made else self.first_part
        parts: dict[int, list[Stretch]] = {part: [] for part in range(first)}
        known = {} if self.base is None else self.base.records
        if self.is_made or (self.base is not None and not is_started(self, output)):
            return RecordedParts(storage=output, parts=parts, records=known)
        own: Mapping[int, PartRecord | SpillRecord]
        if self.phase == "merge":
            own = self._merged(output)
        else:
            own = read_spill_records(output) if self.phase == "sort" else read_records(output)
            last = len(self.parts) if published and self.base is None else math.inf
            own = {part: made for part, made in own.items() if first <= part < last}
            for record in own.values():
                record.spec.require_same(self.spec, where=str(output))
            require_same_parts(output, own, self.parts, self.spec.read_options)
        for part, record in own.items():
            parts[part] = [*map(Stretch.of, record.files())]
        return RecordedParts(
            storage=output, parts=parts, records={**known, **own}, hashed=self.phase != "sort"
        )

    def _merged(self, output: Storage) -> dict[int, PartRecord]:
        """Return the parts that an earlier run merged from the same spills."""
        own = range(self.first_part, len(self.parts))
        found = {part: record for part, record in read_records(output).items() if part in own}
        source = self.merge_input.source if self.merge_input else None
        spills = read_spill_records(output, found) if source is None else {}
        return {
            part: record
            for part, record in found.items()
            if not record.spec.differences(self.spec)
            and (record.source == source or record.made_of == spills[part].made_of)
        }

    def with_earlier(self) -> Self:
        """Return the build with the counts of finished parts, and the name of their tokenizer."""
        found = self.done.records if self.done else {}
        records = [record for part, record in found.items() if part not in self.todo]
        spec = records[0].spec if records else self.spec
        return replace(self, spec=spec, earlier=tuple(map(ReportedCounts.of, records)))

    def work_on(self, number: int, output: Storage) -> PartWork:
        """Begin the work on a part."""
        return ShardPartWork(self, number, output)

    @property
    def first_job(self) -> LoadTokenizerJob | None:
        """The job that loads the tokenizer, which takes seconds."""
        if self.phase == "merge" or not self.todo:
            return None
        return LoadTokenizerJob(
            tokenizer_folder=self.tokenizer_folder, engine=self.engine or "reference"
        )

    def prepare(self, output: Storage) -> None:
        """Remove leftovers and unneeded source files, and save the tokenizer for workers."""
        recorded = set(range(len(self.parts))) - set(self.todo)
        if self.phase == "sort":
            remove_spills(output, recorded)
        elif self.base is not None or not self.is_made:
            kept = [] if self.base is None else tables_of(self.base.manifest)
            kept += self.merge_input.files if self.merge_input else []
            paths = {file.path for file in kept}
            remove_unrecorded(output, recorded, first_part=self.first_part, kept=paths)
        wanted = {
            local_name(source_span.source)
            for part in self.todo
            for source_span in self.parts[part].spans
            if source_span.source.remote
        }
        with writing_scratch(self.scratch):
            for file in self.downloads.glob("*"):
                if file.name.partition(".")[0].partition("-")[0] not in wanted:
                    file.unlink()
            if not self.tokenizer_folder.exists():
                self.tokenizer.save(self.tokenizer_folder)

    def require_room(self, output: Storage) -> None:
        """Refuse a run whose spills and shards will certainly not fit, before any work.

        Raises:
            StorageError: the output has too little space; the message says how much is needed.
        """
        free = output.free_bytes() if self.phase == "sort" else None
        if free is not None and (needed := self._least_bytes()) > free:
            raise StorageError(
                f"{output} has {free / 1e9:,.1f} GB free; with --shuffle or --deduplicate, spills "
                "lie there until the dataset is published, and they and the shards take "
                f"{needed / 1e9:,.1f} GB or more (see `shardmill plan`). Free some, or use another "
                "--output."
            )

    def _least_bytes(self) -> float:
        """Return the least size of the spills and shards of the parts that are left to do."""
        if self.spec.drops:
            return 0.0  # the number of documents that stay is not known
        text_bytes, source_bytes, options = 0, 1, self.spec.read_options
        for part in self.todo[:: max(1, len(self.todo) // _SOURCES)][:_SOURCES]:
            source = self.parts[part].spans[0].source
            try:
                blocks = format_of(source.url, options).blocks(SourceFileBytes(source), options)
            except (SourceError, UsageError):  # the part itself reports it
                return 0.0
            text_bytes += sum(block.size for block in blocks)
            source_bytes += source.size
        size = sum(self.parts[part].size for part in self.todo)
        tokens = size * text_bytes / source_bytes / _MOST_BYTES_PER_TOKEN
        packed = _PACKED if self.spec.deduplicate is None else 0.0  # copies are not yet known
        return tokens * np.dtype(self.spec.dtype).itemsize * (1 + packed)

    def finish(self, output: Storage, on_status: OnStatus) -> Published | Build:
        """Put the files that belong to no part; after phase one of two, return phase two."""
        if self.phase == "sort":
            return arrange(self, output)
        return publish(self, output, on_status=on_status)


_WORDS = {
    "shard": Words("sharding", "sharded"),
    "import": Words("importing", "imported"),
    "sort": Words("phase 1 of 2, tokenizing and sorting", "sorted", "arranging phase 2", "arrange"),
    "merge": Words("phase 2 of 2, merging", "sharded"),
}
