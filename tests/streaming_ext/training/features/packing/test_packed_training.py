"""Training on rows of whole documents: exact, elastic, resumable, traced."""

import pickle
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from streaming_ext import StreamingTokenLoader, TokenStream
from streaming_ext.base.errors import (
    ConfigMismatchError,
    CorruptDatasetError,
    DatasetError,
    StorageError,
    UsageError,
)
from tests.streaming_ext.build import EOT, build, numbered_parts, some_documents
from tests.streaming_ext.training.features.packing.conftest import LENGTH, MASKS, documents_of


def segments_in(row: list[int]) -> list[list[int]]:
    """The segments of a row; padding is left out."""
    segments: list[list[int]] = [[]]
    for token in row:
        segments[-1].append(token)
        if token == EOT:
            segments.append([])
    return [each for each in segments if each not in ([], [EOT])]


def first_tokens(stream: list[int]) -> dict[tuple[str, int], int]:
    """Where each document of the split begins in its stream, by its source and row."""
    starts = [
        at for at, token in enumerate(stream) if token != EOT and (at == 0 or stream[at - 1] == EOT)
    ]
    rows = [
        (f"mem://source-{part}.parquet", row)
        for part, listed in enumerate(numbered_parts(some_documents(300)))
        for row, (split, _) in enumerate(listed)
        if split == "train"
    ]
    return dict(zip(rows, starts, strict=True))


@pytest.mark.parametrize(
    ("length", "multiple", "workers"),
    [(7, 1, 0), (16, 1, 0), (32, 4, 0), (40, 1, 0), (40, 8, 1), (1000, 1, 0)],
)
def test_every_document_comes_whole_and_once_with_its_masks(
    open_packed, raw, length, multiple, workers
) -> None:
    loader = StreamingTokenLoader(
        open_packed(sequence_length=length, document_multiple=multiple, batch_size=3, extras=MASKS),
        num_workers=workers,
    )
    stream = raw.streams["train"].tolist()
    firsts = first_tokens(stream)
    shard_ends = (np.cumsum(loader.dataset.reader.caches[0].index.samples) * 8).tolist()
    found: list[int] = []  # offsets of all tokens, in their stream
    for step, batch in enumerate(loader):
        edges = [0]
        for number, trace in enumerate(loader.trace(step)):
            row: list[int] = []
            sizes: list[int] = []  # of the segments, and of the padding of the row
            untargeted: list[int] = []
            for span in trace.spans:
                assert span.position == len(row)
                begin = firsts[span.source, span.row] + span.first
                end = begin + span.tokens
                if span.tokens < length:  # the rest of its document
                    assert span.first % length == 0
                    assert stream[end - 1] == EOT
                found += range(begin, end)
                row += stream[begin:end]
                padding = -span.tokens % multiple
                if padding:
                    untargeted += range(len(row) - 1, len(row) + padding)
                    row += [EOT] * padding
                sizes.append(span.tokens + padding)
            if len(row) < length:
                sizes.append(length - len(row))
                untargeted += range(len(row) - 1, length)
                row += [EOT] * sizes[-1]
            targets = [*row[1:], stream[end]]
            if stream[end - 1] == EOT or end in shard_ends:
                targets[-1] = -100
            for at in untargeted:
                targets[at] = -100
            assert {
                name: batch[name][number].tolist()
                for name in ("tokens", "targets", "position_ids", "document_ids")
            } == {
                "tokens": row,
                "targets": targets,
                "position_ids": [position for size in sizes for position in range(size)],
                "document_ids": [each for each, size in enumerate(sizes) for _ in range(size)],
            }
            assert batch["starts_inside"][number] == (trace.spans[0].first > 0)
            edges += [edges[-1] + int(each) for each in np.cumsum(sizes)]
        assert batch["cu_seqlens"].tolist() == edges
        assert batch["max_seqlen"] == max(np.diff(edges))
    left_out = loader.dataset.size % 3  # rows, less than a global batch
    assert len(set(found)) == len(found)
    documents = sum(map(len, documents_of(raw)))
    assert documents - left_out * length <= len(found) <= documents


