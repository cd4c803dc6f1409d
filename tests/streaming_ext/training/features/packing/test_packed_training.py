"""Training on rows of whole documents: exact, traced, and read from a plan on disk."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from streaming_ext import StreamingTokenLoader
from streaming_ext.base.errors import CorruptDatasetError, DatasetError, StorageError, UsageError
from streaming_ext.training.features import packing
from tests.streaming_ext.build import EOT, build

MASKS = ["targets", "position_ids", "document_ids", "cu_seqlens", "max_seqlen", "starts_inside"]
Load = Callable[..., StreamingTokenLoader]


@pytest.fixture(autouse=True)
def small_groups(monkeypatch) -> None:
    """Split 270 documents into seven groups."""
    monkeypatch.setattr(packing, "GROUP_DOCUMENTS", 40)


@pytest.fixture
def load_packed(load, raw, tmp_path) -> Load:
    return partial(
        load,
        packing="best_fit",
        sequence_length=16,
        shuffle_block_size=20,
        remote=str(raw.root),
        local=tmp_path / "cache",
    )


@pytest.mark.parametrize(
    ("length", "multiple", "workers"),
    [(7, 1, 0), (16, 1, 0), (32, 4, 0), (40, 1, 0), (40, 8, 1), (1000, 1, 0)],
)
def test_every_document_comes_whole_and_once_with_its_masks(
    load_packed, raw, length, multiple, workers
) -> None:
    loader = load_packed(
        sequence_length=length,
        document_multiple=multiple,
        batch_size=3,
        extras=MASKS,
        num_workers=workers,
    )
    stream = raw.streams["train"].tolist()
    starts = [n for n, token in enumerate(stream) if token != EOT and stream[n - 1] == EOT]
    firsts = dict(zip(raw.documents["train"], starts, strict=True))
    shard_ends = (np.cumsum(loader.dataset.reader.caches[0].index.samples) * 8).tolist()
    found: list[int] = []  # offsets of all tokens, in their stream
    for step, batch in enumerate(loader):
        edges = [0]
        for number, trace in enumerate(loader.trace(step)):
            row: list[int] = []
            sizes: list[int] = []  # of the segments, then of the padding
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
    documents = raw.manifest.splits["train"].tokens
    assert documents - left_out * length <= len(found) <= documents


def test_the_holdout_is_read_once_and_filled_up(load_packed, raw) -> None:
    rows = []
    for rank in range(3):
        for batch in load_packed(split="holdout", dp_rank=rank, dp_world_size=3, extras=MASKS):
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
        self, load_packed, tmp_path
    ) -> None:
        load_packed()
        path = self.only(tmp_path)
        good, written = path.read_bytes(), path.stat().st_mtime_ns
        load_packed()
        assert path.stat().st_mtime_ns == written
        for bad in (None, b"", good[:-1], good[:-30] + b"x" + good[-29:]):
            path.unlink()
            if bad is not None:
                path.write_bytes(bad)
            load_packed()
            assert path.read_bytes() == good

    def test_a_damaged_group_is_an_error_before_any_row_of_it(self, load_packed, tmp_path) -> None:
        load_packed()
        path = self.only(tmp_path)
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptDatasetError, match="group 0 has another hash. Remove it"):
            list(load_packed())

    def test_one_beside_a_dataset_that_is_read_in_place(self, copy, raw, open_raw) -> None:
        root = copy(raw)
        open_raw(local=root, packing="best_fit")
        assert self.only(root).parent == root / ".unpacked"

    def test_a_folder_that_cannot_hold_it(self, load_packed, tmp_path) -> None:
        (tmp_path / "cache").write_text("no folder")
        with pytest.raises(StorageError, match="Give local= a folder"):
            load_packed()

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


@pytest.mark.parametrize("settings", [{}, {"packing": "best_fit"}, {"domain_by": "folder"}])
def test_an_empty_split_is_one_clear_error(open_raw, tmp_path, settings) -> None:
    built = build(tmp_path / "d", [[("train", [1, 2, 3])]], sequence_length=4)
    with pytest.raises(UsageError, match=r"has 0: less than one sequence\. Name another split"):
        open_raw(local=built.root, split="holdout", **settings)


def head_tail(values: np.ndarray, edges: list[int], rank: int, size: int) -> np.ndarray:
    """Return by hand chunk `rank` from either end of the 2 * size chunks of each segment."""
    own = []
    for begin, end in pairwise(edges):
        chunks = np.split(values[begin:end], 2 * size)
        own += [chunks[rank], chunks[2 * size - 1 - rank]]
    return np.concatenate(own)


@pytest.mark.parametrize(("size", "extras"), [(2, ["cu_seqlens"]), (4, [])])
def test_context_parallel_ranks_get_the_head_and_tail_of_each_document(
    load_packed, size, extras
) -> None:
    per_token = ["targets", "position_ids", "document_ids"]
    settings = {"document_multiple": 8, "sequence_length": 32, "batch_size": 2, "shuffle": True}
    whole = list(load_packed(**settings, extras=[*per_token, "cu_seqlens"]))
    assert len(whole) > 5
    for rank in range(size):
        loader = load_packed(
            **settings,
            extras=[*per_token, *extras],
            cp_rank=rank,
            cp_size=size,
            cp_layout="documents",
        )
        for batch, full in zip(loader, whole, strict=True):
            edges = full["cu_seqlens"].tolist()
            for name in ("tokens", *per_token):
                own = head_tail(full[name].numpy().reshape(-1), edges, rank, size)
                assert (batch[name].numpy() == own.reshape(2, 32 // size)).all()
            assert ("cu_seqlens" in batch) == bool(extras)
            assert not extras or torch.equal(batch["cu_seqlens"], full["cu_seqlens"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"packing": "first_fit"}, "`packing` must be 'best_fit', got 'first_fit'"),
        ({"sequence_length": 1 << 30}, "must be below 1073741824 with packing"),
        (
            {"document_multiple": 8, "sequence_length": 30},
            "multiple of document_multiple=8, got 30",
        ),
        ({"document_multiple": 8, "packing": None}, "give packing='best_fit'"),
        (
            {"document_multiple": 4, "cp_rank": 0, "cp_size": 4, "cp_layout": "documents"},
            r"'documents'.*8 equal chunks.*document_multiple=8 or a",
        ),
    ],
)
def test_what_is_not_known_or_not_allowed_is_refused(load_packed, settings, said) -> None:
    with pytest.raises(UsageError, match=said):
        load_packed(**settings)
