"""The documents of a part of a dataset, read shard by shard and cut at end-of-text ids."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from streaming_ext.dataset.layout import SPLITS, Split
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.places import PlacesOfPart, PlacesOfSources
from streaming_ext.dataset.record import PartRecord
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import CorruptDatasetError
from tasks.core.memories import Memory
from tasks.core.reading.dataset_files import DatasetFiles
from tasks.core.reading.lists import documents_of
from tasks.core.reading.opened import naming, places_of
from tasks.core.reading.shard_tokens import Ids, behind, joined, read_with_room
from tasks.core.storage import Storage

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Origins:
    """Where documents come from, for formats that tell it."""

    places: PlacesOfPart | PlacesOfSources
    sources: Ints  # (documents,), of a shuffled dataset
    rows: Ints  # (documents,)


@dataclass(frozen=True, slots=True)
class Documents:
    """Consecutive whole documents of a part's split.

    Attributes:
        stream: their ids, an end-of-text id behind each, (tokens,).
        ends: where each ends in the stream, behind its end-of-text id, (documents,).
        origins: where they come from, if the format wants to know.
    """

    stream: Ids
    ends: Ints
    origins: Origins | None = None

    @property
    def lengths(self) -> Ints:
        """Tokens of each, with its end-of-text id, (documents,)."""
        return np.diff(self.ends, prepend=0)


class PartOfDataset:
    """One part of a published dataset, open for reading.

    Args:
        storage: the dataset's.
        manifest: the dataset's.
        record: of the part.
    """

    def __init__(self, storage: Storage, manifest: Manifest, record: PartRecord) -> None:
        sizes = {file.path: file.size for file in record.files()}
        if manifest.shuffled is not None:
            sizes[manifest.shuffled.sources.path] = manifest.shuffled.sources.size
        self._files = DatasetFiles(storage, sizes)
        self._manifest, self._record = manifest, record
        self._spec: DatasetSpec = manifest.spec

    def documents(
        self,
        split: Split,
        *,
        origins: bool = False,
        read: Callable[[int], None] = lambda size: None,
        memory: Memory | None = None,
    ) -> Iterator[Documents]:
        """All documents of a split, a shard's worth at a time, each until the next is asked for.

        Args:
            split: which one.
            origins: whether to tell where they come from.
            read: called with the size of each shard that was read, in bytes.
            memory: to read into, if there is any yet.

        Raises:
            CorruptDatasetError: a file is missing or damaged, or holds what is not recorded.
            StorageError: it cannot be read.
        """
        told = self._origins(split) if origins else None
        first = 0
        for block in self._blocks(split, read, memory or Memory()):
            last = first + len(block.ends)
            if told is not None:
                part = Origins(told.places, told.sources[first:last], told.rows[first:last])
                block = replace(block, origins=part)  # noqa: PLW2901
            yield block
            first = last
        expected = self._record.splits[split].documents
        if first != expected:
            raise CorruptDatasetError(
                f"{self._files.storage}: part {self._record.part:05} holds {first} documents of "
                f"{split}, {expected} are recorded. `shardmill verify` checks every file."
            )

    def _blocks(
        self, split: Split, read: Callable[[int], None], memory: Memory
    ) -> Iterator[Documents]:
        held = self._record.splits[split]
        left, eot = held.tokens, self._spec.tokenizer.eot_id
        begun: list[Ids] = []  # of a document that ends in a later shard
        for shard in held.shards:
            with naming(self._files, f"{split}/{shard.name}"):
                room = sum(some.nbytes for some in begun)
                samples, held_in = read_with_room(
                    self._files, split, shard, self._spec, memory, before=room
                )
            ids = samples.reshape(-1)[:left]  # (tokens of the shard,), padding left out
            left -= len(ids)
            ends = behind(ids, eot)
            read(shard.size)
            if not len(ends):
                begun.append(ids.copy())
                continue
            cut = int(ends[-1])
            stream, rest = ids[:cut], ids[cut:]
            ends += sum(map(len, begun))
            stream = joined(begun, stream, held_in)
            begun = [rest.copy()] if len(rest) else []
            yield Documents(stream, ends)
        if begun or left:
            raise CorruptDatasetError(
                f"{self._files.storage}: the last document of {split} in part "
                f"{self._record.part:05} has no end. `shardmill verify` checks every file."
            )

    def _origins(self, split: Split) -> Origins:
        with naming(self._files, self._record.documents.path):
            listed = documents_of(self._files, self._record)
        own = listed.filter(pc.equal(listed["split"], SPLITS.index(split)))
        places = places_of(self._files, self._manifest, self._record)
        return Origins(places, own["source"].to_numpy(), own["row"].to_numpy())