def test_a_copy_of_the_dataset_and_workers_give_the_same(open_packed) -> None:
    """As a spawned worker gets it."""
    dataset = open_packed(extras=[*MASKS, "sequence_ids"])
    sent = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    for workers in (0, 1):
        batches = [StreamingTokenLoader(dataset), StreamingTokenLoader(sent, num_workers=workers)]
        for ours, theirs in zip(*batches, strict=True):
            assert ours.keys() == theirs.keys()
            assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_packing_is_part_of_the_state(open_packed, open_raw) -> None:
    state = StreamingTokenLoader(open_packed()).state_dict()
    assert state["order"]["packing"] == "best_fit"
    plain = StreamingTokenLoader(open_raw(sequence_length=LENGTH))
    assert "packing" not in plain.state_dict()["order"]
    with pytest.raises(ConfigMismatchError, match="packing: the state has 'best_fit'"):
        plain.load_state_dict(state)
    with pytest.raises(ConfigMismatchError, match="packing: the state has None"):
        StreamingTokenLoader(open_packed()).load_state_dict(plain.state_dict())


def test_a_mixture_of_two(raw, tmp_path, open_packed) -> None:
    other = build(tmp_path / "other", numbered_parts(some_documents(90, seed=5)))
    streams = [
        TokenStream(remote=str(raw.root), local=tmp_path / "a"),
        TokenStream(remote=str(other.root), local=tmp_path / "b"),
    ]
    dataset = open_packed(
        streams=streams, remote=None, local=None, batch_size=1, num_canonical_nodes=1
    )
    loader = StreamingTokenLoader(dataset)
    rows = [batch["tokens"][0].tolist() for batch in loader]
    assert len(rows) == dataset.size
    found = Counter(tuple(segment) for row in rows for segment in segments_in(row))
    documents = [*documents_of(raw), *documents_of(other)]
    short = Counter(tuple(each) for each in documents if len(each) <= LENGTH)
    assert short
    assert not short - found
    assert loader.trace(3)[0].spans


def test_the_holdout_is_read_once_and_filled_up(open_packed, raw) -> None:
    rows = []
    for rank in range(3):
        dataset = open_packed(split="holdout", dp_rank=rank, dp_world_size=3, extras=MASKS)
        for batch in StreamingTokenLoader(dataset):
            assert (batch["targets"][~batch["real"]] == -100).all()
            rows += batch["tokens"][batch["real"]].tolist()
    found = Counter(token for row in rows for token in row if token != EOT)
    stream = raw.streams["holdout"]
    assert found == Counter(stream[stream != EOT].tolist())


class TestThePlanOnDisk:
    def only(self, folder: Path) -> Path:
        (path,) = folder.rglob("*.plan")
        return path

    def test_it_is_made_once_and_again_the_same_if_it_is_damaged_or_gone(
        self, open_packed, tmp_path
    ) -> None:
        open_packed()
        path = self.only(tmp_path)
        good, written = path.read_bytes(), path.stat().st_mtime_ns
        open_packed()
        assert path.stat().st_mtime_ns == written
        for bad in (None, b"", good[:-1], good[:-30] + b"x" + good[-29:]):
            path.unlink()
            if bad is not None:
                path.write_bytes(bad)
            open_packed()
            assert path.read_bytes() == good

    def test_a_damaged_group_is_an_error_before_any_row_of_it(self, open_packed, tmp_path) -> None:
        open_packed()
        path = self.only(tmp_path)
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptDatasetError, match="group 0 has another hash. Remove it"):
            list(StreamingTokenLoader(open_packed()))

    def test_one_beside_a_dataset_that_is_read_in_place(self, copy, raw, open_raw) -> None:
        root = copy(raw)
        open_raw(local=root, packing="best_fit")
        assert self.only(root).parent == root / ".unpacked"

    def test_a_folder_that_cannot_hold_it(self, open_packed, tmp_path) -> None:
        (tmp_path / "cache").write_text("no folder")
        with pytest.raises(StorageError, match="Give local= a folder"):
            open_packed()

    @pytest.mark.parametrize("what", ["missing", "damaged"])
    def test_tables_of_documents_are_checked(self, copy, raw, open_raw, what) -> None:
        root = copy(raw)
        for path in (root / "documents").iterdir():
            if what == "missing":
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[::-1])
        with pytest.raises(DatasetError, match="documents/00000.parquet is"):
            open_raw(local=root, packing="best_fit")
        assert not list(root.rglob("*.plan"))
        assert not list(root.rglob("*.tmp"))


