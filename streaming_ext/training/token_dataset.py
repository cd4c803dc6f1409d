"""What training reads: a `streaming.StreamingDataset` whose order and resume are exact."""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from streaming_ext.base.errors import DatasetError, UsageError
from streaming_ext.order.epoch_plan import EpochPlan
from streaming_ext.order.growth import earlier_of
from streaming_ext.order.node_local import NodePlan, find_node_group
from streaming_ext.order.ranks import DataRank, find_rank
from streaming_ext.order.state import Cursor
from streaming_ext.order.steps import StepSizes
from streaming_ext.reading.prefetch import end_all, sequences_ahead
from streaming_ext.reading.source import Sequences, TokenSource
from streaming_ext.training.arguments import settings_of, takes_settings
from streaming_ext.training.batch_reader import PLANNED_ROWS, BatchReader
from streaming_ext.training.features.context import context_slice
from streaming_ext.training.features.domains import open_domains
from streaming_ext.training.features.exclusions import Excluding
from streaming_ext.training.features.packing import Packed
from streaming_ext.training.messages import samples_of
from streaming_ext.training.opening import end_of_text, open_streams, require_a_sequence
from streaming_ext.training.position import Newest, TrainingPosition
from streaming_ext.training.resume import Resume
from streaming_ext.training.stock import stock_ranks, streaming
from streaming_ext.training.streams import domains_of, mixing_of, sequences_an_epoch
from streaming_ext.training.workers import end_without_hooks, this_worker


