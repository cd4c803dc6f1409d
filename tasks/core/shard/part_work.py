"""The work on a part of a dataset made from sources: fetch, tokenize or merge, and write."""

import platform

from streaming_ext.base.errors import DatasetError
from streaming_ext.format.layout import record_path
from streaming_ext.store import Storage
from streaming_ext.text.fetch import remove_fetched
from tasks.core.engine.build import DoJob, PartWork, Step
from tasks.core.reporting.report import PartTimes
from tasks.core.shard.run_plan import RunPlan
from tasks.core.shuffle.known_texts import finds_copies
from tasks.core.shuffle.spills import spill_record_path
from tasks.core.workers.merge_part import MergeJob
from tasks.core.workers.move_part import FetchedPart, FetchJob, PackedPart, WriteJob, WrittenPart
from tasks.core.workers.tokenize_part import TokenizeJob

_FETCH = Step("download", fetches=True, moves=True)
_WRITE = "write"


class ShardPartWork(PartWork):
    """The work on a part in one phase of a run.

    Args:
        plan: the plan of the run.
        number: the number of the part.
        output: the storage of the output.
    """

    def __init__(self, plan: RunPlan, number: int, output: Storage) -> None:
        self._plan, self._part, self._output = plan, plan.parts[number], output
        self._fetched: FetchedPart | None = None
        self._packed: PackedPart | None = None
        write = Step(_WRITE, moves=output.remote)
        steps: tuple[Step, ...] = (Step("merge"), write)
        if plan.phase != "merge":
            read = Step("tokenize" if plan.spec.imported is None else "read")
            steps = (_FETCH, read, write) if self._part.remote else (read, write)
        super().__init__(plan.part_scratch(number), steps)

    def do(self, step: Step, do_job: DoJob) -> PartTimes | None:
        """Do a step; return the times of the part once it is written."""
        plan, output = self._plan, self._output
        if step.fetches:
            fetch = FetchJob(
                part=self._part,
                folder=plan.downloads,
                options=plan.spec.read_options,
                check=plan.check_sources,
            )
            self._fetched = do_job(fetch)
        elif step.name == _WRITE:
            record = (spill_record_path if plan.phase == "sort" else record_path)(self._part.number)
            write = WriteJob(scratch=self.scratch, output=str(output), record=record)
            return self._times(do_job(write))
        else:
            merges = plan.phase == "merge"
            self._packed = do_job(self._merge_job() if merges else self._tokenize_job())
        return None

    def _tokenize_job(self) -> TokenizeJob:
        plan, number, output = self._plan, self._part.number, self._output
        return TokenizeJob(
            part=self._part,
            paths=self._fetched.paths if self._fetched else (),
            scratch=self.scratch,
            tokenizer_folder=plan.tokenizer_folder,
            engine=plan.engine or "reference",
            spec=plan.spec,
            first_source=plan.first_sources[number] if plan.spec.shuffle else 0,
            first=plan.first_part,
            one_spill=output.remote,  # each part of phase two reads a range of each spill
            known_on=str(output) if finds_copies(plan.spec, output) else None,
        )

    def _merge_job(self) -> MergeJob:
        plan, number = self._plan, self._part.number
        if plan.merge_input is None or plan.merge_input.index is None:
            raise DatasetError(
                f"{self._output}: part {number:05} is missing, and so are its spills."
            )
        return MergeJob(
            part=self._part,
            parts=len(plan.parts) - plan.first_part,
            first=plan.first_part,
            scratch=self.scratch,
            output=str(self._output),
            spec=plan.spec,
            source=plan.merge_input.source,
            index=plan.merge_input.index,
        )

    def _times(self, written: WrittenPart) -> PartTimes:
        fetched, packed = self._fetched, self._packed
        assert packed is not None  # noqa: S101  (set by the step before)
        return PartTimes(
            **packed.counts.model_dump(exclude={"host"}),
            host=platform.node(),
            engine=packed.engine,
            tokenized_at=packed.ended,
            shard_bytes=written.shard_bytes,
            fetched_bytes=fetched.fetched_bytes if fetched else 0,
            fetch_seconds=fetched.seconds if fetched else 0.0,
            tokenize_seconds=packed.seconds,
            write_seconds=written.seconds,
        )

    def clean_up(self) -> None:
        """Remove the part's sources and shards from scratch."""
        super().clean_up()
        for path in self._fetched.paths if self._fetched else ():
            if path.parent == self._plan.downloads:
                remove_fetched(path)