def test_what_is_not_known_or_not_allowed_is_refused(open_packed, open_raw) -> None:
    with pytest.raises(UsageError, match="`packing` must be 'best_fit', got 'first_fit'"):
        open_raw(packing="first_fit")
    with pytest.raises(UsageError, match="must be below 1073741824 with packing"):
        open_packed(sequence_length=1 << 30)


@pytest.mark.parametrize("settings", [{}, {"packing": "best_fit"}, {"domain_by": "folder"}])
def test_an_empty_split_is_one_clear_error(open_raw, tmp_path, settings) -> None:
    built = build(tmp_path / "d", [[("train", [1, 2, 3])]], sequence_length=4)
    with pytest.raises(UsageError, match=r"has 0: less than one sequence\. Name another split"):
        open_raw(local=built.root, split="holdout", **settings)


def head_tail(values: np.ndarray, edges: list[int], rank: int, size: int) -> np.ndarray:
    """Chunk `rank` of 2 * size of each segment, and the one as far from its end, by hand."""
    own = []
    for begin, end in pairwise(edges):
        chunks = np.split(values[begin:end], 2 * size)
        own += [chunks[rank], chunks[2 * size - 1 - rank]]
    return np.concatenate(own)


@pytest.mark.parametrize(("size", "extras"), [(2, ["cu_seqlens"]), (4, [])])
def test_context_parallel_ranks_get_the_head_and_tail_of_each_document(
    open_packed, size, extras
) -> None:
    per_token = ["targets", "position_ids", "document_ids"]
    settings = {"document_multiple": 8, "sequence_length": 32, "batch_size": 2, "shuffle": True}
    whole = list(StreamingTokenLoader(open_packed(**settings, extras=[*per_token, "cu_seqlens"])))
    assert len(whole) > 5
    for rank in range(size):
        loader = StreamingTokenLoader(
            open_packed(
                **settings,
                extras=[*per_token, *extras],
                cp_rank=rank,
                cp_size=size,
                cp_layout="documents",
                dp_rank=0,
                dp_world_size=1,
            )
        )
        for batch, full in zip(loader, whole, strict=True):
            edges = full["cu_seqlens"].tolist()
            for name in ("tokens", *per_token):
                own = head_tail(full[name].numpy().reshape(-1), edges, rank, size)
                assert (batch[name].numpy() == own.reshape(2, 32 // size)).all()
            assert ("cu_seqlens" in batch) == bool(extras)
            assert not extras or torch.equal(batch["cu_seqlens"], full["cu_seqlens"])


def test_the_multiple_is_part_of_the_order(open_packed) -> None:
    settings = {"sequence_length": 32, "batch_size": 2, "shuffle": True}
    loader = StreamingTokenLoader(open_packed(**settings, document_multiple=8))
    plain = StreamingTokenLoader(open_packed(**settings))
    assert "document_multiple" not in plain.state_dict()["order"]
    with pytest.raises(ConfigMismatchError, match="document_multiple: the state has 8, this loade"):
        plain.load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match=r"multiple of document_multiple=8, got 30"):
        open_packed(document_multiple=8, sequence_length=30)
    with pytest.raises(UsageError, match="give packing='best_fit'"):
        open_packed(document_multiple=8, packing=None)
    with pytest.raises(UsageError, match=r"'documents'.*8 equal chunks.*document_multiple=8 or a"):
        open_packed(
            **settings,
            document_multiple=4,
            cp_rank=0,
            cp_size=4,
            cp_layout="documents",
            dp_rank=0,
            dp_world_size=1,
        )
