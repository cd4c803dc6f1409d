"""Loaders in situations that training meets: lost, doubled and reordered sequences, and hangs.

Run: python -m benchmarks.conformance [--only LOADER ...] [--sequences N] [--seconds LIMIT]
Every loader reads the same sequences from shards of its own format, shuffled, as its documentation
says; each of two ranks is a process. The sequences that ranks received are compared with the set
and with an undisturbed run. The first token identifies a sequence; all tokens are checked. A loader
that is not installed here gets an environment of its own. To add a loader, write an adapter.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

LENGTH, SHARDS, GLOBAL_BATCH = 512, 16, 16
ODD, EVALUATION = 15, 81  # sequences left out in the case "epoch"; sequences of an evaluation
GRACE = 5  # seconds for other ranks to end after one failed
ERROR = r"^(?:\[rank\d\]: )?([\w.]+(?:Error|Exception|Timeout|Empty))\b"
CASES = ("epoch", "resume", "world", "mixture", "worker", "missing", "damaged", "evaluation")


def sequence(number: int) -> np.ndarray:
    """Return the tokens of one sequence: its number, then random ids."""
    tokens = np.random.default_rng(number).integers(0, 60_000, LENGTH).astype(np.uint16)
    tokens[0] = number
    return tokens


def shards_of(folder: str, numbers: range, size: int) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Yield the path of each data file without its suffix, and its sequences, at most `size`."""
    for start in range(0, len(numbers), size):
        yield f"{folder}/{start:05}", [*map(sequence, numbers[start : start + size])]


class Adapter:
    """The loader of one rank.

    Attributes:
        package: the distribution package of the loader.
        module: the module to import.
        shards: the pattern of its data files.
        promised: the cases that its documentation promises.
        lacks: the cases for which it has no feature.
        endless: True if one pass of the loader includes all passes over the data.
    """

    package: ClassVar[str]
    module: ClassVar[str]
    shards: ClassVar[str]
    promised: ClassVar[str] = ""
    lacks: ClassVar[str] = ""
    endless = False
    loader: Any

    def __init__(self, job: SimpleNamespace, rank: int) -> None:
        self.job, self.rank, self.world = job, rank, job.world
        self.batch, self.train, self.epoch = GLOBAL_BATCH // job.world, not job.evaluate, 0
        self.open(list(job.folders), job.weights)

    @staticmethod
    def write(folder: str, numbers: range, per_shard: int) -> None:
        """Write the sequences with these numbers."""
        raise NotImplementedError

    def open(self, folders: list[str], weights: list[float] | None) -> None:
        """Open the loader of one folder or, with `weights`, of a mixture of folders."""
        raise NotImplementedError

    def files(self, folder: str) -> list[str]:
        """Return the data files that were written, even if they are missing now."""
        names = json.loads(Path(folder, "files.json").read_text())
        return [f"{folder}/{name}" for name in names]

    def batches(self) -> Iterator[Any]:
        """Return the batches of a pass, or of the rest of it."""
        return iter(self.loader)

    def passes(self) -> Iterator[Any]:
        """Yield the batches of all passes."""
        while self.epoch < (1 if self.endless else self.job.epochs):
            yield from self.batches()
            self.epoch += 1

    def state(self) -> Any:
        """Return the content of a checkpoint."""
        return self.loader.state_dict()

    def load(self, state: Any) -> None:
        """Continue from a checkpoint."""
        self.loader.load_state_dict(state)


class Stock(Adapter):
    """The dataset and loader of mosaicml-streaming."""

    package, module = "mosaicml-streaming", "streaming_ext.training.stock"
    shards, promised = "*.mds", "epoch resume world damaged"

    @staticmethod
    def write(folder: str, numbers: range, per_shard: int) -> None:
        from streaming_ext.training.stock import streaming

        columns, size = {"tokens": f"ndarray:uint16:{LENGTH}"}, per_shard * (2 * LENGTH + 4) + 400
        with streaming.MDSWriter(
            out=folder, columns=columns, hashes=["xxh128"], size_limit=size
        ) as writer:
            for number in numbers:
                writer.write({"tokens": sequence(number)})

    def open(self, folders: list[str], weights: list[float] | None) -> None:
        from streaming_ext.training.stock import streaming

        streams = [
            streaming.Stream(remote=folder, local=f"{self.job.scratch}/{number}", proportion=weight)
            for number, (folder, weight) in enumerate(zip(folders, weights or [None], strict=True))
        ]
        dataset = streaming.StreamingDataset(
            streams=streams, batch_size=self.batch, shuffle=self.train, validate_hash="xxh128"
        )
        workers = self.job.workers
        self.loader = streaming.StreamingDataLoader(
            dataset, batch_size=self.batch, num_workers=workers
        )

    def batches(self) -> Iterator[Any]:
        return (batch["tokens"] for batch in self.loader)


