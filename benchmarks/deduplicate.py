"""The cost of leaving out copies: runs with `--deduplicate` beside runs without, in alternation.

On a corpus without copies, and on the same one of which three documents of ten are copies of
others, spread over all files. Whatever leaves out copies has to know of all texts before it packs
tokens: the limit is a run without, and as many processes that hash the texts, write the ids to
scratch and read them back, each hashed on its way. Seconds are those of the whole command, as
somebody waits for it; beside them stand those from the first file to the published manifest.

With `--recall 20000`: instead, so many documents of which some are near copies of others, edited,
cut and put into frames of web pages. The pairs that are truly similar, by n-grams of ids and of
words, are found by comparing all with all; beside them stand what `--deduplicate near` leaves out
and, with `--datatrove PYTHON`, what datatrove's MinHash does.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from benchmarks import common
from benchmarks.make_corpus import make_corpus, sample
from streaming_ext.base.arrays import ranges
from streaming_ext.format.spec import NearRule
from streaming_ext.text.sketches import num_matches, sketch_keys, sketches_of
from streaming_ext.text.tokenizer.engine import ReferenceEngine
from streaming_ext.text.tokenizer.load import load_tokenizer

RULE = NearRule(similarity=0.8, bands=14, rows=8, ngram=5)
_PRIME = np.uint64(0x9E3779B97F4A7C15)

_COPIES = 0.3
_PIECE_BYTES = 2**23
_ID_BYTES = 2


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=1000, help="text of each corpus")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--scratch", type=Path, default=common.CACHE / "scratch")
    parser.add_argument("--options", nargs="*", default=[], help="of `shardmill shard`, for all")
    parser.add_argument("--result", type=Path, help="file to keep the result in, as JSON")
    parser.add_argument("--recall", type=int, help="documents to compare all with all")
    parser.add_argument("--datatrove", type=Path, help="Python that has datatrove")
    args = parser.parse_args()
    args.tokenizer = args.tokenizer or common.default_tokenizer()
    common.save(args.result, **(recall(args) if args.recall else measure(args)))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All runs in alternating rounds; returns seconds and ratios."""
    each = args.megabytes / args.files
    plain = make_corpus(
        args.scratch / "deduplicate-corpus", files=args.files, megabytes=each, share=0.005
    )
    copies = with_copies(plain, args.scratch / "deduplicate-copies")
    output = args.scratch / "deduplicate-output"
    memory: list[int] = []

    def seconds(name: str, files: list[Path], *options: str) -> float:
        done = common.shard(
            files, output, args.tokenizer, *args.options, *options, workers=args.workers
        )
        memory.append(max(size for samples in done.measured.worker_memory() for _, size in samples))
        if not options:
            texts.append(done.record["text_bytes"])
            ids.append(_ID_BYTES * done.record["tokens"])
        inside.setdefault(name, []).append(done.seconds)
        return done.measured.seconds

    texts: list[int] = []
    ids: list[int] = []
    inside: dict[str, list[float]] = {}
    corpora = {"no copies": plain, "30% copies": copies}
    kinds: dict[str, tuple[str, ...]] = {
        "without": (),
        "exact": ("--deduplicate", "exact"),
        "normalized": ("--deduplicate", "normalized"),
        "near": ("--deduplicate", "near"),
    }
    contenders: dict[str, Callable[[], float]] = {
        name: partial(seconds, name, files, *options)
        for corpus, files in corpora.items()
        for kind, options in kinds.items()
        for name in [f"{corpus}, {kind}"]
    }
    contenders["texts and ids once more"] = lambda: once_more(
        texts[0], ids[0], args.scratch, workers=args.workers
    )
    found = common.rounds(contenders, args.rounds, backed=int(4e6 * args.megabytes))
    middle = {name: statistics.median(values) for name, values in found.items()}
    more = middle.pop("texts and ids once more")
    within = {name: statistics.median(values) for name, values in inside.items()}
    for each_kind in (middle, within):
        each_kind["no copies, limit"] = each_kind["no copies, without"] + more

    def told(kind: dict[str, float], name: str) -> tuple[str, str]:
        without = kind[f"{name.partition(',')[0]}, without"]
        return f"{kind[name]:.2f} s", f"{kind[name] / without:.3f}"

    columns = "run", "whole command", "of a run without", "inside", "of a run without"
    rows = [(name, *told(middle, name), *told(within, name)) for name in middle]
    print(common.table(columns, rows))
    print(f"largest worker: {max(memory) / 2**20:.0f} MiB")
    return {"seconds": found, "inside": inside, "memory": memory}


