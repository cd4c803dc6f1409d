"""`verify` names the file that lies: every hash is right, but its content is not."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from copy import copy as copy_object
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstd

from streaming_ext.format.schema import FileRecord, content_hash, to_json
from streaming_ext.format.shard import Shard
from tests.tasks.core.build_dataset import Forger
from tests.tasks.core.check.damage import (
    DOCUMENTS,
    RECORD,
    check,
    files_named,
    forged,
    with_record,
)

Change = Callable[[Forger], None]
Ids = npt.NDArray[Any]
MANIFEST, SHARD = "manifest.json", "train/00001/shard.00000.mds.zstd"


def ids(edit: Callable[[Ids, Ids, int], Ids | None], **more: int) -> Change:
    """Change part 1's train stream; `edit` gets it, where its end-of-text ids are, and that id."""

    def change(forger: Forger) -> None:
        stream, eot_id = forger.stream(1, "train"), forger.spec.tokenizer.eot_id
        changed = edit(stream, np.flatnonzero(stream == eot_id), eot_id)
        held = forger.records[1].splits["train"]
        counts = {name: getattr(held, name) + amount for name, amount in more.items()}
        forger.set_stream(1, "train", stream if changed is None else changed, **counts)

    return change


WRONG_IDS = [
    ids(lambda stream, ends, eot: stream.put(ends[2], 5)),  # an end of text is gone
    ids(lambda stream, ends, eot: stream.put(0, eot)),  # the stream begins with an end of text
    ids(lambda stream, ends, eot: stream.put(ends[-1], 5)),  # the last id is no end of text
    ids(lambda stream, ends, eot: np.insert(stream[:-1], ends[1], eot)),  # padding before the end
    ids(lambda stream, ends, eot: np.append(stream, np.full(64, eot)), padding=64),  # a sample more
]


def column(name: str, index: int, value: Any) -> Change:
    """Change a value in the list of documents; a callable gets the column."""

    def change(forger: Forger) -> None:
        columns = forger.documents(1)
        columns[name][index] = value(columns[name]) if callable(value) else value
        forger.set_documents(1, columns)

    return change


def swap_lengths(forger: Forger) -> None:
    columns = forger.documents(1)
    tokens = columns["tokens"]
    first, *others = [i for i, split in enumerate(columns["split"]) if split == "train"]
    second = next(i for i in others if tokens[i] != tokens[first])
    tokens[first], tokens[second] = tokens[second], tokens[first]
    forger.set_documents(1, columns)


def drop_one(forger: Forger) -> None:
    forger.set_documents(1, {name: values[:-1] for name, values in forger.documents(1).items()})


def another_column(forger: Forger) -> None:
    table = pa.table({**forger.documents(1), "more": forger.documents(1)["row"]})
    forger.set_documents(1, table)


def not_parquet(forger: Forger) -> None:
    data = b"PAR1" + b"\xff" * 100 + b"PAR1"
    (forger.root / DOCUMENTS).write_bytes(data)
    changed = {"size": len(data), "xxh128": content_hash(data)}
    forger.change(1, documents=forger.records[1].documents.model_copy(update=changed))


def sources_out_of_order(forger: Forger) -> None:
    sources = [forger.records[part].source for part in (0, 1)]
    forger.change(0, source=sources[1])
    forger.change(1, source=sources[0])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        *((change, RECORD) for change in WRONG_IDS),
        (ids(lambda stream, ends, eot: stream.put(0, 60_000)), SHARD),  # beyond the vocabulary
        (sources_out_of_order, MANIFEST),
        (swap_lengths, RECORD),
        (drop_one, RECORD),
        (column("tokens", 2, 2**32 - 1), RECORD),
        (another_column, DOCUMENTS),
        (not_parquet, DOCUMENTS),
        (column("tokens", 2, 0), DOCUMENTS),
        (column("tokens", 3, None), DOCUMENTS),
        (column("row", 2, lambda rows: rows[1]), DOCUMENTS),
        (column("row", -1, 10**6), DOCUMENTS),
        (column("split", 3, "test"), DOCUMENTS),
    ],
)
def test_what_lies_is_named_and_nothing_else(change, named, copy) -> None:
    assert forged(copy, change) == {named}