class Shardmill(Stock):
    """The dataset and loader of this project, on shards that `MDSWriter` wrote."""

    package, module = "shardmill", "streaming_ext.training.loader"
    promised = " ".join(CASES)

    def open(self, folders: list[str], weights: list[float] | None) -> None:
        from streaming_ext import StreamingTokenDataset, StreamingTokenLoader, TokenStream

        pairs = zip(folders, weights or [None], strict=True)
        dataset = StreamingTokenDataset(
            streams=[TokenStream(local=folder, proportion=weight) for folder, weight in pairs],
            split=None,
            epoch_size=self.job.size if weights else None,
            global_batch=GLOBAL_BATCH,
            shuffle=self.train,
            drop_last=self.train,
        )
        self.loader = StreamingTokenLoader(dataset, num_workers=self.job.workers)

    def batches(self) -> Iterator[Any]:
        for batch in self.loader:
            yield batch["tokens"] if self.train else batch["tokens"][batch["real"]]

    def load(self, state: Any) -> None:
        changes = ["streams"] if self.job.weights else []
        self.loader.load_state_dict(state, allow_changes=changes)


def tensor(number: int) -> Any:
    """Return the tokens of one sequence as a tensor for litData."""
    import torch

    return torch.from_numpy(sequence(number))


class LitData(Adapter):
    """The dataset of tokens and the loader of litData."""

    package, module = "litdata", "litdata"
    shards, promised = "*.bin", "epoch resume world"

    @staticmethod
    def write(folder: str, numbers: range, per_shard: int) -> None:
        import litdata

        litdata.optimize(
            fn=tensor,
            inputs=list(numbers),
            output_dir=folder,
            chunk_size=per_shard * LENGTH,
            item_loader=litdata.TokensLoader(block_size=LENGTH),
            num_workers=1,
            start_method="fork",
        )

    def open(self, folders: list[str], weights: list[float] | None) -> None:
        import litdata

        sets = [
            litdata.StreamingDataset(
                folder,
                item_loader=litdata.TokensLoader(block_size=LENGTH),
                shuffle=self.train,
                drop_last=self.train,
            )
            for folder in folders
        ]
        dataset = sets[0]
        if weights:
            dataset = litdata.CombinedStreamingDataset(
                sets, weights=weights, iterate_over_all=False
            )
        workers = self.job.workers
        self.loader = litdata.StreamingDataLoader(
            dataset, batch_size=self.batch, num_workers=workers
        )


class HuggingFace(Adapter):
    """Hugging Face datasets: streamed Parquet, shuffled in a buffer, in a StatefulDataLoader."""

    package, module = "datasets", "datasets"
    shards, promised = "*.parquet", "epoch resume"

    @staticmethod
    def write(folder: str, numbers: range, per_shard: int) -> None:
        from datasets import Dataset

        Path(folder).mkdir()
        for name, rows in shards_of(folder, numbers, per_shard):
            Dataset.from_dict({"tokens": rows}).to_parquet(f"{name}.parquet")

    def open(self, folders: list[str], weights: list[float] | None) -> None:
        from datasets import interleave_datasets, load_dataset
        from datasets.distributed import split_dataset_by_node
        from torchdata.stateful_dataloader import StatefulDataLoader

        sets = []
        for folder in folders:
            dataset = load_dataset(
                "parquet", data_files=self.files(folder), split="train", streaming=True
            )
            sets.append(dataset.shuffle(seed=0, buffer_size=100) if self.train else dataset)
        self.data = sets[0]
        if weights:
            chances = [weight / sum(weights) for weight in weights]
            self.data = interleave_datasets(sets, probabilities=chances, seed=0)
        self.data = split_dataset_by_node(self.data, rank=self.rank, world_size=self.world)
        self.loader = StatefulDataLoader(
            self.data.with_format("torch"), batch_size=self.batch, num_workers=self.job.workers
        )

    def batches(self) -> Iterator[Any]:
        self.data.set_epoch(self.epoch)
        return (batch["tokens"] for batch in self.loader)