def once_more(texts: int, ids: int, folder: Path, *, workers: int) -> float:
    """Measure processes that hash texts, and write and read ids, without their start.

    Args:
        texts: bytes of all texts.
        ids: bytes of all ids.
        folder: the folder to write to.
        workers: the number of processes.
    """
    work = partial(_pass, texts // workers, ids // workers, folder)
    return common.pool_seconds(work, range(workers), workers)


def _pass(texts: int, ids: int, folder: Path, number: int) -> None:
    piece = np.random.default_rng(number).bytes(_PIECE_BYTES)
    for _ in range(texts // _PIECE_BYTES):
        xxhash.xxh3_128_digest(piece)
    path = folder / f"once-more-{number}"
    with path.open("wb", buffering=0) as out:
        for _ in range(ids // _PIECE_BYTES):
            out.write(piece)
            xxhash.xxh3_64_digest(piece)
    read = bytearray(_PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(read):
            xxhash.xxh3_64_digest(read)
    path.unlink()


def with_copies(files: list[Path], folder: Path) -> list[Path]:
    """The same files, with some documents replaced by others from anywhere."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / file.name for file in files]
    if all(path.exists() for path in paths):
        return paths
    texts = pa.concat_arrays([pq.read_table(file)["text"].combine_chunks() for file in files])
    drawn = np.random.default_rng(0)
    chosen = np.arange(len(texts))
    replaced = drawn.random(len(texts)) < _COPIES
    originals = np.flatnonzero(~replaced)
    chosen[replaced] = drawn.choice(originals, int(replaced.sum()))
    first = 0
    for file, path in zip(files, paths, strict=True):
        rows = pq.ParquetFile(file).metadata.num_rows
        table = pa.table({"text": texts.take(pa.array(chosen[first : first + rows]))})
        pq.write_table(table, path, compression="zstd", row_group_size=1000)
        first += rows
    return paths


def recall(args: argparse.Namespace) -> dict[str, Any]:
    """Measure how many of the pairs that are truly similar are found; returns all figures."""
    folder, rng = args.scratch / "near-corpus", np.random.default_rng(0)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    texts = near_texts(args.recall, rng)
    half = len(texts) // 2
    files = [folder / "0.jsonl", folder / "1.jsonl"]
    for file, own in zip(files, (texts[:half], texts[half:]), strict=True):
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in own))
    tokenizer = load_tokenizer(str(args.tokenizer), pattern="gpt2")
    encoded = ReferenceEngine(tokenizer).encode(pa.array(texts, pa.large_string()))
    words = [text.lower().split() for text in texts]
    all_words = pa.array([word for each in words for word in each])
    numbers = all_words.dictionary_encode().indices.to_numpy()
    kinds = {
        "ids": (encoded.ids, encoded.offsets),
        "words": (numbers, np.cumsum([0, *map(len, words)])),
    }
    facts: dict[str, Any] = {}
    truth: dict[str, dict[tuple[int, int], float]] = {}
    for kind, (stream, edges) in kinds.items():
        pairs = truth[kind] = similar_pairs(stream, edges)
        sketches = np.concatenate([*sketches_of(stream, edges[:-1], edges[1:], RULE)])
        keys = sketch_keys(sketches, RULE)
        first, second = np.array([*pairs]).T
        is_true = np.array([*pairs.values()]) >= RULE.similarity
        in_a_band = (keys[:, first] == keys[:, second]).any(axis=0)
        is_found = num_matches(sketches[first], sketches[second]) >= RULE.least_matches
        is_found &= in_a_band
        facts[f"pairs by {kind}"] = {
            "true": int(is_true.sum()),
            "in a band": float(in_a_band[is_true].mean()),
            "found": float(is_found[is_true].mean()),
            "of those above 0.9": float(is_found[np.array([*pairs.values()]) >= 0.9].mean()),
            "precision": float(is_true[is_found].mean()),
            "precision at 0.7": float((np.array([*pairs.values()]) >= 0.7)[is_found].mean()),
        }
    both = [by_ids for pair, by_ids in truth["words"].items() if by_ids >= RULE.similarity]
    facts["pairs by words that are by ids"] = sum(
        truth["ids"].get(pair, 0.0) >= RULE.similarity
        for pair, similarity in truth["words"].items()
        if similarity >= RULE.similarity
    ) / max(len(both), 1)
    facts["left out"] = _left_out(args, files, half, truth["ids"])
    plain = common.shard(files, args.scratch / "near-output", args.tokenizer, workers=args.workers)
    facts["without"] = _cost(plain.measured)
    if args.datatrove:
        script = (common.ROOT / "benchmarks/peers.py", "datatrove_minhash", folder)
        command = [args.datatrove, "-P", *script, "--output", folder / "datatrove"]
        done = common.run(command, interval=0.2)
        facts["datatrove"] = json.loads(done.output.splitlines()[-1]) | _cost(done)
    print(json.dumps(facts, indent=1))
    return facts


def _cost(measured: common.Measured) -> dict[str, float]:
    most = [max(size for _, size in samples) for samples in measured.memory.values()]
    return {
        "seconds": measured.seconds,
        "CPU": measured.cpu_seconds,
        "MiB of the largest process": max(most, default=0) / 2**20,
    }


def _left_out(
    args: argparse.Namespace, files: list[Path], half: int, pairs: dict[tuple[int, int], float]
) -> dict[str, float]:
    """Count the documents that `--deduplicate near` leaves out, and the similar pairs that stay."""
    output = args.scratch / "near-output"
    options = ("--deduplicate", "near", *args.options)
    done = common.shard(files, output, args.tokenizer, *options, workers=args.workers, interval=0.2)
    table = pq.read_table(output / "duplicates")
    names = [(table[f"{of}part"].to_numpy(), table[f"{of}row"].to_numpy()) for of in ("", "first_")]
    own, firsts = (half * parts.astype(np.int64) + rows for parts, rows in names)
    removed = dict(zip(own.tolist(), firsts.tolist(), strict=True))
    true = np.array([pairs.get((first, row), 0.0) for row, first in removed.items()])
    missed = {
        second
        for (first, second), similarity in pairs.items()
        if similarity >= RULE.similarity and not {first, second} & removed.keys()
    }
    return {
        "documents": len(removed),
        **_cost(done.measured),
        "truly similar": float((true >= RULE.similarity).mean()),
        "above 0.7": float((true >= 0.7).mean()),
        "least": float(true.min()),
        "stay with a similar one": len(missed),
    }


def similar_pairs(
    stream: npt.NDArray[Any], edges: npt.NDArray[Any]
) -> dict[tuple[int, int], float]:
    """The Jaccard similarity of all pairs that have a third of their n-grams in common."""
    sets = []
    for begin, end in pairwise(edges.tolist()):
        own = stream[begin:end].astype(np.uint64)
        length = min(RULE.ngram, len(own))
        hashes = np.zeros(len(own) - length + 1, np.uint64)
        for offset in range(length):
            hashes = hashes * _PRIME + own[offset : len(own) - length + 1 + offset]
            hashes ^= hashes >> np.uint64(29)
        sets.append(np.unique(hashes))
    sizes = np.array([len(each) for each in sets])
    documents = np.repeat(np.arange(len(sets)), sizes)
    _, groups, counts = np.unique(np.concatenate(sets), return_inverse=True, return_counts=True)
    holders = documents[np.argsort(groups, kind="stable")]  # of each n-gram, in order
    firsts = np.cumsum(counts) - counts
    found = {}
    for number, (begin, end) in enumerate(pairwise([0, *np.cumsum(sizes).tolist()])):
        own = groups[begin:end]
        own = own[counts[own] > 1]
        common_with = np.bincount(holders[ranges(firsts[own], counts[own])], minlength=len(sets))
        similarity = common_with / (sizes + sizes[number] - common_with)
        for other in (np.flatnonzero(similarity[number + 1 :] >= 1 / 3) + number + 1).tolist():
            found[number, other] = float(similarity[other])
    return found


def near_texts(count: int, rng: np.random.Generator) -> list[str]:
    """Passages, and near copies of some: edited, cut, with headers, footers and boilerplate."""
    documents = tuple(common.default_documents())
    texts = sample(documents, count, 0.0, rng)["text"].to_pylist()
    frames = [text.split(" ")[:80] for text in texts[:20]]
    for number in range(20, count):
        kind = rng.random()
        if kind > 0.5:
            continue
        words = texts[int(rng.integers(20, number))].split(" ") if number > 20 else ["a"]
        if kind < 0.2:
            share = rng.choice([0.002, 0.005, 0.01, 0.02, 0.05])
            for at in np.flatnonzero(rng.random(len(words)) < share):
                words[at] = words[int(rng.integers(len(words)))]
        elif kind < 0.3:
            words = [*frames[number % 20][:20], *words, *frames[number % 20][20:60]]
        elif kind < 0.4:
            words = words[: max(1, int(len(words) * rng.uniform(0.6, 1)))]
        else:  # another page of the same site
            words = [*frames[number % 20], *texts[number].split(" "), *frames[number % 20]]
        texts[number] = " ".join(words)
    return texts


if __name__ == "__main__":
    main()
