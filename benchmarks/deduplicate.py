"""The cost of leaving out copies: runs with `--deduplicate` and without, in alternation.

The runs are on a corpus without copies, and on the same corpus with three documents of ten replaced
by copies of others, spread over all files. Seconds are of the whole command. On the first corpus,
there is also a run with `--exclude-texts` and 10,000 texts.

With `--recall 20000`, there are 20,000 documents instead. Some are near copies of others: edited,
cut or put into frames of web pages. The truly similar pairs, by n-grams of ids and of words, are
found by comparing all with all. They are compared with the documents that `--deduplicate near`
leaves out and, with `--datatrove`, with the result of datatrove's MinHash.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import common
from benchmarks.corpus import make_corpus, sample
from streaming_ext.base.arrays import ranges
from streaming_ext.format.spec import NearRule
from streaming_ext.text.sketches import num_matches, sketch_keys, sketches_of
from streaming_ext.text.tokenizer.engine import ReferenceEngine
from streaming_ext.text.tokenizer.load import load_tokenizer

RULE = NearRule(similarity=0.8, bands=14, rows=8, ngram=5)
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_COPIES = 0.3
_EVALUATION = "evaluation texts"
_OUTPUT = common.SCRATCH / "deduplicate-output"


def main() -> None:
    """Measure and print the table."""
    parser = common.parser(__doc__, megabytes=1040.0, files=8, rounds=3, workers=2)
    parser.add_argument("--recall", type=int, help="documents to compare all with all")
    parser.add_argument("--datatrove", action="store_true", help="with its MinHash, for --recall")
    args = parser.parse_args()
    common.save(args.result, **(recall(args) if args.recall else measure(args)))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all runs in alternating rounds; return seconds, processor seconds and memory."""
    plain = make_corpus(args.megabytes, args.files)
    corpora = {"no copies": plain, "30% copies": with_copies(plain)}
    cpu: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    kinds: dict[str, tuple[str, ...]] = {"": ()}
    kinds |= {kind: ("--deduplicate", kind) for kind in ("exact", "normalized", "near")}
    kinds[_EVALUATION] = ("--exclude-texts", str(evaluation_texts()))

    def seconds(corpus: str, kind: str) -> float:
        _, done = common.shard(corpora[corpus], _OUTPUT, *kinds[kind], workers=args.workers)
        name = f"{corpus}, {kind}"
        cpu.setdefault(name, []).append(done.cpu_seconds)
        memory[name] = max(memory.get(name, 0), done.peak(common.WORKER))
        return done.seconds

    contenders = {
        f"{corpus}, {kind}": partial(seconds, corpus, kind)
        for corpus in corpora
        for kind in kinds
        if kind != _EVALUATION or corpus == "no copies"
    }
    found = common.rounds(contenders, args.rounds, backed=4e6 * args.megabytes)
    middle, used = common.medians(found), common.medians(cpu)
    rows = []
    for name in contenders:
        without = f"{name.partition(',')[0]}, "
        times = (f"{kind[name] / kind[without]:.3f}" for kind in (middle, used))
        rows.append((name, f"{middle[name]:.2f}", *times, f"{memory[name]:.0f}"))
    columns = ("run", "s", "of a run without", "CPU, of a run without", "largest worker, MiB")
    print(common.table(columns, rows))
    return {"seconds": found, "cpu": cpu, "memory": memory}


def evaluation_texts() -> Path:
    """Write 10,000 texts of shuffled words of passages, as long as questions."""
    rng = np.random.default_rng(0)
    texts = sample(tuple(common.default_documents()), 10_000, 0.0, rng)["text"].to_pylist()
    file = common.SCRATCH / "evaluation.jsonl"
    with file.open("w") as out:
        for text in texts:
            words = text.split()[:60]
            rng.shuffle(words)
            print(json.dumps({"text": " ".join(words)}), file=out)
    return file