def in_train(**amounts: int) -> Change:
    """Add to the counts of part 1's train split."""

    def change(forger: Forger) -> None:
        held = forger.records[1].splits["train"]
        update = {name: getattr(held, name) + amount for name, amount in amounts.items()}
        forger.set_split(1, "train", held.model_copy(update=update))
        forger.change(1, rows=forger.records[1].rows + amounts.get("documents", 0))

    return change


@pytest.mark.parametrize(
    "change",
    [
        in_train(documents=1),
        in_train(tokens=1, padding=-1),
        lambda forger: forger.change(1, splits={"train": forger.records[1].splits["train"]}),
        lambda forger: forger.change(1, part=7),
    ],
)
def test_a_wrong_count_names_the_record(change, copy) -> None:
    forger = Forger(copy)
    change(forger)
    assert RECORD in with_record(copy, to_json(forger.records[1]))


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m["splits"]["holdout"].update(padding=10**30),
        lambda m: m.update(format=0),
        lambda m: m["parts"][0]["record"].update(path="../parts/00000.json"),
        lambda m: m.clear(),
    ],
)
def test_a_wrong_manifest_is_named(edit, copy) -> None:
    """test_manifests.py makes all other changes."""
    Forger(copy).seal(edit)
    assert MANIFEST in files_named(check(copy))


@pytest.mark.parametrize("update", [{"name": "x"}, {"eot_id": 1023}])
def test_everything_names_another_tokenizer(update, copy) -> None:
    def change(forger: Forger) -> None:
        tokenizer = forger.spec.tokenizer.model_copy(update=update)
        spec = forger.spec.model_copy(update={"tokenizer": tokenizer})
        forger.manifest = forger.manifest.model_copy(update={"spec": spec})
        for part in forger.records:
            forger.change(part, spec=spec)

    assert MANIFEST in forged(copy, change)


def test_shards_that_are_not_full(copy) -> None:
    def change(forger: Forger) -> None:
        held, form = forger.records[1].splits["train"], forger.spec.shard_format
        samples = forger.stream(1, "train").reshape(-1, form.sequence_length)
        shards = []
        for number, own in enumerate([samples[:1], *np.array_split(samples[1:], 2)]):
            raw = form.header(len(own)) + own.tobytes()
            shards.append(forger.put_shard(1, "train", number, len(own), raw))
        forger.set_split(1, "train", held.model_copy(update={"shards": tuple(shards)}))

    assert RECORD in forged(copy, change)


def test_an_index_of_other_shards(copy) -> None:
    index = copy / "train/index.json"
    data = index.read_bytes().replace(b'"samples": ', b'"samples":  ')

    def edit(manifest: dict[str, Any]) -> None:
        index.write_bytes(data)
        manifest["splits"]["train"]["index"].update(size=len(data), xxh128=content_hash(data))

    Forger(copy).seal(edit)
    assert files_named(check(copy)) == {MANIFEST, "train/index.json"}


# --- values that no run writes: `verify` names the file and uses little memory


def unchecked(shard: Shard, **update: Any) -> Shard:
    """Return a copy of a shard's entry with values that no shard may have."""
    changed = copy_object(shard)
    for name, value in update.items():
        object.__setattr__(changed, name, value)
    return changed


def hostile_shard(**update: Any) -> Callable[[Forger], None]:
    def change(forger: Forger) -> None:
        held = forger.records[1].splits["train"]
        shard = unchecked(held.shards[0], **update)
        forger.set_split(1, "train", held.model_copy(update={"shards": (shard, *held.shards[1:])}))

    return change