class StreamingTokenDataset(streaming.StreamingDataset):  # type: ignore[misc, name-defined, unused-ignore]
    """Sequences of tokens in an order that is a function of seed and data alone.

    Arguments of mosaicml-streaming keep their meaning. Its start-up, shared memory, lock files and
    threads are not used. All arguments are fields of one of four objects, which describe them:
    `OrderSettings` what decides the order, `DataLocation` where the data lie, `RankPosition` who
    reads, `BatchContents` what a batch holds.

    Raises:
        UsageError: an argument is not allowed; the message says which and what is.
        DatasetError: there is no dataset, or it is damaged.
    """

    @takes_settings
    def __init__(self, **arguments: Any) -> None:
        """Open the dataset; no shard is read yet."""
        self.order, self.location, self.position, self.contents = settings_of(arguments)
        order, contents = self.order, self.contents
        rank = find_rank(self.position)
        self.streams = self.location.members
        mixing = mixing_of(self.streams, order)
        caches = open_streams(order, self.location)
        indexes = [cache.index for cache in caches]
        self.eot_id = end_of_text(indexes, contents.eot_id)
        self.unknown = tuple(dict.fromkeys(word for index in indexes for word in index.unknown))
        steps = order.steps(own_length=indexes[0].sample_tokens, num_ranks=rank.size)
        source: TokenSource = Sequences(caches, steps.longest)
        if order.exclude is not None:
            source = Excluding(source, order.exclude)
        if order.packing:
            source = Packed(source, multiple=order.document_multiple)
        self.reader = source.reader
        self.token_domains = open_domains(caches, contents.domain_by)
        self.domains, domain_of_stream = domains_of(self.streams)
        if self.token_domains is not None:
            self.domains = self.token_domains.names
        self._bounds, left_out = source.bounds(), source.left_out()
        sizes = [int(bounds[-1]) for bounds in self._bounds]
        require_a_sequence(caches, sizes, steps.longest)
        if left_out is not None:
            sizes = [size - len(out) for size, out in zip(sizes, left_out, strict=True)]
        named = order.named(
            steps,
            num_ranks=rank.size,
            exclude=source.identity().get("exclude"),
            domain_by=contents.domain_by,
            **(mixing.identity() if mixing else {}),
        )
        self.node_group = find_node_group(
            indexes, self.position, rank=rank, sequences=sizes[0], settings=named
        )
        fingerprints = tuple(index.index_hash for index in indexes)
        of_each: dict[str, Any] = {
            "bounds": self._bounds,
            "left_out": left_out,
            "steps": steps,
            "drop_last": order.drops_last,
        }
        if self.node_group is not None:
            named["nodes"], fingerprints = self.node_group.nodes, (self.node_group.fingerprint,)
            self.plan: EpochPlan = NodePlan(order.spec, group=self.node_group, **of_each)
        else:
            self.plan = EpochPlan(
                order.spec,
                **of_each,
                choose=sequences_an_epoch(self.streams, sizes, epoch_size=order.epoch_sequences),
                rank=rank,
                method=order.batching_method,
                mixing=mixing,
                earlier=earlier_of(indexes, steps.longest, plain=not source.identity()),
            )
        predownload = self.location.predownload or sequences_ahead(
            order.spec,
            sizes=sizes,
            shards=self.reader.num_shards,
            ranks=self.plan.rank.size,
            batch_size=steps.global_batch.largest // rank.size,
        )
        self.batch_reader = BatchReader(
            plan=self.plan,
            source=source,
            contents=contents,
            eot_id=self.eot_id,
            predownload=predownload,
            max_repeated_ngram=order.max_repeated_ngram,
            domain_of_stream=np.array(domain_of_stream),
            domains=self.token_domains,
            context=context_slice(
                self.position,
                lengths=[length for _, _, length in steps.entries()],
                multiple=order.document_multiple,
            ),
        )
        self.resume = Resume(plan=self.plan, settings=named, fingerprints=fingerprints)
        self._progress, self._newest = TrainingPosition(self.resume), Newest("dataset")
        self.loaded_state: Mapping[str, Any] = {}
        self.loaded_cursor: Cursor | None = None  # that it is of
        self._set_stock_attributes(steps, rank)

    def _set_stock_attributes(self, steps: StepSizes, rank: DataRank) -> None:
        """What stock StreamingDataset and its users know of a dataset."""
        order = self.order
        self.split, self.shuffle, self.shuffle_seed = order.split, order.shuffle, order.shuffle_seed
        self.shuffle_block_size, self.epoch_size = order.shuffle_block_size, order.epoch_size
        self.num_canonical_nodes, self.drop_last = order.canonical_nodes, order.drops_last
        self.cache_limit, self.sequence_length = self.location.cache_limit, steps.longest
        self.dp_rank, self.dp_world_size = rank.rank, rank.size
        self.batch_size = None if steps.change or not order.names_batch else self.plan.batch_size
        # What stock StreamingDataLoader divides its count of samples by.
        world = stock_ranks()
        self.replication = world // rank.size if world > rank.size else None

    @property
    def size(self) -> int:
        """Sequences of all streams."""
        return sum(int(bounds[-1]) for bounds in self._bounds)

    num_samples = size

    @property
    def next_epoch(self) -> int:
        """Number of the epoch that the next iteration is in."""
        return self._progress.upcoming().epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._progress.restart(epoch)
        self.loaded_cursor = None

    def __len__(self) -> int:
        """Sequences of this rank in a complete epoch."""
        self._require_one_size()
        return self.plan.steps_left(self.plan.start(0)) * self.plan.batch_size

    def get_item(self, sample_id: int, retry: int = 7) -> dict[str, Any]:
        """One sequence by its number on disk, streams one after another."""
        firsts = [0, *accumulate(int(bounds[-1]) for bounds in self._bounds)]
        stream = bisect_right(firsts, sample_id) - 1
        batch = self.batch_reader.read(stream, np.array([sample_id - firsts[stream]]))
        return samples_of(self.batch_reader.finish(batch))[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The sequences of this rank and worker, of the next epoch or from the position of a state.

        Raises:
            DatasetError: before it ends early, whatever the reason.
            UsageError: another iteration began meanwhile.
        """
        if {"cu_seqlens", "max_seqlen"} & self.batch_reader.extras:
            raise UsageError(
                "cu_seqlens and max_seqlen are of whole batches. Use StreamingTokenLoader, or "
                "leave them out of extras."
            )
        self._require_one_size()
        self._progress.request()
        return self._samples()

    def _samples(self) -> Iterator[dict[str, Any]]:
        size = self.plan.batch_size
        progress, number = self._progress, self._newest.begin()
        end_without_hooks()
        cursor, (worker, num_workers) = progress.begin(), this_worker()
        # A plain DataLoader takes the steps of its workers in turn.
        own = range(worker, self.plan.steps_left(cursor), num_workers)
        steps = own[progress.yielded // size :], max(1, PLANNED_ROWS // size)
        for batch in self.batch_reader.batches(cursor, [steps], ids_at_once=0):
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
        """The state of training; docs/reference/states.md describes it.

        Args:
            num_samples: sequences that training received in this iteration, over all ranks; None
                for those that this process gave out, which is right without workers, and in the
                workers of torchdata's StatefulDataLoader.
            from_beginning: whether `num_samples` counts from the start of the epoch, also after
                a resume.
        """
        if num_samples is not None:
            ranks = stock_ranks() // (self.replication or 1)
            if ranks != self.dp_world_size:
                raise UsageError(
                    f"StreamingDataLoader sees {ranks} ranks in the environment, this dataset has "
                    f"{self.dp_world_size}. Launch with torchrun, or use StreamingTokenLoader."
                )
            num_samples //= 1 if self.node_group is None else self.node_group.nodes
        return self._progress.state(num_samples, from_beginning=from_beginning)

    def load_state_dict(
        self,
        obj: Mapping[str, Any],
        *,
        allow_changes: Collection[str] = (),
        extend_state: bool = False,
    ) -> None:
        """Let the next iteration resume from a state, which is not changed.

        Args:
            obj: from `state_dict` of this class or of its loader.
            allow_changes: fields of `order`, or `streams`, that may differ from the state's.
            extend_state: let a state of an older generation of the dataset resume in this one: with
                what was not yet seen of the pass, and the new sequences, each once.

        Raises:
            ConfigMismatchError: a setting that decides the order differs.
        """
        self.loaded_cursor = self._progress.load(
            obj, allow_changes=allow_changes, extend_state=extend_state
        )
        self.loaded_state = obj

    def set_epoch(self, epoch: int) -> None:
        """Refuse to be divided among the ranks again: who divides an iterable dataset calls this.

        Args:
            epoch: its number, which is not needed: epochs follow one another.

        Raises:
            UsageError: the dataset has a rank, and gives this rank's sequences alone.
        """
        if self.dp_world_size > 1:
            raise UsageError(
                f"This dataset gives the sequences of rank {self.dp_rank} of {self.dp_world_size}. "
                "accelerate and Transformers' Trainer would divide them among the ranks again, and "
                "the rest would never be seen. Use StreamingTokenLoader(dataset), for Trainer in "
                "get_train_dataloader or get_eval_dataloader."
            )

    def close(self) -> None:
        """Wait until no thread of this process reads ahead, before the cache is removed."""
        end_all(self.reader)

    def start_cursor(self) -> Cursor:
        """Where the next iteration starts."""
        return self._progress.upcoming()

    def require_batch_size(self) -> None:
        """Refuse to make batches of a size that was not given."""
        if not self.order.names_batch:
            raise UsageError(
                "Give batch_size=, the sequences a rank takes each step, as to the DataLoader: "
                "it decides what a step holds. Or give global_batch=, those of all ranks."
            )

    def _require_one_size(self) -> None:
        """Refuse what only `StreamingTokenLoader` can do."""
        self.require_batch_size()
        if self.plan.steps.change:
            raise UsageError(
                "global_batch or sequence_length changes during training: a DataLoader has one "
                "batch_size and takes one row at a time. Use StreamingTokenLoader(dataset)."
            )
