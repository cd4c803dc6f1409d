"""How a dataset is made of sources: the steps of a part, each phase, and publishing."""

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from pydantic import BaseModel

from streaming_ext.base.errors import (
    ConfigMismatchError,
    DatasetError,
    SourceError,
    StorageError,
    UsageError,
)
from streaming_ext.format.layout import record_path
from streaming_ext.format.reading import read_manifest
from streaming_ext.format.record import PartRecord
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import Storage
from streaming_ext.store.scratch import writing_scratch
from streaming_ext.text.fetch import local_name, remove_fetched
from streaming_ext.text.formats import format_of
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from streaming_ext.text.tokenizer.fast_tokenizer import save_fast_model
from tasks.core.engine.build import Build, OnStatus, Published, Recorded, Step, Stretch, Words
from tasks.core.engine.engine import is_started
from tasks.core.reading.dataset_files import read_records
from tasks.core.reading.dataset_layout import (
    existing_manifest,
    remove_spills,
    remove_unrecorded,
    tables_of,
)
from tasks.core.reporting.report import PartCounts, PartTimes
from tasks.core.shard.arrange import arrange
from tasks.core.shard.publish import publish
from tasks.core.shard.run_plan import RunPlan, to_grow
from tasks.core.shard.same_sources import require_same_parts
from tasks.core.shuffle.known_texts import finds_copies
from tasks.core.shuffle.records import SpillRecord, read_spill_records, spill_record_path
from tasks.core.workers.merge_part import MergeJob
from tasks.core.workers.messages import Job
from tasks.core.workers.move_part import FetchedPart, FetchJob, PackedPart, WriteJob, WrittenPart
from tasks.core.workers.tokenize_part import TokenizeJob

_SOURCES = 4  # that are sampled
_MOST_BYTES_A_TOKEN = 6.0  # of text: few tokenizers reach it, so what is refused is sure not to fit
_PACKED = 0.5  # of the spills, what the shards take at least