def with_copies(files: list[Path]) -> list[Path]:
    """Write copies of files in which some documents are replaced by others from any file."""
    folder = files[0].parent.with_name(f"{files[0].parent.name}-copies")
    folder.mkdir(exist_ok=True)
    paths = [folder / file.name for file in files]
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
    """Measure how many of the truly similar pairs are found; return all figures."""
    folder, rng = common.SCRATCH / "near-corpus", np.random.default_rng(0)
    common.fresh(folder).mkdir(parents=True)
    texts = near_texts(args.recall, rng)
    half = len(texts) // 2
    files = [folder / "0.jsonl", folder / "1.jsonl"]
    for file, own in zip(files, (texts[:half], texts[half:]), strict=True):
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in own))
    tokenizer = load_tokenizer(str(common.default_tokenizer()), pattern="gpt2")
    encoded = ReferenceEngine(tokenizer).encode(pa.array(texts, pa.large_string()))
    words = [text.lower().split() for text in texts]
    all_words = pa.array([word for each in words for word in each])
    numbers = all_words.dictionary_encode().indices.to_numpy()
    kinds = {
        "ids": (encoded.ids, encoded.offsets),
        "words": (numbers, np.cumsum([0, *map(len, words)])),
    }
    facts: dict[str, Any] = {}
    truth = {}
    for kind, (stream, edges) in kinds.items():
        pairs = truth[kind] = similar_pairs(stream, edges)
        sketches = np.concatenate([*sketches_of(stream, edges[:-1], edges[1:], RULE)])
        keys = sketch_keys(sketches, RULE)
        first, second = np.array([*pairs]).T
        similarity = np.array([*pairs.values()])
        is_true = similarity >= RULE.similarity
        in_a_band = (keys[:, first] == keys[:, second]).any(axis=0)
        is_found = num_matches(sketches[first], sketches[second]) >= RULE.least_matches
        is_found &= in_a_band
        facts[f"pairs by {kind}"] = {
            "true": int(is_true.sum()),
            "in a band": float(in_a_band[is_true].mean()),
            "found": float(is_found[is_true].mean()),
            "of those above 0.9": float(is_found[similarity >= 0.9].mean()),
            "precision": float(is_true[is_found].mean()),
            "precision at 0.7": float((similarity[is_found] >= 0.7).mean()),
        }
    facts["left out"] = _left_out(args, files, half, truth["ids"])
    _, without = common.shard(files, _OUTPUT, workers=args.workers)
    facts["without"] = _cost(without)
    if args.datatrove:
        words = ("datatrove_minhash", folder, "--output", folder / "datatrove")
        told, done = common.peer(*words, env="datatrove", interval=0.2)
        facts["datatrove"] = told | _cost(done)
    print(json.dumps(facts, indent=1))
    return facts


def _cost(measured: common.Measured) -> dict[str, float]:
    return {
        "seconds": measured.seconds,
        "CPU": measured.cpu_seconds,
        "MiB of the largest process": measured.peak(),
    }


def _left_out(
    args: argparse.Namespace, files: list[Path], half: int, pairs: dict[tuple[int, int], float]
) -> dict[str, float]:
    """Count the documents that `--deduplicate near` leaves out, and compare them with the pairs."""
    options = ("--deduplicate", "near")
    _, done = common.shard(files, _OUTPUT, *options, workers=args.workers, interval=0.2)
    table = pq.read_table(_OUTPUT / "duplicates")
    names = [(table[f"{of}part"].to_numpy(), table[f"{of}row"].to_numpy()) for of in ("", "first_")]
    own, firsts = (half * parts.astype(np.int64) + rows for parts, rows in names)
    removed = dict(zip(own.tolist(), firsts.tolist(), strict=True))
    true = np.array([pairs.get((first, row), 0.0) for row, first in removed.items()])
    return {
        "documents": len(removed),
        **_cost(done),
        "truly similar": float((true >= RULE.similarity).mean()),
        "above 0.7": float((true >= 0.7).mean()),
        "least": float(true.min()),
    }


def similar_pairs(
    stream: npt.NDArray[Any], edges: npt.NDArray[Any]
) -> dict[tuple[int, int], float]:
    """Return the Jaccard similarity of all pairs for which it is at least a third."""
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
    holders = documents[np.argsort(groups, kind="stable")]  # documents of each n-gram, in order
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
    """Make passages, some of them near copies: edited, cut, or with headers and footers."""
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
