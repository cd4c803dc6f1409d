"""`verify` names the part that lies: every hash is right, what the files say is not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streaming_ext.format.schema import content_hash, to_json
from tests.tasks.core.build_dataset import Forger
from tests.tasks.core.check.damage import (
    DOCUMENTS,
    RECORD,
    check,
    files_named,
    fix_hash_in_manifest,
    forged,
)


def change_ids(index: Callable[[Forger, Any], int], value: int | None = None) -> Any:
    """Replace one id of part 1's train stream; None means end of text."""

    def change(forger: Forger) -> None:
        ids = forger.stream(1, "train")
        eot_id = forger.spec.tokenizer.eot_id
        ids[index(forger, np.flatnonzero(ids == eot_id))] = eot_id if value is None else value
        forger.set_stream(1, "train", ids)

    return change


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (lambda f, ends: int(ends[2]), 5),  # an end of text is gone
        (lambda f, ends: int(ends[2]) - 1, None),  # one too many, and an empty document
        (lambda f, ends: 0, None),  # the stream begins with one
        (lambda f, ends: int(ends[-1]), 5),  # the last id
    ],
)
def test_a_wrong_id(where: Callable[[Forger, Any], int], value: int | None, copy: Path) -> None:
    assert RECORD in forged(copy, change_ids(where, value))


def test_an_id_beyond_the_vocabulary_names_its_shard(copy: Path) -> None:
    change = change_ids(lambda f, ends: 0, 60_000)
    assert forged(copy, change) == {Forger(copy).shard_path(1, "train")}


def test_padding_of_another_sample(copy: Path) -> None:
    def change(forger: Forger) -> None:
        held, length = forger.records[1].splits["train"], forger.spec.sequence_length
        more = np.full(length, forger.spec.tokenizer.eot_id)
        ids = np.concatenate((forger.stream(1, "train"), more))
        forger.set_stream(1, "train", ids, padding=held.padding + length)

    assert forged(copy, change) == {RECORD}


def test_padding_before_the_end(copy: Path) -> None:
    def change(forger: Forger) -> None:
        ids, held = forger.stream(1, "train"), forger.records[1].splits["train"]
        assert held.padding > 1
        end = int(np.flatnonzero(ids == forger.spec.tokenizer.eot_id)[1])
        moved = np.insert(ids[:-1], end, forger.spec.tokenizer.eot_id)
        forger.set_stream(1, "train", moved)

    assert forged(copy, change) == {RECORD}


def move_one(forger: Forger) -> None:
    columns = forger.documents(1)
    columns["split"][4] = "holdout" if columns["split"][4] == "train" else "train"
    forger.set_documents(1, columns)


def edit_column(name: str, index: int, value: Any) -> Callable[[Forger], None]:
    def change(forger: Forger) -> None:
        columns = forger.documents(1)
        columns[name][index] = value(columns[name]) if callable(value) else value
        forger.set_documents(1, columns)

    return change


def swap_lengths(forger: Forger) -> None:
    columns = forger.documents(1)
    train = [i for i, split in enumerate(columns["split"]) if split == "train"]
    first, second = next(
        (a, b) for a in train for b in train if columns["tokens"][a] != columns["tokens"][b]
    )
    tokens = columns["tokens"]
    tokens[first], tokens[second] = tokens[second], tokens[first]
    forger.set_documents(1, columns)


def drop_one(forger: Forger) -> None:
    forger.set_documents(1, {name: values[:-1] for name, values in forger.documents(1).items()})


def another_column(forger: Forger) -> None:
    table = pa.table({**forger.documents(1), "more": forger.documents(1)["row"]})
    forger.set_documents(1, table)


def not_parquet(forger: Forger) -> None:
    forger.set_documents(1, forger.documents(1))
    path = forger.root / DOCUMENTS
    path.write_bytes(b"PAR1" + b"\xff" * 100 + b"PAR1")
    file = forger.records[1].documents
    changed = {"size": path.stat().st_size, "xxh128": content_hash(path.read_bytes())}
    forger.change(1, documents=file.model_copy(update=changed))


@pytest.mark.parametrize(
    "change",
    [
        move_one,
        swap_lengths,
        drop_one,
        another_column,
        not_parquet,
        edit_column("tokens", 2, lambda tokens: tokens[2] + 1),
        edit_column("tokens", 2, 0),
        edit_column("tokens", 2, 2**32 - 1),
        edit_column("row", 2, lambda rows: rows[1]),
        edit_column("row", -1, 10**6),
        edit_column("split", 3, "test"),
        edit_column("tokens", 3, None),
    ],
)
def test_a_wrong_provenance_is_named(change: Callable[[Forger], None], copy: Path) -> None:
    assert forged(copy, change) in ({DOCUMENTS}, {RECORD})


