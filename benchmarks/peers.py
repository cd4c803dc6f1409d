"""Other tools, each run in an environment of its own, with the same input and output.

The first argument is a peer; others are `--output`, `--tokenizer` (a rank file or tokenizer.json),
`--workers` and Parquet files with a `text` column. The last line of the output is JSON: the seconds
of work, without imports and loading of the tokenizer, and the tokens, with each document's end.
"""

from __future__ import annotations

import argparse
import base64
import functools
import gzip
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
END = "<|endoftext|>"
SEQUENCE_LENGTH = 2048
ROW_GROUPS_PER_BATCH = 2  # 9 MB from make_corpus; larger batches are hardly faster, smaller slower
DOCUMENTS_PER_TASK = 32


class Clock:
    """A clock that starts when it is made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def report(self, tokens: int) -> None:
        """Print the seconds and the tokens."""
        seconds = time.perf_counter() - self._began
        print("\n" + json.dumps({"seconds": seconds, "tokens": int(tokens)}), flush=True)


@functools.cache
def load_tiktoken(path: Path) -> tuple[Any, int]:
    """Load a tiktoken encoding with GPT-2's pattern; return it and its end-of-text id."""
    import tiktoken

    lines = (line.split() for line in path.read_bytes().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    end = len(ranks)
    encoding = tiktoken.Encoding(
        path.stem, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={END: end}
    )
    return encoding, end


@functools.cache
def load_tokenizers(path: Path) -> tuple[Any, int]:
    """Load a tokenizer.json with `tokenizers`; return the tokenizer and its end-of-text id."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    return tokenizer, tokenizer.token_to_id(END)


@functools.cache
def load_gigatoken(path: Path) -> Any:
    """Load one gigatoken tokenizer per process, so that its caches stay warm between files."""
    import gigatoken

    return gigatoken.Tokenizer.from_tiktoken(path, pretokenizer="gpt2", special_tokens={})


def texts(paths: list[Path]) -> Iterator[str]:
    """Yield the texts of all files."""
    import pyarrow.parquet as pq

    for path in paths:
        for batch in pq.ParquetFile(path).iter_batches(columns=["text"]):
            yield from batch.column(0).to_pylist()


def bare_limit(args: argparse.Namespace) -> None:
    """Read the column with pyarrow and encode it with gigatoken; nothing else is done."""
    barrier = multiprocessing.Barrier(args.workers + 1)
    with multiprocessing.Pool(args.workers, _ready, (barrier, args.tokenizer)) as pool:
        barrier.wait()
        clock = Clock()
        work = functools.partial(_read_and_encode, vocabulary=args.tokenizer)
        clock.report(sum(pool.imap_unordered(work, args.files)))


def _ready(barrier: Any, vocabulary: Path) -> None:
    import awkward  # noqa: F401 its import is not measured
    import pyarrow as pa

    pa.set_cpu_count(1)
    load_gigatoken(vocabulary)
    barrier.wait()


def _read_and_encode(path: Path, vocabulary: Path) -> int:
    """Count the tokens of a file, including one for each document's end."""
    import awkward as ak
    import pyarrow as pa
    import pyarrow.parquet as pq

    parquet = pq.ParquetFile(path)
    tokens = 0
    for group in range(0, parquet.num_row_groups, ROW_GROUPS_PER_BATCH):
        groups = range(group, min(group + ROW_GROUPS_PER_BATCH, parquet.num_row_groups))
        table = parquet.read_row_groups(groups, columns=["text"], use_threads=False)
        column = table["text"].cast(pa.large_string()).combine_chunks()
        _, offsets, data = column.buffers()
        starts = np.frombuffer(offsets, np.int64, len(column) + 1, column.offset * 8)
        characters = ak.contents.NumpyArray(
            np.frombuffer(data, np.uint8), parameters={"__array__": "char"}
        )
        strings = ak.contents.ListOffsetArray(
            ak.index.Index64(starts), characters, parameters={"__array__": "string"}
        )
        encoded = load_gigatoken(vocabulary).encode_batch(ak.Array(strings), parallel=False)
        tokens += len(encoded.layout.content) + len(column)
    return tokens


def gigatoken_bin(args: argparse.Namespace) -> None:
    """Have gigatoken read Parquet with its own threads, and write a flat .bin per file."""
    import gigatoken

    os.environ["RAYON_NUM_THREADS"] = str(args.workers)  # read when the threads start
    tokenizer = load_gigatoken(args.tokenizer)
    end = tokenizer.vocab_size
    clock, total = Clock(), 0
    for path in args.files:
        source = gigatoken.ParquetFileSource([path], column="text")
        encoded = tokenizer.encode_files(source, parallel=True).layout
        ends = np.asarray(encoded.offsets)[1:]
        ids = np.insert(np.asarray(encoded.content.data).astype(np.uint16), ends, end)
        ids.tofile(args.output / f"{path.stem}.bin")
        total += len(ids)
    clock.report(total)


def _hugging_face(args: argparse.Namespace) -> Any:
    """Return the text column of all files as one Hugging Face dataset."""
    from datasets import Dataset, concatenate_datasets

    cache = str(args.output / "cache")
    loaded = [Dataset.from_parquet(str(path), cache_dir=cache) for path in args.files]
    return concatenate_datasets(loaded).select_columns(["text"])


def datasets_map(args: argparse.Namespace) -> None:
    """Run `map` of Hugging Face datasets with the fast tokenizer in batches; save Arrow files."""
    tokenizer, end = load_tokenizers(args.tokenizer)

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        encoded = tokenizer.encode_batch_fast(batch["text"], add_special_tokens=False)
        return {"ids": [[*one.ids, end] for one in encoded]}

    import datasets  # noqa: F401 its import is not measured

    clock, workers = Clock(), args.workers
    ids = _hugging_face(args).map(encode, batched=True, num_proc=workers, remove_columns=["text"])
    ids.save_to_disk(str(args.output / "ids"), num_proc=workers)
    lengths = (batch["ids"] for batch in ids.with_format("arrow").iter(10_000))
    clock.report(sum(len(column.combine_chunks().values) for column in lengths))


def nanogpt_prepare(args: argparse.Namespace) -> None:
    """Run `map` with tiktoken per document, as in nanoGPT; write one flat memory-mapped file."""
    encoding, end = load_tiktoken(args.tokenizer)

    def encode(row: dict[str, str]) -> dict[str, object]:
        ids = [*encoding.encode_ordinary(row["text"]), end]
        return {"ids": ids, "len": len(ids)}

    import datasets  # noqa: F401 its import is not measured

    clock = Clock()
    tokens = _hugging_face(args).map(
        encode, num_proc=args.workers, remove_columns=["text"], new_fingerprint="nanogpt"
    )
    total = int(np.sum(tokens["len"], dtype=np.int64))
    flat = np.memmap(args.output / "train.bin", np.uint16, "w+", shape=(total,))
    at, count = 0, min(1024, len(tokens))
    for number in range(count):
        shard = tokens.shard(count, number, contiguous=True).with_format("numpy")
        ids = np.concatenate(shard["ids"])
        flat[at : at + len(ids)] = ids
        at += len(ids)
    flat.flush()
    clock.report(total)


def datatrove_tokenizer(args: argparse.Namespace) -> None:
    """Tokenize with datatrove, a task per file, without its shuffle, which would take more time."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    folder = args.files[0].parent
    names = args.output / "names.txt"
    names.write_text("".join(f"{path.name}\n" for path in args.files))
    clock = Clock()
    LocalPipelineExecutor(
        pipeline=[
            ParquetReader(str(folder), paths_file=str(names)),
            DocumentTokenizer(
                str(args.output / "tokens"),
                tokenizer_name_or_path=str(args.tokenizer),
                eos_token=END,
                shuffle_documents=False,
            ),
        ],
        tasks=len(args.files),
        workers=args.workers,
        logging_dir=str(args.output / "logs"),
    ).run()
    clock.report(sum(path.stat().st_size // 2 for path in args.output.glob("tokens/*.ds")))


def datatrove_minhash(args: argparse.Namespace) -> None:
    """Deduplicate JSON Lines with datatrove's MinHash; print how many documents stay."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup.minhash import (
        MinhashConfig,
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    config, workers = MinhashConfig(), args.workers
    reader = JsonlReader(str(args.files[0]), recursive=False, glob_pattern="*.jsonl")
    signatures, buckets, removed, kept = (
        str(args.output / name) for name in ("sigs", "buckets", "removed", "kept")
    )
    steps = [
        ([reader, MinhashDedupSignature(signatures, config)], workers),
        ([MinhashDedupBuckets(signatures, buckets, config=config)], config.num_buckets),
        ([MinhashDedupCluster(buckets, removed, config=config)], 1),
        ([reader, MinhashDedupFilter(removed), JsonlWriter(kept, compression=None)], workers),
    ]
    for number, (pipeline, tasks) in enumerate(steps):
        LocalPipelineExecutor(
            pipeline, tasks=tasks, workers=workers, logging_dir=str(args.output / f"logs/{number}")
        ).run()
    stay = sum(file.read_bytes().count(b"\n") for file in Path(kept).glob("*.jsonl"))
    print(json.dumps({"documents that stay": stay}))


def dolma_tokens(args: argparse.Namespace) -> None:
    """Run `dolma tokens` on JSON Lines, which are made before the clock starts."""
    config = json.loads(args.tokenizer.read_text())
    end = next(token["id"] for token in config["added_tokens"] if token["content"] == END)
    pairs = config["model"]["merges"]  # dolma's `tokenizers` reads only "a b", not ["a", "b"]
    config["model"]["merges"] = [p if isinstance(p, str) else " ".join(p) for p in pairs]
    tokenizer = args.output / "tokenizer.json"
    tokenizer.write_text(json.dumps(config))
    for path in args.files:
        with gzip.open(args.output / f"{path.stem}.jsonl.gz", "wt", compresslevel=1) as out:
            for row, text in enumerate(texts([path])):
                out.write(json.dumps({"id": str(row), "text": text}) + "\n")
    clock = Clock()
    subprocess.run(
        [
            *(Path(sys.executable).parent / "dolma", "tokens"),
            *("--documents", args.output / "*.jsonl.gz"),
            *("--destination", args.output / "tokens"),
            *("--tokenizer.name_or_path", tokenizer),
            *("--tokenizer.eos_token_id", str(end), "--tokenizer.pad_token_id", str(end)),
            *("--tokenizer.encode_special_tokens", "--dtype", "uint16"),
            *("--processes", str(args.workers), "--ring_size", "1", "--files_per_process", "1"),
        ],
        check=True,
    )
    clock.report(sum(path.stat().st_size // 2 for path in args.output.glob("tokens/*.npy")))


def litdata_optimize(args: argparse.Namespace) -> None:
    """Run litData's `optimize` with a TokensLoader and tiktoken; tokens are not compressed."""
    from litdata import TokensLoader, optimize

    clock = Clock()
    optimize(
        functools.partial(_tensors, vocabulary=args.tokenizer, counts=args.output),
        inputs=[str(path) for path in args.files],
        output_dir=str(args.output / "chunks"),
        chunk_size=SEQUENCE_LENGTH * 2**14,
        item_loader=TokensLoader(SEQUENCE_LENGTH + 1),
        num_workers=args.workers,
        start_method="fork",
    )
    clock.report(sum(int(path.read_text()) for path in args.output.glob("*.count")))


def _tensors(path: str, vocabulary: Path, counts: Path) -> Iterator[Any]:
    import torch

    encoding, end = load_tiktoken(vocabulary)
    tokens = 0
    for text in texts([Path(path)]):
        ids = [*encoding.encode_ordinary(text), end]
        tokens += len(ids)
        yield torch.tensor(ids, dtype=torch.uint16)
    (counts / f"{Path(path).stem}.count").write_text(str(tokens))


def litdata_read(args: argparse.Namespace) -> None:
    """Convert a flat file of ids to litData's chunks, and read an epoch; a tenth of it warms up."""
    import torch
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
    from litdata.streaming.writer import BinaryWriter

    folder, form = str(args.output / "chunks"), TokensLoader(block_size=SEQUENCE_LENGTH)
    writer = BinaryWriter(folder, chunk_size=SEQUENCE_LENGTH * 2**13, item_loader=form)
    for number, ids in enumerate(np.array_split(np.fromfile(args.files[0], np.uint16), 16)):
        writer.add_item(number, torch.from_numpy(ids))
    writer.done()
    writer.merge()
    dataset = StreamingDataset(folder, item_loader=form, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=16, num_workers=args.workers)
    batches = iter(loader)
    for _ in range(len(loader) // 10):
        next(batches)
    clock = Clock()
    clock.report(sum(batch.numel() for batch in batches))


def mds_writer(args: argparse.Namespace) -> None:
    """Write with stock MDSWriter, packed as llm-foundry does: a process per file, then a merge."""
    from streaming_ext.training.stock import streaming

    load_tiktoken(args.tokenizer)
    work = functools.partial(_convert, output=args.output, vocabulary=args.tokenizer)
    with multiprocessing.Pool(args.workers) as pool:
        clock = Clock()
        tokens = sum(pool.imap_unordered(work, args.files))
        streaming.base.util.merge_index(str(args.output))
        clock.report(tokens)


def _convert(path: Path, output: Path, vocabulary: Path) -> int:
    """Write one file's samples; return its tokens. The rest after the last full sample is lost."""
    from streaming_ext.training.stock import streaming

    encoding, end = load_tiktoken(vocabulary)
    buffer: list[int] = []
    tokens = 0
    with streaming.MDSWriter(
        out=str(output / path.stem),
        columns={"tokens": f"ndarray:uint16:{SEQUENCE_LENGTH}"},
        compression="zstd:1",
        hashes=["xxh3_64"],
        size_limit=64 * 2**20,
    ) as writer:
        for text in texts([path]):
            ids = encoding.encode_ordinary(text)
            tokens += len(ids) + 1
            buffer += ids
            buffer.append(end)
            while len(buffer) >= SEQUENCE_LENGTH:
                writer.write({"tokens": np.array(buffer[:SEQUENCE_LENGTH], np.uint16)})
                buffer = buffer[SEQUENCE_LENGTH:]
    return tokens


def megatron_preprocess(args: argparse.Namespace) -> None:
    """Encode per document in a pool, and write .bin and .idx in the parent, as Megatron-LM does."""
    work = functools.partial(_encode, vocabulary=args.tokenizer)
    lengths = []
    with (
        multiprocessing.Pool(args.workers) as pool,
        (args.output / "text_document.bin").open("wb") as out,
    ):
        clock = Clock()
        for ids in pool.imap(work, texts(args.files), DOCUMENTS_PER_TASK):
            out.write(np.array(ids, np.uint16).tobytes())
            lengths.append(len(ids))
        np.array(lengths, np.int32).tofile(args.output / "text_document.idx")
        clock.report(sum(lengths))


def _encode(text: str, vocabulary: Path) -> list[int]:
    tokenizer, end = load_tokenizers(vocabulary)
    return [*tokenizer.encode(text, add_special_tokens=False).ids, end]


def megatron_merge(args: argparse.Namespace) -> None:
    """Merge sets with the steps of Megatron-LM's merge_datasets.py; `args.files` are prefixes."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    clock, merged = Clock(), args.output / "merged"
    dtype = IndexedDataset(str(args.files[0])).index.dtype
    builder = IndexedDatasetBuilder(f"{merged}.bin", dtype=dtype)
    for prefix in args.files:
        builder.add_index(str(prefix))
    builder.finalize(f"{merged}.idx")
    clock.report(0)


def main() -> None:
    """Run one peer, and make its output folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", help="the name of a function here")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    args.output.mkdir(parents=True)
    import pyarrow.parquet  # noqa: F401 its import is not measured

    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    globals()[args.peer](args)


if __name__ == "__main__":
    main()