class Grain(Adapter):
    """Grain's ElasticIterator over ArrayRecord files; `IterDataset.mix` of named sets."""

    package, module = "grain", "grain"
    shards, promised = "*.array_record", "epoch resume world mixture"
    endless = True

    @staticmethod
    def write(folder: str, numbers: range, per_shard: int) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        Path(folder).mkdir()
        for name, rows in shards_of(folder, numbers, per_shard):
            writer = ArrayRecordWriter(f"{name}.array_record", "group_size:1")
            for row in rows:
                writer.write(row.tobytes())
            writer.close()

    def open(self, folders: list[str], weights: list[float] | None) -> None:
        import grain

        sets = []
        for folder in folders:
            source = grain.sources.ArrayRecordDataSource(self.files(folder))
            rows = grain.MapDataset.source(source).map(decode)
            sets.append(rows.seed(0).shuffle().repeat(self.job.epochs) if self.train else rows)
        share = slice(self.rank, None, self.world)
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=self.job.workers)
        if weights:
            named = {str(number): rows[share].to_iter_dataset() for number, rows in enumerate(sets)}
            mixed = grain.IterDataset.mix(named, dict(zip(named, weights, strict=True))).batch(
                self.batch
            )
            self.loader = iter(mixed.mp_prefetch(options))
        elif self.train:
            shards = grain.sharding.ShardOptions(self.rank, self.world)
            self.loader = iter(
                grain.experimental.ElasticIterator(
                    sets[0], GLOBAL_BATCH, shards, multiprocessing_options=options
                )
            )
        else:
            rows = sets[0][share].batch(self.batch)
            self.loader = iter(rows.to_iter_dataset().mp_prefetch(options))

    def state(self) -> Any:
        return self.loader.get_state()

    def load(self, state: Any) -> None:
        self.loader.set_state(state)


def decode(record: bytes) -> np.ndarray:
    """Return the tokens of a record."""
    return np.frombuffer(record, np.uint16)


class WebDataset(Adapter):
    """The shards of webdataset, split by rank and worker, shuffled in a buffer."""

    package, module = "webdataset", "webdataset"
    shards, lacks = "*.tar", "resume world mixture"

    @staticmethod
    def write(folder: str, numbers: range, per_shard: int) -> None:
        import webdataset

        Path(folder).mkdir()
        with webdataset.ShardWriter(f"{folder}/%05d.tar", maxcount=per_shard) as writer:
            for number in numbers:
                writer.write({"__key__": f"{number:05}", "npy": sequence(number)})

    def open(self, folders: list[str], weights: list[float] | None) -> None:
        import webdataset

        dataset = webdataset.WebDataset(
            self.files(folders[0]),
            shardshuffle=100 if self.train else False,
            nodesplitter=webdataset.split_by_node,
            seed=0,
        )
        if self.train:
            dataset = dataset.shuffle(100, seed=0)
        dataset = dataset.decode().to_tuple("npy").batched(self.batch)
        self.loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=self.job.workers)

    def batches(self) -> Iterator[Any]:
        return (batch[0] for batch in self.loader)