@pytest.mark.parametrize(
    "change",
    [
        hostile_shard(samples=2**62),
        hostile_shard(raw_bytes=-5),
        hostile_shard(zip_name=None),
        hostile_shard(zip_bytes=None),
        hostile_shard(zip_hash="x"),
        hostile_shard(raw_name="00001/shard.00007.mds"),
        lambda forger: forger.change(1, rows=2**62, null_documents=2**62),
        lambda forger: forger.change(1, rows=-1),
    ],
)
def test_hostile_values_of_a_record(change, copy) -> None:
    forger = Forger(copy)
    change(forger)
    named = with_record(copy, to_json(forger.records[1]))
    assert named & {RECORD, forger.shard_path(1, "train")}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"documents/00001.parquet"', '"documents/00000.parquet"'),
        ('"documents/00001.parquet"', '"/etc/passwd"'),
        ("00001/shard.00000.mds.zstd", "../00001/shard.00000.mds.zstd"),
        ("00001/shard.00000.mds.zstd", "00000/shard.00000.mds.zstd"),
        ('"rows": ', '"rows": ' + "9" * 5000),
        ("{", "{" + '"a":[' * 100_000),
    ],
)
def test_hostile_text_of_a_record(old, new, copy) -> None:
    text = (copy / RECORD).read_text()
    assert old in text
    assert RECORD in with_record(copy, text.replace(old, new, 1).encode())


# getrusage does not do: a child's ru_maxrss starts at its parent's.
_MEASURED = """
import re, sys
from pathlib import Path
from streaming_ext.store import LocalStorage
from tasks.core.check.verify import verify

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

before = peak()
for root in sys.argv[1:]:
    report = verify(LocalStorage(Path(root)), workers=1)
    print(*sorted({finding.file for finding in report.findings}))
print((peak() - before) // 1024)
"""


def bomb(copy: Path) -> str:
    """Put 1 GB of zeros in place of a shard, compressed to about 30 KB."""
    forger = Forger(copy)
    packed = zstd.compress(bytes(2**30), 1, 1)
    shard = forger.shard_path(1, "train")
    (copy / shard).write_bytes(packed)
    update = {"zip_bytes": len(packed), "zip_hash": content_hash(packed)}
    hostile_shard(**update)(forger)
    forger.seal()
    return shard


def sparse_shard(copy: Path) -> str:
    """Make a shard as long as its record says: 8 GB."""
    forger = Forger(copy)
    shard = forger.shard_path(1, "train")
    with (copy / shard).open("r+b") as file:
        file.truncate(2**33)
    hostile_shard(zip_bytes=2**33)(forger)
    forger.seal()
    return shard


def many_rows(copy: Path) -> str:
    """List ten million documents in a small file; the record counts only a few."""
    forger, rows = Forger(copy), 5 * 10**6
    kinds = {"row": pa.int64(), "split": pa.string(), "tokens": pa.uint32()}
    with pq.ParquetWriter(
        copy / DOCUMENTS,
        pa.schema(kinds),
        compression="zstd",
        use_dictionary=["split", "tokens"],
        column_encoding={"row": "DELTA_BINARY_PACKED"},
    ) as writer:
        for number in range(2):
            columns = {"row": np.arange(rows) + number * rows, "split": pa.repeat("train", rows)}
            table = pa.table({**columns, "tokens": pa.repeat(pa.scalar(1, pa.uint32()), rows)})
            writer.write_table(table)
    listed = FileRecord.of(DOCUMENTS, (copy / DOCUMENTS).read_bytes())
    forger.change(1, documents=listed)
    forger.seal()
    return DOCUMENTS


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_is_bounded(sound, tmp_path) -> None:
    roots, expected = [], []
    for make in (bomb, sparse_shard, many_rows):
        roots.append(shutil.copytree(sound, tmp_path / make.__name__))
        expected.append(make(roots[-1]))
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *map(str, roots)],
        check=True,
        capture_output=True,
        text=True,
    )
    *named, megabytes = done.stdout.splitlines()
    for file, files in zip(expected, named, strict=True):
        assert file in files.split()
    assert int(megabytes) < 200
