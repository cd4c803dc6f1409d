"""Whole batches from a `StreamingTokenDataset`; the state counts what training received."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

from streaming_ext.base.errors import DatasetError, UsageError
from streaming_ext.base.kinds import count
from streaming_ext.order.ranks import DataRank
from streaming_ext.order.state import Cursor
from streaming_ext.training.batch_reader import PLANNED_ROWS, to_tensors
from streaming_ext.training.columns import MASKED, Batch
from streaming_ext.training.features.mixing import StreamUsage
from streaming_ext.training.position import Newest
from streaming_ext.training.token_dataset import StreamingTokenDataset
from streaming_ext.training.workers import forks, messages_of, require_settings

if TYPE_CHECKING:
    from streaming_ext.training.features.domains import DomainCounts
    from streaming_ext.training.features.repeats import Masked, MaskedCount
    from streaming_ext.training.features.trace import DocumentVisit, SequenceTrace
    from streaming_ext.training.features.training_plan import TrainingPlan

CACHED_BYTES = 1 << 19  # of ids copied at once: they fit the cache of one core


class StreamingTokenLoader:
    """An iterable of the batches of an epoch: dictionaries with `tokens` (int64) and the extras.

    If an iteration was broken off, the next one resumes at its position; if short batches are
    filled up (`drop_last=False`), it starts from the beginning. After a complete epoch the next
    epoch follows; a holdout split that is filled up repeats its epoch (evaluation).
    """

    _masked: "MaskedCount | None" = None
    _counts: "DomainCounts | None" = None

    def __init__(
        self,
        dataset: StreamingTokenDataset,
        *,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        pin_memory: bool = False,
        timeout: float | None = None,
        multiprocessing_context: str | BaseContext | None = None,
    ) -> None:
        """Set up the loader without reading a batch.

        Args:
            dataset: the dataset to read.
            num_workers: processes that read ahead; with 0 this process reads.
            prefetch_factor: messages that each worker makes ahead.
            pin_memory: True for tensors in pinned memory, for asynchronous copies to a GPU.
            timeout: seconds to wait for a worker; by default as long as fetching a shard may take.
            multiprocessing_context: the start method of workers, as in torch's DataLoader.
        """
        require_settings(
            num_workers=num_workers, prefetch_factor=prefetch_factor, pin_memory=pin_memory
        )
        dataset.require_batch_size()
        self.dataset = dataset
        splits = {stream.split or dataset.split for stream in dataset.streams}
        self._evaluates = splits == {"holdout"} and not dataset.drop_last
        self._pin = pin_memory
        self.num_workers = num_workers
        self._workers: dict[str, Any] = {
            "num_workers": num_workers,
            "prefetch_factor": prefetch_factor,
            "timeout": dataset.reader.patience if timeout is None else timeout,
            "multiprocessing_context": multiprocessing_context,
        }
        self._cursor = dataset.start_cursor()
        self._received = 0  # steps since the cursor
        self._newest = Newest("loader")
        if dataset.order.max_repeated_ngram is not None:
            from streaming_ext.training.features.repeats import MaskedCount

            rank = DataRank(rank=dataset.dp_rank, size=dataset.dp_world_size)
            self._masked = MaskedCount(rank, again=not dataset.drop_last)
        if dataset.contents.domain_by is not None:
            from streaming_ext.training.features.domains import DomainCounts, TokenDomains

            domains = dataset.domain_column
            assert isinstance(domains, TokenDomains)  # noqa: S101 - of `domain_by`
            self._counts = DomainCounts(dataset.plan, dataset.source, domains, self._cursor)
        saved = dataset.loaded_cursor or self._cursor
        self._resume_counts(dataset.loaded_state, saved, begins=not self._cursor.position)

    def __repr__(self) -> str:
        """Name the data, the steps of an epoch and the workers in one line."""
        steps = f"{len(self):,} steps per epoch, num_workers={self.num_workers}"
        return f"{type(self).__name__}({self.dataset!r}, {steps})"

    def __len__(self) -> int:
        """Return the number of steps of a complete epoch."""
        return self.dataset.plan.steps_left(replace(self._cursor, position=0))

    @property
    def batch_size(self) -> int:
        """Sequences of this rank in the next step."""
        plan, cursor = self.dataset.plan, self._position()
        if not plan.steps_left(cursor):
            cursor = plan.next_epoch(cursor)
        return plan.phase_of(cursor, 0).batch_size

    @property
    def epoch(self) -> int:
        """The number of the epoch of the last batch."""
        return self._cursor.epoch

    @property
    def step(self) -> int:
        """Steps of this epoch that training received, for an unchanged global batch."""
        return self.dataset.plan.steps_done(self._position())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the remaining batches of this epoch, or all of the next one.

        Raises:
            DatasetError: a shard is missing or damaged; an epoch never ends early without error.
            WorkerDiedError: a worker was killed.
            UsageError: another iteration began meanwhile.
        """
        number, plan = self._newest.begin(), self.dataset.plan
        cursor = self._position()
        again = self._evaluates or plan.steps_left(cursor) > 0
        if not self.dataset.drop_last and self._received and again:
            cursor = replace(self._cursor, position=0, past=None)
            if self._masked is not None:
                self._masked.epoch_again()
        elif plan.steps_left(cursor) == 0:
            cursor = plan.next_epoch(cursor)
            if self._masked is not None:
                self._masked.next_epoch()
        self._cursor, self._received = cursor, 0
        while plan.steps_left(self._cursor) and self._cursor.epoch == cursor.epoch:
            begin = self._cursor
            yield from self._batches(begin, number)
            if self._cursor is begin:
                return  # nothing has moved training meanwhile

    def _batches(self, begin: Cursor, number: int) -> Iterator[dict[str, Any]]:
        """Yield the batches after a cursor, until training is moved to another one."""
        plan, reader = self.dataset.plan, self.dataset.batch_reader
        for raw in self._raw_batches(begin):
            rows = plan.phase_of(begin, self._received).batch_size
            for batch in reader.split(raw, rows=rows):
                # Count the batch before the yield: a state saved in the loop's body includes it.
                self._received += 1
                if self._masked is not None:
                    self._masked.add(int(batch.pop(MASKED).sum()), raw["tokens"].shape[1])
                yield to_tensors(batch, pin=self._pin)
                del batch  # the next one may reuse its memory
                self._newest.require(number)
                if self._cursor is not begin:
                    return
        if self._received != (planned := plan.steps_left(begin)):
            raise DatasetError(
                f"Epoch {begin.epoch} ended after {self._received} of {planned} steps."
            )

    def skip(self, steps: int) -> None:
        """Skip the next steps as if training had received them, for example after a loss spike.

        A running iteration continues after these steps. Steps beyond the end of an epoch are
        skipped in the next one.

        Args:
            steps: the number of steps, at least 0.

        Raises:
            UsageError: `steps` is no count, or an epoch holds every sequence (`drop_last=False`).
        """
        steps = count("steps", steps, least=0)
        if not self.dataset.drop_last:
            raise UsageError("`skip` needs drop_last=True: else an epoch holds every sequence.")
        plan, cursor = self.dataset.plan, self._position()
        while steps > (left := plan.steps_left(cursor)):
            cursor, steps = plan.next_epoch(cursor), steps - left
        self._cursor, self._received = plan.after(cursor, steps), 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the steps that training received, whatever workers prepared."""
        cursor, resume = self._position(), self.dataset.resume
        counts = {} if self._counts is None else self._counts.state(cursor, resume.fingerprints)
        counts |= {} if self._masked is None else self._masked.state()
        return resume.state_of(cursor).to_dict(counts)

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        *,
        allow_changes: Collection[str] = (),
        extend_state: bool = False,
    ) -> None:
        """Let the next iteration resume from a state; see the dataset's `load_state_dict`."""
        resume = self.dataset.resume
        saved = resume.saved_cursor(state, allow_changes=allow_changes, extend_state=extend_state)
        cursor = resume.resumed_at(saved)
        self._resume_counts(state, saved, begins=not cursor.position)
        self._cursor, self._received = cursor, 0

    def _resume_counts(self, state: Mapping[str, Any], saved: Cursor, *, begins: bool) -> None:
        """Let the counts resume from a state.

        Args:
            state: the state as it was saved.
            saved: the cursor of the state.
            begins: True if training resumes at the beginning of an epoch.
        """
        resume = self.dataset.resume
        if self._counts is not None:
            names = [(each, *resume.plan.orders.earlier) for each in resume.fingerprints]
            self._counts.resume(state, saved, names)
        if self._masked is not None:
            self._masked.resume(state, begins=begins)

    def trace(self, step: int) -> "list[SequenceTrace]":
        """Trace the documents of each sequence of a step of this epoch, over all ranks.

        Args:
            step: the number of the step, from the start of the epoch.
        """
        from streaming_ext.training.features.trace import trace_step

        return trace_step(self.dataset, step, cursor=self._cursor)

    def trace_document(self, source: str, row: int) -> "list[DocumentVisit]":
        """Find the steps of this epoch that hold a document, also steps that are still to come.

        Args:
            source: the URL of its source file, or an ending that no other file has.
            row: the row of the document in the file, from 0.
        """
        from streaming_ext.training.features.trace import trace_document

        return trace_document(self.dataset, source, row, cursor=self._cursor)

    def plan(self, *, epochs: int = 1) -> "TrainingPlan":
        """Return the phases of training with steps and tokens, from the start of this epoch on.

        A schedule of the learning rate needs `plan().steps`. A plan prints as a table.

        Args:
            epochs: the number of epochs.

        Raises:
            UsageError: a stream reaches its `max_repeats` in one of the epochs.
        """
        from streaming_ext.training.features.training_plan import training_plan

        return training_plan(self.dataset.plan, self._cursor, epochs=epochs)

    @property
    def tokens_seen(self) -> int:
        """Tokens that training received since its start, over all ranks.

        Padding counts, and so do the tokens that were left out at the end of each epoch, less than
        a global batch.
        """
        return self.dataset.plan.tokens_seen(self._position())

    def achieved(self) -> list[StreamUsage]:
        """Count what training received of each stream since its start, as `tokens_seen` does.

        With `domain_by`, count the domains of each stream as well: this looks up what came since
        the last call, in a few milliseconds per million tokens.
        """
        plan = self.dataset.plan
        seen = plan.seen(self._position())
        domains: list[dict[str, int]] = [{} for _ in seen]
        if self._counts is not None:
            domains = self._counts.up_to(self._position())
        return [
            StreamUsage(
                stream=number,
                domain=stream.domain_name,
                sequences=count,
                tokens=count * plan.length,
                fraction=count / max(1, sum(seen)),
                passes=count / size,
                tokens_by_domain=by_domain,
            )
            for number, (stream, count, size, by_domain) in enumerate(
                zip(self.dataset.streams, seen, plan.sizes, domains, strict=True)
            )
        ]

    def masked(self, group: Any = None) -> "Masked":
        """Count what training received and `max_repeated_ngram` masked, over all ranks.

        Every rank calls this together, as with all collectives of torch.distributed. A state holds
        the result of the last call, so call it before a state is saved; with one rank no call is
        needed. Skipped steps are not counted.

        Args:
            group: the torch process group of all data-parallel ranks; None for the default one.

        Raises:
            UsageError: nothing is filtered, or there is no such group.
        """
        if self._masked is None:
            raise UsageError("Nothing is masked without max_repeated_ngram=: give it.")
        return self._masked.all_ranks(group)

    def _position(self) -> Cursor:
        return self.dataset.plan.after(self._cursor, self._received)

    def _raw_batches(self, cursor: Cursor) -> Iterator[Batch]:
        reader = self.dataset.batch_reader
        if self.num_workers == 0:
            steps = [
                (range(phase.first, phase.stop), max(1, PLANNED_ROWS // phase.batch_size))
                for phase in self.dataset.plan.phases(cursor)
            ]
            ids = CACHED_BYTES // reader.source.reader.dtype.itemsize
            yield from reader.batches(cursor, steps, ids_at_once=ids)
            return
        from streaming_ext.training.messages import Messages

        messages = Messages(
            reader,
            cursor,
            num_workers=self.num_workers,
            slots=self._workers["prefetch_factor"] + 2,
            inherited=forks(self._workers["multiprocessing_context"]),
        )
        for message in messages_of(messages.of_worker, **self._workers):
            yield messages.read(message)
