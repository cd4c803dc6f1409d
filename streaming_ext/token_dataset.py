"""What training reads: a `streaming.StreamingDataset` whose order and resume are exact."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streaming_ext.arguments.kinds import count, seconds
from streaming_ext.arguments.of_stock import refuse_stock, require_stock_world
from streaming_ext.batches.context import context_slice
from streaming_ext.batches.prefetch import sequences_ahead
from streaming_ext.checkpoint.position import TrainingPosition
from streaming_ext.checkpoint.resume import resume_of
from streaming_ext.domains.token_domains import open_domains
from streaming_ext.errors import DatasetError, UsageError
from streaming_ext.exclusions import Exclusions, excluded_documents, without_sequences_of
from streaming_ext.loading.batch_reader import PLANNED_ROWS, BatchReader
from streaming_ext.loading.blocks import StepsInTurn
from streaming_ext.loading.newest import Newest
from streaming_ext.loading.opening import end_of_text, open_streams
from streaming_ext.loading.tensors import samples_of
from streaming_ext.packing.sources import source_of
from streaming_ext.sampler.cursor import Cursor
from streaming_ext.sampler.grown.opening import earlier_of
from streaming_ext.sampler.nodes.node_local import find_node_group, plan_of
from streaming_ext.sampler.rank_slices import RankSlices
from streaming_ext.sampler.ranks import find_rank
from streaming_ext.sampler.settings import DEFAULT_WINDOW, OrderSettings
from streaming_ext.stock import streaming
from streaming_ext.streams import (
    TokenStream,
    domains_of,
    mixing_of,
    one_or_several,
    sequences_an_epoch,
)
from streaming_ext.units import parse_bytes, parse_count


class StreamingTokenDataset(streaming.StreamingDataset):  # type: ignore[misc, name-defined, unused-ignore]
    """Sequences of tokens in an order that is a function of seed and data alone.

    Arguments that mosaicml-streaming has too mean what they mean there. Its own start-up, shared
    memory, lock files and threads are not used.

    Args:
        streams: several datasets, in place of `remote` and `local`.
        remote: where the dataset is published; None when it is all local.
        local: cache for the raw shards; the dataset itself when `remote` is None.
        split: `train`, `holdout`, or None where the folder is a plain MDS set itself.
        sequence_length: tokens a sequence; the dataset's own unless given. Also as a schedule in
            tokens of training, "0:512 10B:2048"; each length divides the longest.
        batch_size: sequences a rank and step: the DataLoader's batch size.
        global_batch: in place of it, sequences a step over all ranks; also as a schedule, "0:768
            250B:1536". Schedules of either need `StreamingTokenLoader`.
        shuffle: shuffle units and windows, with a new order each pass.
        shuffle_seed: any whole number from 0, below 2^63.
        shuffle_block_size: sequences of a lane that are shuffled among each other.
        num_canonical_nodes: lanes through the data: 8 when shuffled, else 1. A multiple of
            the number of nodes lets each node fetch only its share.
        epoch_size: sequences an epoch, all by default; further epochs go on from there.
        drop_last: leave out the last step of an epoch that is less than a global batch. By
            default so, except for the holdout split: there it is filled up, and `real` says
            which rows count.
        at_max_repeats: what to do where a stream reaches its `max_repeats`: `error`, or
            `renormalize`: the others take over in their proportions.
        batching_method: `random` mixes streams in a step, `stratified` in the proportions of the
            epoch; `per_stream` fills a step from one, `device_per_stream` each rank's batch.
        packing: `best_fit` for rows of whole documents, planned once, where only those that are
            longer than a row are cut; None for sequences cut out of one stream.
        document_multiple: of tokens that each document takes in a packed row, padding with it.
        exclude: a Parquet table of documents (`source` and `row`, as `shardmill trace --output`
            writes it); packed rows do not hold them, sequences with a token of one do not come.
        max_repeated_ngram: how often some words of 1 to 13 tokens may stand in a row behind each
            other; rows where they do more often do not count: `real` is False, `targets` -100.
        domain_by: `folder` or `column:NAME`, by which `domain_ids` tells of each token.
        extras: what a batch holds besides `tokens`, see `EXTRAS`.
        eot_id: the id that ends a document, where the dataset does not say.
        token_dtype: type of an id, where a set of another tool stores them as bytes:
            `uint16`, `uint32`, `int32` or `int64`.
        reading: `maps` of shards in memory, or `files` that are read by position, without maps.
        predownload: sequences a rank fetches ahead of their use; half a shuffle window by default.
        cache_limit: bytes that the cache may hold; what has no remote is never evicted.
        download_retry: further attempts after half a minute of failures; 0 for none at all.
        download_timeout: seconds for one file, all attempts together.
        storage_options: handed to fsspec.
        replication: consecutive ranks of the environment that read the same.
        dp_rank: data-parallel rank, with `dp_world_size`.
        dp_world_size: number of data-parallel ranks.
        device_mesh: one-dimensional mesh of the data-parallel ranks.
        process_group: group of the data-parallel ranks.
        cp_rank: rank within a context-parallel group, with `cp_size`: it gets its part of each row.
        cp_size: ranks of that group.
        cp_layout: `balanced` (its first and last pieces), `documents` (of each) or `contiguous`.
        node_local: each node reads its own share of the data, by default where the manifest says
            that it is one; or a folder with all manifests, where there is no process group.

    Raises:
        UsageError: an argument is not allowed; the message says which and what is.
        DatasetError: there is no dataset, or it is damaged.
    """

    def __init__(
        self,
        *,
        streams: Sequence[TokenStream] | None = None,
        remote: str | None = None,
        local: str | Path | None = None,
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
        at_max_repeats: str = "error",
        batching_method: str = "random",
        packing: str | None = None,
        document_multiple: int | None = None,
        exclude: str | Path | None = None,
        max_repeated_ngram: int | None = None,
        domain_by: str | None = None,
        extras: Collection[str] = (),
        eot_id: int | None = None,
        token_dtype: str | None = None,
        reading: str = "maps",
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
        **stock: Any,
    ) -> None:
        """Open the dataset; no shard is read yet."""
        refuse_stock(stock)
        predownload = count("predownload", predownload, least=1, optional=True)
        download_retry = count("download_retry", download_retry, least=0)
        exclusions = None if exclude is None else Exclusions.read(exclude)
        order = OrderSettings(
            split=split,
            sequence_length=sequence_length,
            batch_size=batch_size,
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            shuffle_block_size=shuffle_block_size,
            num_canonical_nodes=num_canonical_nodes,
            drop_last=drop_last,
            packing=packing,
            batching_method=batching_method,
            document_multiple=document_multiple,
            exclude=None if exclusions is None else exclusions.fingerprint,
            max_repeated_ngram=max_repeated_ngram,
            global_batch=global_batch,
        )
        rank = find_rank(
            dp_rank=dp_rank,
            dp_world_size=dp_world_size,
            device_mesh=device_mesh,
            process_group=process_group,
            replication=replication,
        )
        self.streams = one_or_several(streams, remote=remote, local=local)
        self.domains, self.domain_of_stream = domains_of(self.streams)
        mixing = mixing_of(self.streams, at_max_repeats=at_max_repeats, batching=batching_method)
        self.split, self.shuffle, self.shuffle_seed = split, order.shuffle, order.shuffle_seed
        self.shuffle_block_size = order.shuffle_block_size
        self.num_canonical_nodes, self.drop_last = order.lanes, order.drops_last
        self.dp_rank, self.dp_world_size = rank.rank, rank.size
        self.cache_limit = parse_bytes(cache_limit, name="cache_limit")
        caches = open_streams(
            self.streams,
            split=split,
            limit=self.cache_limit,
            retries=download_retry,
            timeout=seconds("download_timeout", download_timeout),
            options=storage_options or {},
            token_dtype=token_dtype,
            sequence_length=order.longest,
        )
        indexes = [cache.index for cache in caches]
        self.unknown = tuple(dict.fromkeys(word for index in indexes for word in index.unknown))
        self.eot_id = end_of_text(indexes, eot_id)
        sizes = order.sizes(own_length=indexes[0].sample_tokens, num_ranks=rank.size)
        self.sequence_length, self._has_batch = sizes.length, sizes.named
        self.batch_size = sizes.batch_size if sizes.named and not sizes.changing else None
        self.token_domains = open_domains(caches, domain_by, maps=reading == "maps")
        if self.token_domains is not None:
            self.domains = self.token_domains.names
        documents = excluded_documents(exclusions, caches)
        source = source_of(
            caches,
            packing=packing,
            length=self.sequence_length,
            cache_limit=self.cache_limit,
            left_out=documents,
            multiple=order.document_multiple,
            reading=reading,
        )
        self.reader = source.reader
        told = (dp_rank, device_mesh, process_group, replication)
        context = context_slice(
            cp_rank,
            cp_size,
            lengths=sizes.lengths,
            layout=cp_layout,
            multiple=order.document_multiple,
            told=any(each is not None for each in told),
        )
        self._bounds = source.bounds(self.sequence_length)
        bounds, left_out = without_sequences_of(
            documents if packing is None else None, self._bounds, self.sequence_length
        )
        counts = [int(own[-1]) for own in bounds]
        self.epoch_size = parse_count(epoch_size, name="epoch_size")
        self.node_group = find_node_group(
            indexes,
            node_local=node_local,
            rank=rank,
            sequences=counts[0],
            whole_epochs=self.epoch_size is None,
            mesh=device_mesh,
            group=process_group,
            settings=order.of_group(sizes),
            domain_by=domain_by,
        )
        own = rank if self.node_group is None else self.node_group.rank
        self.plan = plan_of(
            self.node_group,
            order.spec,
            bounds=bounds,
            drop_last=self.drop_last,
            left_out=left_out,
            choose=sequences_an_epoch(self.streams, counts, epoch_size=self.epoch_size),
            batching=sizes.batching,
            slices=RankSlices(
                batch_size=sizes.batch_size,
                lanes=sizes.lanes,
                rank=own.rank,
                num_ranks=own.size,
                pieces=sizes.pieces,
            ),
            length=sizes.length,
            sizes=sizes.changing,
            mixing=mixing,
            earlier=earlier_of(indexes, sizes.length, plain=packing is None and documents is None),
        )
        ahead = sequences_ahead(
            order.spec,
            sizes=counts,
            shards=self.reader.num_shards,
            ranks=own.size,
            batch_size=sizes.largest,
        )
        self.predownload = ahead if predownload is None else predownload
        self.batch_reader = BatchReader(
            self.plan,
            source,
            sequence_length=self.sequence_length,
            extras=extras,
            eot_id=self.eot_id,
            predownload=self.predownload,
            max_repeated_ngram=order.max_repeated_ngram,
            domain_of_stream=self.domain_of_stream,
            domains=self.token_domains,
            context=context,
        )
        self.resume = resume_of(
            self.node_group,
            self.plan,
            caches,
            settings=order.identity(sizes)
            | ({} if mixing is None else mixing.identity())
            | ({} if domain_by is None else {"domain_by": domain_by}),
            lanes=self.num_canonical_nodes,
        )
        self._progress, self._newest = TrainingPosition(self.resume), Newest("dataset")
        self.loaded_state: Mapping[str, Any] = {}
        self.loaded_place: Cursor | None = None  # that it is of
        # What stock StreamingDataLoader divides its count of samples by.
        world = streaming.base.world.World.detect().num_ranks
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
        self.loaded_place = None

    def __len__(self) -> int:
        """Sequences of this rank in a whole epoch."""
        self._require_one_size()
        return self.plan.steps_left(self.plan.start(0)) * self.plan.slices.batch_size

    def get_item(self, sample_id: int, retry: int = 7) -> dict[str, Any]:
        """One sequence by its number on disk, streams one after another."""
        numbers = np.cumsum([0] + [int(bounds[-1]) for bounds in self._bounds])
        stream = int(np.searchsorted(numbers, sample_id, side="right")) - 1
        batch = self.batch_reader.read(stream, np.array([sample_id - numbers[stream]]))
        return samples_of(self.batch_reader.finish(batch))[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The sequences of this rank and worker, of the next epoch or from where a state was.

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
        self._progress.ask()
        return self._samples()

    def _samples(self) -> Iterator[dict[str, Any]]:
        size = self.plan.slices.batch_size
        progress, own = self._progress, self._newest.begin()
        here = progress.begin()
        blocks = StepsInTurn(
            steps=self.plan.steps_left(here.cursor),
            worker=here.worker,
            num_workers=here.num_workers,
            size=max(1, PLANNED_ROWS // size),
            first=progress.yielded // size,
        )
        for batch in self.batch_reader.batches(here.cursor, blocks, gathered=0):
            for sample in samples_of(self.batch_reader.finish(batch)):
                progress.yielded += 1
                yield sample
                self._newest.require(own)
        if progress.yielded != (planned := blocks.own_steps * size):
            raise DatasetError(
                f"Epoch {here.cursor.epoch} ended after {progress.yielded} of {planned} sequences."
            )

    def state_dict(
        self, num_samples: int | None = None, from_beginning: bool = False
    ) -> dict[str, Any]:
        """Where training stands; see docs/training.md for what it holds.

        Args:
            num_samples: sequences that training received in this iteration, over all ranks; None
                for those that this process gave out, which is right without workers, and in the
                workers of torchdata's StatefulDataLoader.
            from_beginning: whether `num_samples` counts from the start of the epoch, also after
                a resume.
        """
        if num_samples is not None:
            require_stock_world(self.dp_world_size, replication=self.replication)
            num_samples //= 1 if self.node_group is None else len(self.node_group.sequences)
        return self._progress.state(num_samples, from_beginning=from_beginning)

    def load_state_dict(
        self,
        obj: Mapping[str, Any],
        *,
        allow_changes: Collection[str] = (),
        extend_state: bool = False,
    ) -> None:
        """Let the next iteration go on from a state; the state is left as it is.

        Args:
            obj: from `state_dict` of this class or of its loader.
            allow_changes: fields of `order`, or `streams`, that may differ from the state's.
            extend_state: let a state of an older generation of the dataset go on in this one: with
                what was not yet seen of the pass, and the new sequences, each once.

        Raises:
            ConfigMismatchError: a setting that decides the order differs.
        """
        self.loaded_place = self._progress.load(
            obj, allow_changes=allow_changes, extend_state=extend_state
        )
        self.loaded_state = obj

    def close(self) -> None:
        """Wait until nothing of this process reads ahead, before the cache is removed."""
        self.batch_reader.source.close()

    def start_cursor(self) -> Cursor:
        """Where the next iteration starts."""
        return self._progress.upcoming()

    def require_batch_size(self) -> None:
        """Refuse to make batches of a size that nobody named."""
        if not self._has_batch:
            raise UsageError(
                "Give batch_size=, the sequences a rank takes each step, as to the DataLoader: "
                "it decides what a step holds. Or give global_batch=, those of all ranks."
            )

    def _require_one_size(self) -> None:
        """Refuse what only `StreamingTokenLoader` can do."""
        self.require_batch_size()
        if self.plan.varies:
            raise UsageError(
                "global_batch or sequence_length changes during training: a DataLoader has one "
                "batch_size and takes one row at a time. Use StreamingTokenLoader(dataset)."
            )