class Rows:
    """Arrays of rows in .npy files, as a map-style dataset."""

    def __init__(self, files: Sequence[str]) -> None:
        self.files = files
        ends = (len(np.load(file, mmap_mode="r")) for file in files)
        self.rows = [(shard, row) for shard, end in enumerate(ends) for row in range(end)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> np.ndarray:
        shard, row = self.rows[index]
        return np.load(self.files[shard], mmap_mode="r")[row].copy()


class TorchData(Adapter):
    """The StatefulDataLoader and sampler of torchdata, over a map-style dataset of .npy files."""

    package, module = "torchdata", "torchdata.stateful_dataloader"
    shards, promised, lacks = "*.npy", "epoch resume", "mixture"

    @staticmethod
    def write(folder: str, numbers: range, per_shard: int) -> None:
        Path(folder).mkdir()
        for name, rows in shards_of(folder, numbers, per_shard):
            np.save(f"{name}.npy", rows)

    def open(self, folders: list[str], weights: list[float] | None) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader
        from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

        rows = Rows(self.files(folders[0]))
        self.sampler = StatefulDistributedSampler(
            rows, num_replicas=self.world, rank=self.rank, shuffle=self.train
        )
        self.loader = StatefulDataLoader(
            rows, batch_size=self.batch, sampler=self.sampler, num_workers=self.job.workers
        )

    def batches(self) -> Iterator[Any]:
        self.sampler.set_epoch(self.epoch)
        return iter(self.loader)


class Megatron(Adapter):
    """The GPTDataset of Megatron Core, with a sampler like Megatron-LM's pretraining sampler."""

    package, module = "megatron-core", "megatron.core"
    shards, promised = "*.bin", "epoch resume world"
    endless = True

    @staticmethod
    def write(folder: str, numbers: range, per_shard: int) -> None:
        import torch
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

        Path(folder).mkdir()
        builder = IndexedDatasetBuilder(f"{folder}/text.bin", dtype=np.uint16)
        for number in numbers:
            builder.add_item(torch.from_numpy(sequence(number).astype(np.int64)))
            builder.end_document()
        builder.finalize(f"{folder}/text.idx")

    def open(self, folders: list[str], weights: list[float] | None) -> None:
        from megatron.core.datasets.blended_megatron_dataset_builder import (
            BlendedMegatronDatasetBuilder,
        )
        from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

        tokenizer = SimpleNamespace(
            vocab_size=65_536, eod=65_535, pad=65_535, unique_identifiers={}
        )
        config = GPTDatasetConfig(
            random_seed=0,
            sequence_length=LENGTH,
            blend_per_split=[([f"{path}/text" for path in folders], weights), None, None],
            tokenizer=tokenizer,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
            add_extra_token_to_sequence=False,
            path_to_cache=self.job.scratch,
        )
        bytes_ = sum(Path(file).stat().st_size for path in folders for file in self.files(path))
        samples = self.job.epochs * bytes_ // (2 * LENGTH) if self.train else None
        builder = BlendedMegatronDatasetBuilder(
            GPTDataset, [samples, None, None], lambda: True, config
        )
        self.data, self.consumed = builder.build()[0], 0

    def batches(self) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        ends = range(self.consumed + GLOBAL_BATCH, len(self.data) + 1, GLOBAL_BATCH)
        first = self.rank * self.batch - GLOBAL_BATCH
        own = [range(end + first, end + first + self.batch) for end in ends]
        for batch in DataLoader(self.data, batch_sampler=own, num_workers=self.job.workers):
            self.consumed += GLOBAL_BATCH
            yield batch["tokens"]

    def state(self) -> Any:
        return self.consumed

    def load(self, state: Any) -> None:
        self.consumed = state


LOADERS: dict[str, type[Adapter]] = {
    "Shardmill": Shardmill,
    "mosaicml-streaming": Stock,
    "litData": LitData,
    "datasets": HuggingFace,
    "grain": Grain,
    "webdataset": WebDataset,
    "torchdata": TorchData,
    "Megatron": Megatron,
}


def work(job: SimpleNamespace, rank: int) -> None:
    """Write sets, or log batches as one rank; save a state or kill at the steps of the job."""
    import torch

    os.setsid()  # so that a kill reaches all child processes
    output = os.open(f"{job.log}/{rank}.out", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    names = {"RANK": rank, "LOCAL_RANK": rank, "GLOBAL_RANK": rank, "WORLD_SIZE": job.world}
    names |= {"LOCAL_WORLD_SIZE": job.world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": job.port}
    os.environ.update({name: str(value) for name, value in names.items()})
    torch.set_num_threads(1)
    loader = LOADERS[job.loader]
    for folder, (start, stop, per_shard) in job.write.items():
        loader.write(folder, range(start, stop), per_shard)
        files = sorted(path.name for path in Path(folder).glob(loader.shards))
        Path(folder, "files.json").write_text(json.dumps(files))
    if job.write:
        return
    if job.world > 1:
        torch.distributed.init_process_group("gloo")
    adapter = loader(job, rank)
    if job.resume:
        own, other = Path(job.resume, str(rank)), Path(job.resume, "0")
        adapter.epoch, state = pickle.loads((own if own.exists() else other).read_bytes())  # noqa: S301 own file
        adapter.load(state)
    with Path(job.log, str(rank)).open("w") as log:
        for step, batch in enumerate(adapter.passes(), 1):
            rows = np.asarray(batch).astype(np.int64)
            sound = [bool((row == sequence(row[0])).all()) for row in rows]
            numbers = [int(row[0]) if right else -1 for row, right in zip(rows, sound, strict=True)]
            print(json.dumps(numbers), file=log, flush=True)
            if step == job.save:
                state = pickle.dumps((adapter.epoch, adapter.state()))
                Path(job.states, str(rank)).write_bytes(state)
            if step == job.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            if step == job.hurt:
                multiprocessing.active_children()[0].kill()
            if step == job.stop:
                break


class Trial:
    """All cases of one loader.

    Attributes:
        version: the version of the loader.
        cells: the outcome of each case, in words.
    """

    def __init__(self, name: str, root: Path, size: int, seconds: float) -> None:
        self.name, self.loader, self.root, self.seconds = name, LOADERS[name], root, seconds
        self.size, self.per_shard, self.runs = size, size // SHARDS, 0
        names = ("train", "odd", "a", "b", "evaluation")
        self.folder = {name: str(root / name) for name in names}
        bounds = [(0, size), (0, size - ODD), (0, size // 2), (size // 2, size)]
        ranges = [(*each, self.per_shard) for each in bounds]
        ranges.append((0, EVALUATION, EVALUATION // 4 + 1))
        _, said = self.run(world=1, write=dict(zip(self.folder.values(), ranges, strict=True)))
        if said:
            raise SystemExit(f"{name} wrote no data: {said}. Look into {root}.")
        self.version = importlib.metadata.version(self.loader.package)
        self.cells = self.judge()

    def run(self, *, world: int = 2, **changes: Any) -> tuple[list[list[list[int]]], str]:
        """Run ranks; return the sequences of each by step, and the fault in words."""
        self.runs += 1
        log = self.root / str(self.runs)
        log.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        job = {
            "loader": self.name,
            "folders": [self.folder["train"]],
            "weights": None,
            "evaluate": False,
            "epochs": 1 if changes.get("evaluate") else 2,
            "size": self.size,
            "world": world,
            "workers": 1,
            "port": port,
            "log": str(log),
            "scratch": tempfile.mkdtemp(dir=self.root),
            "write": {},
            **dict.fromkeys(("resume", "states", "save", "kill", "hurt", "stop")),
            **changes,
        }
        fork, numbers = multiprocessing.get_context("fork"), range(world)
        ranks = [fork.Process(target=work, args=(SimpleNamespace(**job), rank)) for rank in numbers]
        for rank in ranks:
            rank.start()
        notes = [log / str(rank) for rank in numbers]
        size, end = 0, time.monotonic() + self.seconds
        while any(rank.is_alive() for rank in ranks) and time.monotonic() < end:
            came = sum(note.stat().st_size for note in notes if note.exists())
            if came > size:
                size, end = came, time.monotonic() + self.seconds
            if any(rank.exitcode for rank in ranks):  # others may wait for the failed one
                end = min(end, time.monotonic() + GRACE)
            time.sleep(0.05)
        codes = [rank.exitcode for rank in ranks]
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
            rank.join()
        said = "hangs" if None in codes else ""
        if any(codes):
            failed = next(rank for rank, code in enumerate(codes) if code)
            errors = re.findall(ERROR, (log / f"{failed}.out").read_text(), re.MULTILINE)
            said = errors[-1].rpartition(".")[2] if errors else f"exit code {codes[failed]}"
        lines = [note.read_text().splitlines() if note.exists() else [] for note in notes]
        return [[json.loads(line) for line in each] for each in lines], said

    def damaged(self, how: str) -> list[str]:
        """Copy the set without its middle data file, or with one changed bit in that file."""
        folder = Path(shutil.copytree(self.folder["train"], self.root / how))
        files = sorted(folder.glob(self.loader.shards))
        path = files[len(files) // 2]
        data = bytearray(path.read_bytes())
        path.unlink()
        if how == "damaged":
            tokens = (sequence(number).tobytes()[-16:] for number in range(self.size))
            data[next((at for at in map(data.find, tokens) if at > 0), len(data) // 2)] ^= 1
            path.write_bytes(data)
        return [str(folder)]

    def judge(self) -> dict[str, str]:
        """Run each case; return its outcome in words, by name."""
        train = Counter(dict.fromkeys(range(self.size), 2))
        steps, said = self.run(folders=[self.folder["odd"]])
        odd = Counter(dict.fromkeys(range(self.size - ODD), 2))
        cells = {"epoch": said or difference(odd, steps)}
        save = self.size // GLOBAL_BATCH // 3
        if "resume" not in self.loader.lacks:
            undisturbed, _ = self.run()
            states = tempfile.mkdtemp(dir=self.root)
            before, _ = self.run(states=states, save=save, kill=save + 3)
            for case, world in (("resume", 2), ("world", 4)):
                steps, said = self.run(world=world, resume=states)
                whole = [*merged(before)[:save], *merged(steps)]
                cells[case] = said or difference(train, [whole], merged(undisturbed))
        if "mixture" not in self.loader.lacks:
            cells["mixture"] = self.mixture(max(7, save // 2))  # enough rows for proportions
        for case in ("worker", "missing", "damaged"):
            changes = (
                {"hurt": 5, "workers": 2} if case == "worker" else {"folders": self.damaged(case)}
            )
            steps, said = self.run(world=1, **changes)
            cells[case] = said or difference(train, steps)
        steps, said = self.run(folders=[self.folder["evaluation"]], evaluate=True)
        expected = Counter(range(EVALUATION))
        cells["evaluation"] = said or difference(expected, steps)
        return cells

    def mixture(self, save: int) -> str:
        """Mix 3:1 until a checkpoint, then 1:1; describe repeated sequences and a wrong mix."""
        folders, states = [self.folder["a"], self.folder["b"]], tempfile.mkdtemp(dir=self.root)
        changes = {"folders": folders, "states": states, "save": save, "kill": save + 1}
        before, _ = self.run(weights=[3.0, 1.0], **changes)
        after, said = self.run(weights=[1.0, 1.0], folders=folders, resume=states, stop=save)
        second = list(itertools.chain(*merged(after)))
        doubled = Counter([*itertools.chain(*merged(before)[:save]), *second])
        share = sum(number >= self.size // 2 for number in second) / max(1, len(second))
        again = (doubled - Counter(doubled.keys())).total()
        found = [f"{again} doubled"] * bool(again)
        found += [f"{share:.0%} instead of 50%"] * (abs(share - 0.5) > 0.1)
        return said or ", ".join(found) or "exact"


def merged(ranks: list[list[list[int]]]) -> list[list[int]]:
    """Return the sequences of all ranks by step."""
    steps = itertools.zip_longest(*ranks, fillvalue=[])
    return [list(itertools.chain(*step)) for step in steps]


def difference(
    expected: Counter[int], ranks: list[list[list[int]]], order: list[list[int]] | None = None
) -> str:
    """Describe how the sequences of all ranks, and their order, differ from the expected ones."""
    steps = merged(ranks)
    came = Counter(itertools.chain(*steps))
    damaged = came.pop(-1, 0)
    doubled = (came - expected).total()
    moved = 0
    if order:
        pairs = zip(steps, order, strict=False)
        moved = sum((Counter(step) - Counter(other)).total() for step, other in pairs)
    counts = {
        "lost": (expected - came).total(),
        "doubled": doubled,
        "reordered": max(0, moved - doubled),
        "damaged": damaged,
        "steps apart": max(map(len, ranks)) - min(map(len, ranks)),
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "exact"


def main() -> None:
    """Run the cases of each loader in an environment that has it, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=LOADERS, default=list(LOADERS))
    parser.add_argument("--sequences", type=int, default=1024, help="multiple of 64, 512 or more")
    parser.add_argument("--seconds", type=float, default=90, help="without a batch: a run hangs")
    parser.add_argument("--result", type=Path, help="JSON file")
    parser.add_argument("--folder", type=Path, help="keep data and logs here")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        importlib.import_module(LOADERS[args.only[0]].module)
        trial = Trial(args.only[0], args.folder, args.sequences, args.seconds)
        args.result.write_text(json.dumps([trial.version, trial.cells]))
        return
    from benchmarks.common import environment, run, save, table

    cells: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="conformance-") as scratch:
        for name in args.only:
            loader, folder = LOADERS[name], (args.folder or Path(scratch)) / name
            folder.mkdir(parents=True)
            here = find_spec(loader.module.partition(".")[0])
            python = sys.executable if here else environment(loader.package)
            os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)}
            command = [python, "-m", __spec__.name, "--here", "--only", name, "--folder", folder]
            command += ["--sequences", args.sequences, "--seconds", args.seconds]
            run([*command, "--result", folder / "result.json"])
            version, found = json.loads((folder / "result.json").read_text())
            cells[f"{name} {version}"] = {
                case: found.get(case, "not offered")
                + " *" * (case in found and case not in loader.promised)
                for case in CASES
            }
            print(name, cells[f"{name} {version}"], file=sys.stderr)
    print(table(["Loader", *CASES], ([name, *row.values()] for name, row in cells.items())))
    save(args.result, cells=cells)


if __name__ == "__main__":
    main()
