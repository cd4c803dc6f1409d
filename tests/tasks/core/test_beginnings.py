"""Datasets whose documents begin with a special id, made in every way, compared with naive ids."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import ConfigMismatchError, TokenizerError
from streaming_ext.store import LocalStorage
from streaming_ext.text.tokenizer.load import load_tokenizer
from tasks.core.check.decode import decode_samples
from tasks.core.shard.plan import plan_shard
from tasks.core.synthetic import make_documents
from tests.command_line import file_hashes
from tests.conftest import small_vocabulary
from tests.tasks.core import running
from tests.tasks.core.build_dataset import (
    Forger,
    build_dataset,
    build_from,
    config_of,
    found_in,
    manifest_of,
    require_sound,
    streams_of,
)
from tests.tasks.core.exports.readers import cut
from tests.tasks.core.extending.extended import extended, write_source
from tests.tasks.core.imports.importing import CASES, imported, write_ids
from tests.tasks.core.moving.moved import copied, merged
from tests.tasks.core.subsets.test_subset import subset

EOT, BOS = 1024, 1025
FIRST = {"bos_token": "<s>"}
TEXTS: list[str | None] = [
    *(text[: 9 + 71 * n % 700] for n, text in enumerate(make_documents(60, seed=8))),
    "",
    None,
    "a",
    "<s>",
    "<s>a<|endoftext|>",
    "twice",
    "twice",
]
FILES = [TEXTS[:20], TEXTS[20:50], TEXTS[50:]]
MORE = ["one more", *(text[:200] for text in make_documents(9, seed=9))]
LEAST = 60  # the least number of tokens per text
Way = Callable[..., Path]


def naive(texts: list[str | None]) -> list[list[int]]:
    """Return each text between its two ids, encoded by the reference."""
    encode = load_tokenizer(str(small_vocabulary()), pattern="gpt2").encode
    return [[BOS, *encode(text), EOT] for text in texts if text]


def documents_of(root: Path) -> list[list[int]]:
    """Return all documents of a dataset, split after split, without padding."""
    return [one for ids in streams_of(root).values() for one in cut(np.array(ids), EOT)]


def shard(folder: Path, **config: Any) -> Path:
    return build_dataset(folder, FILES, **config)


def extend(folder: Path, **config: Any) -> Path:
    root = build_dataset(folder, FILES, **config)
    extended(root, write_source(folder / "more.parquet", MORE))
    return root


def derive(derived: Callable[[Path, Path], object]) -> Way:
    def make(folder: Path, **config: Any) -> Path:
        derived(build_dataset(folder, FILES, **config), folder / "derived")
        return folder / "derived"

    return make


def merge(folder: Path, **config: Any) -> Path:
    other = build_dataset(folder / "other", [MORE], **config)
    merged([build_dataset(folder, FILES, **config), other], folder / "both")
    return folder / "both"


def resume(folder: Path, **config: Any) -> Path:
    """Kill a run after each part of the first phase; its bytes are those of an undisturbed run."""
    whole = build_dataset(folder, FILES, **config)
    settings = config_of(folder / "sources", folder / "again", **config)
    for _ in FILES:
        build, output = running.planned(plan_shard, settings)
        running.do_parts(build, output, build.todo[-1:])
        output.close()
    root = build_from(folder / "sources", folder / "again", **config)
    assert file_hashes(root) == file_hashes(whole)
    return root


ALL = naive(TEXTS)
ONCE = naive([*dict.fromkeys(TEXTS)])
LONG = [ids for ids in ALL if len(ids) - 2 >= LEAST]
WAYS: dict[str, tuple[Way, dict[str, Any], list[list[int]]]] = {
    "shard": (shard, {}, ALL),
    "fast engine": (shard, {"engine": "auto"}, ALL),
    "tars": (shard, {"output_format": "webdataset", "compression": "none"}, ALL),
    "small files together": (shard, {"min_part_size": "1GiB"}, ALL),
    "filtered": (shard, {"min_tokens": LEAST}, LONG),
    "shuffled": (shard, {"shuffle": "documents"}, ALL),
    "deduplicated": (shard, {"deduplicate": "exact"}, ONCE),
    "both": (shard, {"shuffle": "documents", "deduplicate": "exact"}, ONCE),
    "extended": (extend, {}, ALL + naive(MORE)),
    "extended, shuffled": (extend, {"shuffle": "documents"}, ALL + naive(MORE)),
    "copied": (derive(copied), {}, ALL),
    "merged": (merge, {}, ALL + naive(MORE)),
    "a subset": (derive(lambda dataset, output: subset(dataset, output, documents=65)), {}, ALL),
    "resumed": (resume, {"shuffle": "documents"}, ALL),
}


@pytest.mark.parametrize("name", WAYS)
def test_every_document_begins_and_ends_with_its_id(name, tmp_path) -> None:
    make, config, expected = WAYS[name]
    root = make(tmp_path, **config, **FIRST)
    assert sorted(documents_of(root)) == sorted(expected)
    assert manifest_of(root).spec.tokenizer.bos_id == BOS
    require_sound(root, deep=True, deep_documents=10**6)
    lists = [pq.read_table(file)["tokens"] for file in root.glob("documents/0*.parquet")]
    counted = sum(sum(tokens.to_pylist()) + len(tokens) for tokens in lists)
    assert counted == manifest_of(root).tokens == sum(map(len, expected))
    decode = load_tokenizer(str(small_vocabulary()), pattern="gpt2").decode_bytes
    for split, ids in streams_of(root).items():
        (sample,) = decode_samples(LocalStorage(root), split, [0])
        first = sample.excerpts[0]
        assert first.text == decode(ids[1 : first.tokens]).decode(errors="ignore")


def test_the_same_texts_are_held_out(tmp_path) -> None:
    """A beginning changes neither the splits of documents nor their order."""
    plain = streams_of(build_dataset(tmp_path / "plain", FILES))
    begun = streams_of(build_dataset(tmp_path / "begun", FILES, **FIRST))
    for split, ids in begun.items():
        assert [one[1:] for one in cut(np.array(ids), EOT)] == cut(np.array(plain[split]), EOT)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sets_of_ids_are_written_and_read_with_it(case, tmp_path) -> None:
    """An import of an export gives the documents back; a set without beginnings gets them."""
    root = build_dataset(tmp_path, FILES, **FIRST)
    back = imported(case.name, case.made(root, tmp_path), tmp_path / "back", **case.read, **FIRST)
    assert sorted(documents_of(back)) == sorted(ALL)
    require_sound(back, deep=True)


def test_a_set_without_beginnings_gets_them_and_its_holdout_stays(tmp_path) -> None:
    ids = [[1, 2, 3], [BOS, 4], [BOS], [5], [6, 7], [BOS, 8, 9], *([n] for n in range(10, 90))]
    write_ids(tmp_path / "x.bin", ids)
    write_ids(tmp_path / "y.bin", [one[1:] if one[0] == BOS else one for one in ids])
    made = [
        streams_of(
            imported(
                "nanogpt", tmp_path / f"{name}.bin", tmp_path / name, holdout_fraction=0.3, **FIRST
            )
        )
        for name in "xy"
    ]
    assert made[0] == made[1]
    documents = [one for ids in made[0].values() for one in cut(np.array(ids), EOT)]
    assert sorted(documents) == sorted(
        [BOS, *(id_ for id_ in one if id_ != BOS), EOT] for one in ids if one != [BOS]
    )
    write_ids(tmp_path / "z.bin", [[1, BOS, 2]])
    with pytest.raises(TokenizerError, match=rf"gives the beginning-of-text id {BOS}.*--bos-token"):
        imported("nanogpt", tmp_path / "z.bin", tmp_path / "z", **FIRST)


def test_datasets_with_and_without_do_not_go_together(tmp_path) -> None:
    plain = build_dataset(tmp_path / "plain", [MORE])
    begun = build_dataset(tmp_path / "begun", FILES, **FIRST)
    for changes in ({}, {"bos_token": "<other>"}):
        with pytest.raises(
            ConfigMismatchError, match=r"tokenizer\.bos_token: the output has '<s>'"
        ):
            build_from(tmp_path / "begun/sources", begun, **changes)
    with pytest.raises(ConfigMismatchError, match=r"tokenizer\.bos_id"):
        merged([plain, begun], tmp_path / "both")
    manifest = (plain / "manifest.json").read_bytes() + (begun / "manifest.json").read_bytes()
    assert manifest.count(b"bos") == 2


@pytest.mark.parametrize(
    "edit",
    [
        lambda ids: ids.put(0, 5),  # the first document begins with another id
        lambda ids: ids.put(1, BOS),  # the beginning stands twice
        lambda ids: ids.put(np.flatnonzero(ids == EOT)[0] - 1, BOS),
    ],
)
def test_a_beginning_elsewhere_is_found(edit, tmp_path) -> None:
    root = build_dataset(tmp_path, FILES, **FIRST)
    forger = Forger(root)
    stream = forger.stream(1, "train")
    edit(stream)
    forger.set_stream(1, "train", stream)
    forger.seal()
    assert "parts/00001.json" in found_in(root)


def test_a_lost_tokenizer_of_an_extension_is_loaded_with_it(tmp_path) -> None:
    root = build_dataset(tmp_path, FILES, **FIRST)
    for file in (root / "tokenizer").iterdir():
        file.unlink()
    extended(root, write_source(tmp_path / "more.parquet", MORE), tokenizer=str(small_vocabulary()))
    assert sorted(documents_of(root)) == sorted(ALL + naive(MORE))
