"""The dataset that training reads: a `streaming.StreamingDataset` with exact order and resume."""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import numpy as np

from streaming_ext.base.errors import DatasetError, UsageError
from streaming_ext.base.kinds import count
from streaming_ext.order.ranks import DataRank, find_rank
from streaming_ext.order.settings import DEFAULT_WINDOW
from streaming_ext.order.state import Cursor
from streaming_ext.order.steps import StepSizes
from streaming_ext.reading.prefetch import end_all, sequences_ahead
from streaming_ext.training.arguments import TokenStream, described, settings_of
from streaming_ext.training.batch_reader import PLANNED_ROWS, BatchReader, samples_of
from streaming_ext.training.features.mixing import mixing_of
from streaming_ext.training.opening import (
    end_of_text,
    fingerprints_of,
    identity_of,
    open_columns,
    open_context,
    open_domains,
    open_nodes,
    open_plan,
    open_source,
    open_streams,
    streams_of,
)
from streaming_ext.training.position import Newest, TrainingPosition
from streaming_ext.training.resume import Resume
from streaming_ext.training.stock import stock_ranks, streaming
from streaming_ext.training.workers import end_without_hooks, this_worker

if TYPE_CHECKING:
    from streaming_ext.text.tokenizer.tokenizer import Tokenizer


