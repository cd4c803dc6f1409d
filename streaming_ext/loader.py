"""Whole batches out of a `StreamingTokenDataset`; its state counts what training received."""

import multiprocessing
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from streaming_ext.batches.batch_reader import PLANNED_ROWS, Batch, Blocks
from streaming_ext.batches.tensors import Message, Slots, to_tensors
from streaming_ext.errors import DatasetError, TransientStorageError, UsageError, WorkerDiedError
from streaming_ext.sampler.epoch_plan import Cursor
from streaming_ext.streams import StreamShare
from streaming_ext.token_dataset import StreamingTokenDataset
from streaming_ext.trace import DocumentVisit, SequenceTrace, trace_document, trace_step

CACHED_BYTES = 1 << 19  # ids gathered at once: no more than a core's own cache holds
MESSAGE_BYTES = 2 << 20  # ids a worker sends at once: enough to make the sending cheap


class StreamingTokenLoader:
    """Iterate over the batches of an epoch: dictionaries with `tokens`, int64, and the extras.

    An iteration that was broken off goes on where it was when the next one starts, except where
    short batches are filled up (evaluation): that always starts from the beginning.
    """

    def __init__(
        self,
        dataset: StreamingTokenDataset,
        *,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        pin_memory: bool = False,
        timeout: float | None = None,
        multiprocessing_context: Any = None,
    ) -> None:
        """Choose how batches come.

        Args:
            dataset: what to read.
            num_workers: processes that read ahead; with 0 this process reads.
            prefetch_factor: messages that each worker makes ahead.
            pin_memory: give out tensors in pinned memory, for copies to a GPU that overlap.
            timeout: seconds to wait for a worker; by default what fetching a shard may take.
            multiprocessing_context: how workers start, as in torch's DataLoader.
        """
        if num_workers < 0 or prefetch_factor < 1:
            raise UsageError(
                "`num_workers` must be at least 0 and `prefetch_factor` at least 1, got "
                f"{num_workers} and {prefetch_factor}."
            )
        if pin_memory and not torch.cuda.is_available():
            raise UsageError("pin_memory=True needs a GPU. Pass torch.cuda.is_available() instead.")
        if dataset.batch_size is None:
            raise UsageError("Give the dataset batch_size=, the sequences a rank takes each step.")
        self.dataset = dataset
        self.batch_size: int = dataset.batch_size
        self.num_workers = num_workers
        self._prefetch_factor = prefetch_factor
        self._pin = pin_memory
        longest = dataset.batch_reader.source.patience
        self._timeout = longest if timeout is None else timeout
        self._context = multiprocessing_context
        self._cursor = dataset.start_cursor()
        self._received = 0  # steps since the cursor

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return self.dataset.plan.num_steps(0)

    @property
    def epoch(self) -> int:
        """Number of the epoch that the last batch was of."""
        return self._cursor.epoch

    @property
    def step(self) -> int:
        """Steps of this epoch that training received, for an unchanged global batch."""
        return self._position().place // self.dataset.plan.slices.global_batch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The batches that are left of this epoch, or all of the next one.

        Raises:
            DatasetError: a shard is missing or damaged; never a short epoch.
            WorkerDiedError: a worker was killed.
        """
        plan = self.dataset.plan
        if not self.dataset.drop_last and self._received:
            self._cursor = replace(self._cursor, place=0)
        else:
            self._cursor = self._position()
        self._received = 0
        if plan.num_steps(self._cursor.place) == 0:
            self._cursor = plan.next_epoch(self._cursor)
        planned = plan.num_steps(self._cursor.place)
        epoch = self._cursor.epoch
        while planned and self._cursor.epoch == epoch:
            begun = self._cursor
            yield from self._batches(begun, planned)
            if self._cursor is begun:
                return
            planned = plan.num_steps(self._cursor.place)  # training was moved on meanwhile

    def _batches(self, begun: Cursor, planned: int) -> Iterator[dict[str, Any]]:
        """The steps behind a cursor, until training is moved to another one."""
        for raw in self._raw_batches(begun, planned):
            for batch in self.dataset.batch_reader.split(raw, rows=self.batch_size):
                # Counted before it is handed over: a state saved in the loop's body has it.
                self._received += 1
                yield to_tensors(batch, pin=self._pin)
                del batch  # the next one may have its memory
                if self._cursor is not begun:
                    return
        if self._received != planned:
            raise DatasetError(
                f"Epoch {begun.epoch} ended after {self._received} of {planned} steps."
            )

    def skip(self, steps: int) -> None:
        """Leave out the next steps, as if training had received them: after a spike of its loss.

        An iteration that runs goes on behind them. What it skips beyond the end of an epoch is
        skipped of the next one.

        Args:
            steps: how many, at least 0.

        Raises:
            UsageError: less than 0, or in an evaluation, which always holds everything.
        """
        if steps < 0:
            raise UsageError(f"`steps` to skip must be at least 0, got {steps}.")
        if not self.dataset.drop_last:
            raise UsageError("An evaluation holds every sequence: nothing of it can be skipped.")
        plan, here = self.dataset.plan, self._position()
        while steps > (left := plan.num_steps(here.place)):
            here, steps = plan.next_epoch(here), steps - left
        place = here.place + steps * plan.slices.global_batch
        self._cursor, self._received = replace(here, place=place), 0

    def state_dict(self) -> dict[str, Any]:
        """Where training stands, between two steps: what it received, not what workers prepared."""
        return self.dataset.resume.state_of(self._position()).to_dict()

    def load_state_dict(
        self, state: Mapping[str, Any], *, allow_changes: Collection[str] = ()
    ) -> None:
        """Let the next iteration go on from a state; see the dataset's `load_state_dict`."""
        self._cursor = self.dataset.resume.cursor_of(state, allow_changes=allow_changes)
        self._received = 0

    def trace(self, step: int) -> list[SequenceTrace]:
        """Which documents each sequence of a step of this epoch holds, over all ranks.

        Args:
            step: counted from the start of the epoch.
        """
        return trace_step(self.dataset, step, cursor=self._cursor)

    def trace_document(self, source: str, row: int) -> list[DocumentVisit]:
        """The steps of this epoch that hold a document, also those that are still to come.

        Args:
            source: URL of its source file, or the end of it that no other file has.
            row: of the document in it, from 0.
        """
        return trace_document(self.dataset, source, row, cursor=self._cursor)

    @property
    def tokens_seen(self) -> int:
        """Tokens that training received since its start, over all ranks.

        Padding counts, and so does what was left out at the end of an epoch, which is less than a
        global batch each time.
        """
        return sum(self._seen()) * self.dataset.sequence_length

    def achieved(self) -> list[StreamShare]:
        """What training received of each stream since its start; counted as `tokens_seen` is."""
        seen = self._seen()
        total = max(1, sum(seen))
        domains = self.dataset.domains
        return [
            StreamShare(
                stream=number, domain=domains[domain], sequences=count,
                tokens=count * self.dataset.sequence_length, share=count / total,
                passes=count / size,
            )
            for number, (domain, count, size) in enumerate(
                zip(self.dataset.domain_of_stream, seen, self.dataset.plan.sizes, strict=True)
            )
        ]  # fmt: skip

    def _seen(self) -> tuple[int, ...]:
        return self.dataset.plan.seen(self._position())

    def _position(self) -> Cursor:
        place = self._cursor.place + self._received * self.dataset.plan.slices.global_batch
        return replace(self._cursor, place=min(place, self.dataset.plan.epoch_size))

    def _raw_batches(self, cursor: Cursor, steps: int) -> Iterator[Batch]:
        if self.num_workers == 0:
            blocks = Blocks(steps=steps, size=max(1, PLANNED_ROWS // self.batch_size))
            together = _steps_in(CACHED_BYTES, self.dataset)
            yield from self.dataset.batches(cursor, blocks, together=together)
            return
        messages = _Messages(
            self.dataset, cursor, steps, num_workers=self.num_workers,
            slots=self._prefetch_factor + 2, inherited=self._forks(),
        )  # fmt: skip
        for message in self._messages(messages):
            yield messages.slots.read(message)

    def _forks(self) -> bool:
        context = self._context
        if context is None:
            return multiprocessing.get_start_method() == "fork"
        return (context if isinstance(context, str) else context.get_start_method()) == "fork"

    def _messages(self, messages: "_Messages") -> Iterator[Message]:
        loader: DataLoader[Any] = DataLoader(
            messages,
            batch_size=None,
            num_workers=self.num_workers,
            prefetch_factor=self._prefetch_factor,
            collate_fn=_as_it_is,
            timeout=self._timeout,
            multiprocessing_context=self._context,
            worker_init_fn=_end_with_parent if self._forks() else None,
        )
        iterator = iter(loader)
        try:
            yield from iterator
        except RuntimeError as error:
            text = str(error)
            if "timed out" in text:
                raise TransientStorageError(
                    f"No worker gave a batch within {self._timeout:g} s. Look at the storage, or "
                    "raise timeout=."
                ) from error
            if "DataLoader worker" in text and ("exited" in text or "killed" in text):
                raise WorkerDiedError(
                    f"A worker died while it made a batch: {text} Resume from the last state; if "
                    "it was killed for memory, lower num_workers."
                ) from error
            raise
        finally:
            # Left to the garbage collector, workers may never be told to end, and torch waits
            # five seconds for each of them.
            iterator._shutdown_workers()  # type: ignore[attr-defined]


def _end_with_parent(_: int) -> None:
    """End this forked worker when its parent is gone.

    Torch looks too, but where the parent dies before a worker first looks, it takes whoever
    inherited the worker for its parent, and the worker stays for ever.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch(pid: int | None) -> None:
        while os.getppid() == pid:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, args=(parent.pid,), daemon=True).start()


def _steps_in(size: int, dataset: StreamingTokenDataset) -> int:
    """Steps whose ids take `size` bytes, 1 to 64."""
    row_bytes = dataset.batch_reader.source.dtype.itemsize * dataset.sequence_length
    return max(1, min(64, size // (row_bytes * (dataset.batch_size or 1))))


def _as_it_is(message: Any) -> Any:
    return message


class _Messages(IterableDataset[Message]):
    """What a worker sends: where in its slots the rows of some steps are."""

    def __init__(
        self,
        dataset: StreamingTokenDataset,
        cursor: Cursor,
        steps: int,
        *,
        num_workers: int,
        slots: int,
        inherited: bool,
    ) -> None:
        self._dataset = dataset
        self._cursor = cursor
        self._steps = steps
        rows = dataset.batch_size or 1
        row_bytes = dataset.batch_reader.source.dtype.itemsize * dataset.sequence_length
        self._together = _steps_in(MESSAGE_BYTES, dataset)
        self.slots = Slots(workers=num_workers, each=slots, rows=self._together * rows,
                           row_bytes=row_bytes, inherited=inherited)  # fmt: skip

    def __iter__(self) -> Iterator[Message]:
        info = get_worker_info()
        if info is None:
            raise UsageError("Messages are made in workers only.")
        blocks = Blocks(steps=self._steps, size=self._together, worker=info.id,
                        num_workers=info.num_workers)  # fmt: skip
        batches = self._dataset.batch_reader.batches(
            self._cursor, blocks, together=self._together, whole=True
        )
        for number, batch in enumerate(batches):
            yield self.slots.write(batch, worker=info.id, number=number)