@dataclass(frozen=True, kw_only=True)
class ShardBuild(RunPlan):
    """A dataset that is made of sources, in one phase or, with a shuffle, in two."""

    @property
    def kind(self) -> str:
        """Which command makes it."""
        if self.base is not None:
            return "extend"
        return "shard" if self.spec.imported is None else "import"

    @property
    def identity(self) -> BaseModel:
        """The specification; of an extension, the manifest that is extended."""
        return self.spec if self.base is None else self.base.file

    def require_same(self, identity: Mapping[str, Any], *, where: str) -> None:
        """Refuse another specification; a tokenizer may be given by another name."""
        DatasetSpec.model_validate_json(json.dumps(identity)).require_same(self.spec, where=where)

    @property
    def words(self) -> Words:
        """How people see what the run does."""
        return _WORDS[self.phase]

    @property
    def engine(self) -> str | None:
        """What tokenizes, as it is configured."""
        return self.config.engine if self.spec.imported is None else None

    @property
    def note(self) -> str:
        """What people are told before the work."""
        if self.tokenizer is None or self.base is not None or self.spec.imported is not None:
            return ""
        return self.tokenizer.note

    @property
    def executor(self) -> str:
        """Where the parts are worked on."""
        return self.config.executor

    def is_published(self, output: Storage) -> bool:
        """Whether the output has the manifest of this dataset."""
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

    def recorded(self, output: Storage, *, published: bool) -> Recorded:
        """The parts that are recorded, all made from these sources.

        Nothing is hashed of the parts of the dataset that is extended, nor of spills, which the
        second phase compares with their hashes when it reads them.
        """
        first = len(self.parts) if self.is_made else self.first_part
        parts: dict[int, list[Stretch]] = {part: [] for part in range(first)}
        known = {} if self.base is None else self.base.records
        if self.is_made or (self.base is not None and not is_started(self, output)):
            return Recorded(output, parts, known)
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
        return Recorded(output, parts, {**known, **own}, hashed=self.phase != "sort")

    def _merged(self, output: Storage) -> dict[int, PartRecord]:
        """The parts that an earlier run merged from the same spills."""
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

    def resumed(self, records: Mapping[int, PartRecord | SpillRecord]) -> Self:
        """The same, with the name that the tokenizer had when the first part was made."""
        spec = next((record.spec for record in records.values()), self.spec)
        return replace(self, spec=spec, earlier=tuple(map(PartCounts.of, records.values())))

    def steps(self, output: Storage) -> tuple[Step, ...]:
        """The tasks of each part, in order."""
        write = Step("write", moves=output.remote)
        if self.phase == "merge":
            return Step("merge"), write
        read = "tokenize" if self.spec.imported is None else "read"
        return Step("download", fetches=True, moves=True), Step(read), write

    def job(self, step: str, number: int, output: Storage, results: Mapping[str, Any]) -> Job[Any]:
        """What a worker is to do."""
        part, scratch = self.parts[number], self.part_scratch(number)
        if step == "download":
            return FetchJob(
                part=part,
                folder=self.downloads,
                options=self.spec.read_options,
                check=self.config.check_sources,
            )
        if step == "write":
            record = spill_record_path if self.phase == "sort" else record_path
            return WriteJob(scratch=scratch, output=str(output), record=record(number))
        if step == "merge":
            return self._merge_job(number, output)
        fetched: FetchedPart | None = results.get("download")
        return TokenizeJob(
            part=part,
            paths=fetched.paths if fetched else (),
            scratch=scratch,
            tokenizer_folder=self.tokenizer_folder,
            engine=self.config.engine,
            spec=self.spec,
            first_source=self.first_sources[number] if self.first_sources else 0,
            first=self.first_part,
            one_spill=output.remote,  # each part of the second phase asks for a range of each
            known_on=str(output) if finds_copies(self.spec, output) else None,
        )

    def _merge_job(self, number: int, output: Storage) -> Job[PackedPart]:
        merge_input = self.merge_input
        if merge_input is None or merge_input.index is None:
            raise DatasetError(f"{output}: part {number:05} is missing, and so are its spills.")
        return MergeJob(
            part=self.parts[number],
            parts=len(self.parts) - self.first_part,
            first=self.first_part,
            scratch=self.part_scratch(number),
            output=str(output),
            spec=self.spec,
            source=merge_input.source,
            index=merge_input.index,
        )

    def times(self, number: int, results: Mapping[str, Any]) -> PartTimes:
        """What the report says of a part."""
        fetched: FetchedPart | None = results.get("download")
        written: WrittenPart = results["write"]
        (made,) = (result for result in results.values() if isinstance(result, PackedPart))
        return PartTimes(
            **made.counts.model_dump(exclude={"host"}),
            host=platform.node(),
            engine=made.engine,
            tokenized_at=made.ended,
            shard_bytes=written.shard_bytes,
            fetched_bytes=fetched.fetched_bytes if fetched else 0,
            fetch_seconds=fetched.seconds if fetched else 0.0,
            tokenize_seconds=made.seconds,
            write_seconds=written.seconds,
        )

    def forget(self, number: int, results: Mapping[str, Any]) -> None:
        """Remove a part's sources and shards from scratch: it is written, or has failed."""
        super().forget(number, results)
        fetched: FetchedPart | None = results.get("download")
        for path in fetched.paths if fetched else ():
            if path.parent == self.downloads:
                remove_fetched(path)

    def prepare(self) -> None:
        """Save the tokenizer for all workers, and drop source files that are not needed."""
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
            if self.tokenizer is not None:
                self.tokenizer.save(self.tokenizer_folder)
                if self.engine == "auto":
                    save_fast_model(self.tokenizer, self.tokenizer_folder)

    def require_room(self, output: Storage) -> None:
        """Refuse spills and shards that are sure not to fit, before any work.

        Raises:
            StorageError: saying how much is needed and how much is free.
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
        """What the parts that are left to tokenize take at least, as spills and as shards."""
        if self.spec.filters.given():
            return 0.0  # how many documents stay is not known
        text_bytes, source_bytes, options = 0, 1, self.spec.read_options
        for part in self.todo[:: max(1, len(self.todo) // _SOURCES)][:_SOURCES]:
            source = self.parts[part].spans[0].source
            try:
                blocks = format_of(source.url, options).blocks(SourceFileBytes(source), options)
            except (SourceError, UsageError):  # its own part reports it
                return 0.0
            text_bytes += sum(block.size for block in blocks)
            source_bytes += source.size
        size = sum(self.parts[part].size for part in self.todo)
        tokens = size * text_bytes / source_bytes / _MOST_BYTES_A_TOKEN
        packed = _PACKED if self.spec.deduplicate is None else 0.0  # copies are not known
        return tokens * np.dtype(self.spec.dtype).itemsize * (1 + packed)

    def remove_leftovers(self, output: Storage) -> None:
        """Remove what killed runs left of parts that are not recorded."""
        recorded = set(range(len(self.parts))) - set(self.todo)
        if self.phase == "sort":
            remove_spills(output, recorded)
        elif self.base is not None or not self.is_made:
            kept = [] if self.base is None else tables_of(self.base.manifest)
            kept += self.merge_input.files if self.merge_input else []
            paths = {file.path for file in kept}
            remove_unrecorded(output, recorded, first_part=self.first_part, kept=paths)

    def finish(self, output: Storage, on_status: OnStatus) -> Published | Build:
        """Put what belongs to no part; the first of two phases is followed by the second."""
        if self.phase == "sort":
            return arrange(self, output)
        return publish(self, output, on_status=on_status)

    def published_to(self, output: Storage, on_status: OnStatus) -> None:
        """Remove the spills of the first phase."""
        if self.merge_input is not None:
            on_status("removing the spills")
            remove_spills(output)

    def report_fields(self, output: Storage) -> dict[str, Any]:
        """What the report of a published output says beyond the sums over the parts."""
        manifest = read_manifest(output)
        return {
            "sources_not_checked": manifest.not_checked,
            "duplicate_documents": manifest.duplicate_documents,
            "duplicate_tokens": manifest.duplicate_tokens,
        }


_WORDS = {
    "shard": Words("sharding", "sharded"),
    "import": Words("importing", "imported"),
    "sort": Words("phase 1 of 2, tokenizing and sorting", "sorted", "arranging phase 2"),
    "merge": Words("phase 2 of 2, merging", "sharded"),
}