class StreamingTokenDataset(streaming.StreamingDataset):  # type: ignore[misc, name-defined, unused-ignore]
    """Sequences of tokens in an order that is a function of seed and data alone.

    Arguments of mosaicml-streaming keep their meaning. Its start-up, shared memory, lock files and
    threads are not used. Each argument is a field of one of four objects, which describe them:
    `OrderSettings` for the order, `DataLocation` for the location of the data, `RankPosition` for
    the rank that reads, `BatchContents` for the contents of a batch.

    Raises:
        UsageError: an argument is not allowed; the message names it and says what is allowed.
        DatasetError: there is no dataset, or it is damaged.
    """

    @described
    def __init__(
        self,
        *,
        split: str | None = "train",
        sequence_length: int | str | None = None,
        batch_size: int | None = None,
        global_batch: int | str | None = None,
        shuffle: bool = False,
        shuffle_seed: int = 9176,
        shuffle_block_size: int = DEFAULT_WINDOW,
        num_canonical_nodes: int | None = None,
        epoch_size: int | str | None = None,
        drop_last: bool | None = None,
        batching_method: str = "random",
        packing: str | None = None,
        document_multiple: int | None = None,
        exclude: str | Path | None = None,
        max_repeated_ngram: int | None = None,
        streams: Sequence[TokenStream] | None = None,
        remote: str | None = None,
        local: str | Path | None = None,
        proportion_by: str | None = None,
        proportions: Mapping[Any, float | str] | None = None,
        token_dtype: str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        download_retry: int = 2,
        download_timeout: float = 60.0,
        storage_options: Mapping[str, Any] | None = None,
        replication: int | None = None,
        dp_rank: int | None = None,
        dp_world_size: int | None = None,
        device_mesh: Any = None,
        process_group: Any = None,
        cp_rank: int | None = None,
        cp_size: int | None = None,
        cp_layout: str = "balanced",
        node_local: bool | str | Path | None = None,
        extras: str | Collection[str] = (),
        eot_id: int | None = None,
        domain_by: str | None = None,
        tokenizer: Any = None,
        **stock: Never,
    ) -> None:
        """Open the dataset without reading a shard."""
        settings = settings_of(locals(), stock)
        self.order, self.location, self.position, self.contents = settings
        order, rank = self.order, find_rank(self.position)
        self.streams = streams_of(self.location)
        mixing = mixing_of(self.streams, order)
        caches = open_streams(self.streams, order, self.location)
        if tokenizer is not None:
            from streaming_ext.training.features.tokenizer import require_tokenizer

            require_tokenizer(caches, tokenizer)
            self.contents = replace(self.contents, tokenizer=None)  # workers do not need it
        self.eot_id = end_of_text(caches, self.contents.eot_id)
        self.unknown = tuple(dict.fromkeys(word for each in caches for word in each.index.unknown))
        steps = order.steps(own_length=caches[0].index.sample_tokens, num_ranks=rank.size)
        self.source = source = open_source(caches, self.streams, order, steps.longest)
        self.reader = source.reader
        if self.location.proportion_by is not None and rank.rank == 0:
            from streaming_ext.training.features.where import log_left_out

            log_left_out(source, self.location.proportion_by)
        self.domain_column = open_domains(caches, self.streams, self.contents.domain_by)
        columns = open_columns(order, self.contents, self.domain_column)
        parts = [source, *columns, self.domain_column, *([mixing] if mixing else [])]
        named = identity_of(order.identity(steps, num_ranks=rank.size), parts)
        self.nodes = open_nodes(source, self.position, rank, named)
        self.plan = open_plan(
            source, order, steps, rank, self.streams, mixing=mixing, nodes=self.nodes
        )
        self.batch_reader = BatchReader(
            plan=self.plan,
            source=source,
            columns=columns,
            eot_id=self.eot_id,
            predownload=self.location.predownload or sequences_ahead(self.plan, source),
            context=open_context(self.position, order, steps),
        )
        self.resume = Resume(
            plan=self.plan,
            settings=named | (self.nodes.identity() if self.nodes else {}),
            fingerprints=fingerprints_of(source, self.nodes),
        )
        self._progress, self._newest = TrainingPosition(self.plan), Newest("dataset")
        self.loaded_state: Mapping[str, Any] = {}
        self.loaded_cursor: Cursor | None = None  # the cursor of `loaded_state`
        self._set_stock_attributes(steps, rank)

    def __repr__(self) -> str:
        """Name the data, their size, the rank and its batches in one line."""
        where = ", ".join(stream.name for stream in self.streams)
        batch = "" if self.batch_size is None else f", batch_size={self.batch_size}"
        return (
            f"{type(self).__name__}({where!r}, split={self.split!r}, {self.size:,} sequences of "
            f"{self.sequence_length:,} tokens, rank {self.dp_rank} of {self.dp_world_size}{batch})"
        )

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer of the data, opened from the dataset: `encode`, `decode`, `vocab_size`.

        Raises:
            UsageError: the dataset does not say which tokenizer made it.
            TokenizerError: its files are damaged.
        """
        from streaming_ext.training.features.tokenizer import open_tokenizer

        return open_tokenizer(self.reader.caches[0])

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains of `domain_ids`, in the order of their numbers."""
        return self.domain_column.domains

    def _set_stock_attributes(self, steps: StepSizes, rank: DataRank) -> None:
        """Set the attributes of stock StreamingDataset that its users read."""
        order = self.order
        self.split, self.shuffle, self.shuffle_seed = order.split, order.shuffle, order.shuffle_seed
        self.shuffle_block_size, self.epoch_size = order.shuffle_block_size, order.epoch_size
        self.num_canonical_nodes, self.drop_last = order.canonical_nodes, order.drops_last
        self.cache_limit, self.sequence_length = self.location.limit, steps.longest
        self.dp_rank, self.dp_world_size = rank.rank, rank.size
        self.batch_size = None if steps.change or not order.names_batch else self.plan.batch_size
        # Stock StreamingDataLoader divides its count of samples by this.
        world = stock_ranks()
        self.replication = world // rank.size if world > rank.size else None

    @property
    def size(self) -> int:
        """The number of sequences of all streams."""
        return sum(int(bounds[-1]) for bounds in self.source.bounds)

    num_samples = size

    @property
    def next_epoch(self) -> int:
        """The number of the epoch of the next iteration."""
        return self._progress.upcoming().epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._progress.move(self.plan.start(epoch))
        self.loaded_cursor = None

    def __len__(self) -> int:
        """Return the number of sequences of this rank in a complete epoch."""
        self._require_one_size()
        return self.plan.steps_left(self.plan.start(0)) * self.plan.batch_size

    def get_item(self, sample_id: int, retry: int = 7) -> dict[str, Any]:
        """Read one sequence by its number on disk, counted over the streams one after another."""
        sample_id = range(self.size)[sample_id]  # raises IndexError
        firsts = [0, *accumulate(int(bounds[-1]) for bounds in self.source.bounds)]
        stream = bisect_right(firsts, sample_id) - 1
        batch = self.batch_reader.read(stream, np.array([sample_id - firsts[stream]]))
        return samples_of(self.batch_reader.finish(batch))[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the sequences of this rank and worker, of the next epoch or from a state on.

        Raises:
            DatasetError: the epoch would end early, whatever the reason.
            UsageError: another iteration began meanwhile.
        """
        if {"cu_seqlens", "max_seqlen"} & self.batch_reader.names:
            raise UsageError(
                "cu_seqlens and max_seqlen are of whole batches. Use StreamingTokenLoader, or "
                "leave them out of extras."
            )
        self._require_one_size()
        return self._samples()

    def _samples(self) -> Iterator[dict[str, Any]]:
        size = self.plan.batch_size
        progress, number = self._progress, self._newest.begin()
        end_without_hooks()
        cursor, (worker, num_workers) = progress.begin(), this_worker()
        # A plain DataLoader takes the steps of its workers in turn.
        own = range(worker, self.plan.steps_left(cursor), num_workers)
        steps = [(own, max(1, PLANNED_ROWS // size))]
        for batch in self.batch_reader.batches(cursor, steps, ids_at_once=0):
            for sample in samples_of(self.batch_reader.finish(batch)):
                progress.yielded += 1
                yield sample
                self._newest.require(number)
        if progress.yielded != (planned := len(own) * size):
            raise DatasetError(
                f"Epoch {cursor.epoch} ended after {progress.yielded} of {planned} sequences."
            )

    def state_dict(
        self, num_samples: int | None = None, from_beginning: bool = False
    ) -> dict[str, Any]:
        """Return the state of training; docs/reference/states.md describes it.

        Args:
            num_samples: sequences that training received in this iteration, over all ranks; None
                to count those that this process yielded, which is right without workers.
            from_beginning: True to count `num_samples` from the start of the epoch, also after a
                resume.
        """
        if num_samples is not None:
            ranks = stock_ranks() // (self.replication or 1)
            if ranks != self.dp_world_size:
                raise UsageError(
                    f"StreamingDataLoader sees {ranks} ranks in the environment, this dataset has "
                    f"{self.dp_world_size}. Launch with torchrun, or use StreamingTokenLoader."
                )
            num_samples = count("num_samples", num_samples, least=0)
            num_samples //= 1 if self.nodes is None else self.nodes.nodes
        cursor = self._progress.at(num_samples, from_beginning=from_beginning)
        return self.resume.state_of(cursor).to_dict()

    def load_state_dict(
        self,
        obj: Mapping[str, Any],
        *,
        allow_changes: Collection[str] = (),
        extend_state: bool = False,
    ) -> None:
        """Make the next iteration resume from a state, which is not changed.

        Args:
            obj: a result of `state_dict`, of this class or of its loader.
            allow_changes: fields of `order`, or `streams`, that may differ from the state's.
            extend_state: True to let a state of an older generation of the dataset resume in this
                one: the unseen sequences of the pass and the new ones follow, each once.

        Raises:
            ConfigMismatchError: a setting that decides the order differs.
        """
        saved = self.resume.saved_cursor(
            obj, allow_changes=allow_changes, extend_state=extend_state
        )
        self._progress.move(self.resume.resumed_at(saved))
        self.loaded_cursor, self.loaded_state = saved, obj

    def set_epoch(self, epoch: int) -> None:
        """Refuse a second division among ranks: libraries that divide iterable datasets call this.

        Args:
            epoch: the number of the epoch, which is ignored: epochs follow one another.

        Raises:
            UsageError: there are several ranks, and the dataset yields one rank's sequences only.
        """
        if self.dp_world_size > 1:
            raise UsageError(
                f"This dataset gives the sequences of rank {self.dp_rank} of {self.dp_world_size}. "
                "accelerate and Transformers' Trainer would divide them among the ranks again, and "
                "the rest would never be seen. Use StreamingTokenLoader(dataset), for Trainer in "
                "get_train_dataloader or get_eval_dataloader."
            )

    def close(self) -> None:
        """Stop the threads that read ahead and wait for them, so that the cache can be removed."""
        end_all(self.reader)

    def start_cursor(self) -> Cursor:
        """Return the start of the next iteration."""
        return self._progress.upcoming()

    def require_batch_size(self) -> None:
        """Refuse to make batches if no size was given."""
        if not self.order.names_batch:
            raise UsageError(
                "Give batch_size=, the sequences per rank and step, as to the DataLoader: "
                "it decides what a step holds. Or give global_batch=, those of all ranks."
            )

    def _require_one_size(self) -> None:
        """Refuse settings that only `StreamingTokenLoader` supports."""
        self.require_batch_size()
        if self.plan.steps.change:
            raise UsageError(
                "global_batch or sequence_length changes during training: a DataLoader has one "
                "batch_size and takes one row at a time. Use StreamingTokenLoader(dataset)."
            )
