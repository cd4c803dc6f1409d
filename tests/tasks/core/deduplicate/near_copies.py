"""Sources with near copies, and a naive search for those that the rule finds."""

import json
import random
from collections import defaultdict
from collections.abc import Container
from pathlib import Path

import numpy as np
import pyarrow as pa

from streaming_ext.format.spec import NearRule
from streaming_ext.text.sketches import Sketches, sketch_keys, sketches_of
from streaming_ext.text.tokenizer.engine import ReferenceEngine
from tasks.core.options import Deduplication
from tasks.core.shuffle.near import MOST_LEADERS
from tasks.core.synthetic import make_documents
from tests.streaming_ext.text.packed import write_documents
from tests.tasks.core.build_dataset import config_of

Where = tuple[str, int]  # a source file and a row in it
NEAR = Deduplication(deduplicate="near").near


def write_near_copies(folder: Path, files: int = 4, documents: int = 30) -> Path:
    """Write files whose texts are edited, cut, and put into frames from other texts."""
    folder.mkdir(parents=True)
    rng = random.Random(5)
    texts = [text[:600] for text in make_documents(files * 4, seed=7)]
    for number in range(files):
        own: list[str | None] = []
        for _ in range(documents):
            words = rng.choice(texts).split(" ")
            for _ in range(rng.choice((0, 0, 1, 2, 4, 8))):
                words[rng.randrange(len(words))] = rng.choice(texts).split(" ")[0]
            if rng.random() < 0.3:
                words = words[: len(words) * rng.randrange(75, 100) // 100]
            if rng.random() < 0.2:
                words = ["Home | About |", *words, "All rights reserved."]
            own.append(" ".join(words))
        own[3:3] = ["", "short", "shorter", None, "short"]
        write_documents(folder / f"{number}.jsonl", own)
    return folder


def _sketched(
    lines: Path, rule: NearRule, left_out: Container[Where]
) -> tuple[list[Where], Sketches]:
    engine = ReferenceEngine(config_of(lines, lines).load_tokenizer())
    places: list[Where] = []
    sketches = []
    for file in sorted(lines.iterdir()):
        for row, line in enumerate(file.read_text().splitlines()):
            if not (text := json.loads(line)["text"]) or (file.name, row) in left_out:
                continue
            ids = engine.encode(pa.array([text], pa.large_string())).ids
            edges = np.array([0]), np.array([len(ids)])
            sketches += [*sketches_of(ids, *edges, rule)]
            places.append((file.name, row))
    return places, np.concatenate(sketches)


def expected_near(
    lines: Path,
    rule: NearRule,
    older: tuple[set[Where], dict[Where, tuple[Where, int]]] = (set(), {}),
) -> tuple[set[Where], dict[Where, tuple[Where, int]]]:
    """Return the documents that stay; for those left out, the witness and the number of equal bins.

    Args:
        lines: the folder of the sources.
        rule: the rule.
        older: the result for the dataset that is extended.
    """
    places, found = _sketched(lines, rule, older[1])
    buckets = defaultdict(list)
    for keys in sketch_keys(found, rule):
        for number, key in enumerate(keys.tolist()):
            buckets[key].append(number)
    pairs: dict[int, dict[int, int]] = defaultdict(dict)
    for bucket in buckets.values():
        for _ in range(MOST_LEADERS):
            if not bucket:
                break
            leader, *others = bucket
            bucket = []  # noqa: PLW2901
            for number in others:
                matches = int((found[number] == found[leader]).sum())
                if matches >= rule.least_matches:
                    pairs[number][leader] = matches
                else:
                    bucket.append(number)
    witnesses: dict[int, int] = {}
    for number in range(len(places)):
        stay = [each for each in sorted(pairs[number]) if each not in witnesses]
        if stay and places[number] not in older[0]:
            witnesses[number] = stay[0]
    left_out = {
        places[number]: (places[first], pairs[number][first]) for number, first in witnesses.items()
    }
    return {place for place in places if place not in left_out}, older[1] | left_out