def add_to_split(**amounts: int) -> Callable[[Forger], None]:
    def change(forger: Forger) -> None:
        held = forger.records[1].splits["train"]
        update = {name: getattr(held, name) + amount for name, amount in amounts.items()}
        forger.set_split(1, "train", held.model_copy(update=update))
        rows = forger.records[1].rows + amounts.get("documents", 0)
        forger.change(1, rows=rows)

    return change


@pytest.mark.parametrize(
    "change",
    [
        add_to_split(documents=1),
        add_to_split(documents=-1),
        add_to_split(tokens=1, padding=-1),
        add_to_split(tokens=-1, padding=1),
        lambda forger: forger.change(1, splits={"train": forger.records[1].splits["train"]}),
        lambda forger: forger.change(1, part=7),
    ],
)
def test_a_wrong_count_names_the_record(change: Callable[[Forger], None], copy: Path) -> None:
    forger = Forger(copy)
    change(forger)
    (copy / RECORD).write_bytes(to_json(forger.records[1]))
    fix_hash_in_manifest(copy, forger)
    assert RECORD in files_named(check(copy))


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m["splits"]["train"].update(documents=m["splits"]["train"]["documents"] + 1),
        lambda m: m["splits"]["holdout"].update(padding=10**30),
        lambda m: m["splits"].pop("holdout"),
        lambda m: m["splits"]["train"]["index"].update(size=3),
        lambda m: m["parts"].reverse(),
        lambda m: m["parts"][0].update(text_bytes=1),
        lambda m: m["spec"].update(holdout_seed=99),
        lambda m: m["spec"].update(shard_size=2**40),
        lambda m: m["spec"]["tokenizer"].update(eot_id=3),
        lambda m: m["spec"]["tokenizer"].update(fingerprint="0"),
        lambda m: m.update(tokenizer_files=[]),
        lambda m: m.update(format=0),
        lambda m: m["parts"][0]["record"].update(path="../parts/00000.json"),
        lambda m: m.clear(),
    ],
)
def test_a_wrong_manifest_is_named(edit: Callable[[dict[str, Any]], object], copy: Path) -> None:
    Forger(copy).seal(edit)
    assert "manifest.json" in files_named(check(copy))


def test_sources_out_of_order(copy: Path) -> None:
    def change(forger: Forger) -> None:
        sources = [forger.records[part].source for part in (0, 1)]
        forger.change(0, source=sources[1])
        forger.change(1, source=sources[0])

    assert forged(copy, change) == {"manifest.json"}


@pytest.mark.parametrize("update", [{"eot_token": "<|other|>"}, {"name": "x"}, {"eot_id": 1023}])
def test_everything_names_another_tokenizer(update: dict[str, Any], copy: Path) -> None:
    def change(forger: Forger) -> None:
        tokenizer = forger.spec.tokenizer.model_copy(update=update)
        spec = forger.spec.model_copy(update={"tokenizer": tokenizer})
        forger.manifest = forger.manifest.model_copy(update={"spec": spec})
        for part in forger.records:
            forger.change(part, spec=spec)

    assert "manifest.json" in forged(copy, change)


def test_shards_that_are_not_full(copy: Path) -> None:
    def change(forger: Forger) -> None:
        held, form = forger.records[1].splits["train"], forger.spec.shard_format
        samples = forger.stream(1, "train").reshape(-1, form.sequence_length)
        pieces = [samples[:1], *np.array_split(samples[1:], 2)]
        shards = [
            forger.put_shard(
                1, "train", number, len(piece), form.header(len(piece)) + piece.tobytes()
            )
            for number, piece in enumerate(pieces)
        ]
        forger.set_split(1, "train", held.model_copy(update={"shards": tuple(shards)}))

    assert RECORD in forged(copy, change)


def test_an_index_of_other_shards(copy: Path) -> None:
    index = copy / "train/index.json"
    index.write_bytes(index.read_bytes().replace(b'"samples": ', b'"samples":  '))
    data = index.read_bytes()

    def edit(manifest: dict[str, Any]) -> None:
        index.write_bytes(data)
        manifest["splits"]["train"]["index"].update(size=len(data), xxh128=content_hash(data))

    Forger(copy).seal(edit)
    assert files_named(check(copy)) == {"manifest.json", "train/index.json"}
