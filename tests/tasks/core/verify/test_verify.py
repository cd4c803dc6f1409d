"""`verify` finds nothing in a sound dataset, and names the file that is wrong in any other."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from copy import copy as copy_object
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstd

from streaming_ext.errors import NotADatasetError, StoppedError
from streaming_ext.format import Shard, content_hash
from streaming_ext.manifest import to_json
from tasks.core.storage import LocalStorage
from tasks.core.synthetic import make_documents
from tasks.core.verify.findings import Report
from tasks.core.verify.verify import verify
from tests.tasks.core.build_dataset import Forger, build_dataset

DOCUMENTS = "documents/00001.parquet"
RECORD = "parts/00001.json"
ALL = 10**6  # a deep sample of every document


def check(root: Path, **options: Any) -> Report:
    return verify(LocalStorage(root), **{"workers": 2, **options})


def files_named(report: Report) -> set[str]:
    return {finding.file for finding in report.findings}


def listing(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): content_hash(path.read_bytes())
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="session")
def texts() -> list[list[str | None]]:
    """Three files: ordinary, with nulls and empty texts, and of one document."""
    made = [text[:600] for text in make_documents(40, seed=5)]
    mixed: list[str | None] = [*made[20:39]]
    mixed[3:3] = [None, ""]
    return [[*made[:20]], [*mixed, None], ["One document.", None]]


@pytest.fixture(scope="session")
def sound(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[str | None]], rank_path: Path
) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    return build_dataset(folder, texts, tokenizer=str(rank_path))


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "dataset"))


# --- nothing wrong


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"compression": "none"},
        {"compression": "gz:1"},
        {"compression": "bz2"},
        {"compression": "zstd:19", "shard_size": 2**20},
        {"holdout_fraction": 0.0},
        {"holdout_fraction": 0.5, "holdout_seed": 7},
        {"sequence_length": 7},
        {"sequence_length": 1, "shard_size": 1024},
        {"sequence_length": 2048, "shard_size": 8192},
    ],
    ids=str,
)
def test_nothing_is_found_in_a_sound_dataset(
    config: dict[str, Any], tmp_path: Path, texts: list[list[str | None]], rank_path: Path
) -> None:
    root = build_dataset(tmp_path, texts, tokenizer=str(rank_path), **config)
    report = check(root, deep=True, deep_sample=ALL)
    assert report.findings == ()
    assert report.sound
    assert report.parts == 3
    assert report.checked.documents == report.checked.retokenized == 40
    assert report.checked.source_rows == sum(map(len, texts))
    assert report.checked.files == len(listing(root))
    assert report.checked.tokens == report.checked.retokenized_tokens


def test_ids_of_32_bits(tmp_path: Path, texts: list[list[str | None]], rank_path: Path) -> None:
    ranks = tmp_path / "large.tiktoken"
    ranks.write_bytes(rank_path.read_bytes() + b"eHh4eHh4eHh4 70000\n")
    root = build_dataset(tmp_path, texts, tokenizer=str(ranks))
    assert Forger(root).spec.dtype == "uint32"
    assert check(root, deep=True).findings == ()


def test_a_huggingface_tokenizer(
    tmp_path: Path, texts: list[list[str | None]], tokenizer_json: str
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer_json)
    root = build_dataset(tmp_path, texts, tokenizer=str(path), pattern=None)
    assert check(root, deep=True).findings == ()


def test_no_documents_at_all(tmp_path: Path, rank_path: Path) -> None:
    root = build_dataset(tmp_path, [[None, ""], []], tokenizer=str(rank_path))
    assert check(root, deep=True).findings == ()


def test_it_changes_nothing_and_counts_every_byte(sound: Path) -> None:
    before = listing(sound)
    seen: list[tuple[int, int]] = []
    report = check(sound, deep=True, on_progress=lambda done, total: seen.append((done, total)))
    assert listing(sound) == before
    assert seen[-1][0] == seen[-1][1] > 0
    assert report.checked.bytes == sum(path.stat().st_size for path in sound.rglob("*.*"))


def test_what_its_listener_raises_ends_it(sound: Path) -> None:
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        raise StoppedError("enough")

    with pytest.raises(StoppedError, match="enough"):
        check(sound, deep=True, on_progress=stop)
    assert len(seen) == 1


def test_runs_are_free(copy: Path) -> None:
    (copy / "runs").mkdir()
    (copy / "runs/anything.txt").write_text("?")
    assert check(copy).findings == ()


# --- damage to one file, as disks and hands do it


def flip(path: Path, position: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[position if position >= 0 else len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


KINDS = [
    "train/00001/shard.00000.mds.zstd",
    "holdout/00000/shard.00000.mds.zstd",
    DOCUMENTS,
    RECORD,
    "train/index.json",
    "holdout/index.json",
    "tokenizer/ranks.tiktoken",
    "tokenizer/tokenizer_spec.json",
]


@pytest.mark.parametrize("damage", [flip, truncate, lengthen, Path.unlink])
@pytest.mark.parametrize("file", KINDS)
def test_damage_names_the_file_and_no_other(
    file: str, damage: Callable[[Path], None], copy: Path
) -> None:
    damage(copy / file)
    assert files_named(check(copy)) == {file}


def test_two_shards_in_each_others_place(copy: Path) -> None:
    first, second = "train/00000/shard.00000.mds.zstd", "train/00001/shard.00000.mds.zstd"
    (copy / first).rename(copy / "aside")
    (copy / second).rename(copy / first)
    (copy / "aside").rename(copy / second)
    assert files_named(check(copy)) == {first, second}


@pytest.mark.parametrize(
    "extra",
    [
        "train/00001/shard.99999.mds.zstd",
        "train/00099/shard.00000.mds.zstd",
        "train/00001/shard.00000.mds",
        "documents/00099.parquet",
        "parts/00099.json",
        "notes.txt",
        ".incoming/0123456789abcdef",
        "tokenizer/tokenizer.json",
    ],
)
def test_a_file_that_nothing_lists(extra: str, copy: Path) -> None:
    (copy / extra).parent.mkdir(exist_ok=True)
    (copy / extra).write_bytes(b"?")
    assert files_named(check(copy)) == {extra}


def test_every_byte_counts(sound: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    for file in sorted(listing(sound)):
        size = (sound / file).stat().st_size
        for position in rng.sample(range(size), min(size, 6)):
            root = Path(shutil.copytree(sound, tmp_path / f"{len(list(tmp_path.iterdir()))}"))
            flip(root / file, position)
            findings = check(root, workers=1).findings
            assert findings, f"{file}, byte {position}"
            assert any(file in str(finding) for finding in findings), f"{file}, byte {position}"
            shutil.rmtree(root)


def test_one_damage_hides_no_other(copy: Path) -> None:
    damaged = {*KINDS, "manifest.json", "documents/00002.parquet"} - {"train/index.json"}
    for file in damaged:
        truncate(copy / file)
    (copy / "manifest.json").write_bytes(b"{}")
    # Without the manifest nothing says which tokenizer files and index there should be.
    expected = damaged - {"holdout/index.json", "tokenizer/ranks.tiktoken"}
    named = files_named(check(copy))
    assert {"manifest.json", "documents/00002.parquet", RECORD} <= named
    assert expected - named <= {KINDS[0], DOCUMENTS, "tokenizer/tokenizer_spec.json"}
    assert check(copy, workers=1).findings == check(copy, workers=4).findings


def test_no_manifest(copy: Path, tmp_path: Path) -> None:
    (copy / "manifest.json").unlink()
    with pytest.raises(NotADatasetError, match=r"unfinished.*3 parts are recorded"):
        check(copy)
    for nothing in (tmp_path / "missing", tmp_path):
        with pytest.raises(NotADatasetError, match="no dataset"):
            check(nothing / "x")


# --- forgeries: every hash is right, what the files say is not


def forged(copy: Path, change: Callable[[Forger], None], **options: Any) -> set[str]:
    forger = Forger(copy)
    change(forger)
    forger.seal()
    return files_named(check(copy, **options))


def change_ids(index: Callable[[Forger, Any], int], value: int | None = None) -> Any:
    """Replace one id of part 1's train stream; None means end of text."""

    def change(forger: Forger) -> None:
        ids = forger.stream(1, "train")
        eot_id = forger.spec.tokenizer.eot_id
        ids[index(forger, np.flatnonzero(ids == eot_id))] = eot_id if value is None else value
        forger.set_stream(1, "train", ids)

    return change


def shard_of(copy: Path, token: int) -> str:
    forger = Forger(copy)
    per_shard = forger.spec.shard_format.samples_per_shard * forger.spec.sequence_length
    return forger.shard_path(1, "train", token // per_shard)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (lambda f, ends: int(ends[2]), 5),  # an end of text is gone
        (lambda f, ends: int(ends[2]) - 3, None),  # one too many
        (lambda f, ends: int(ends[2]) - 1, None),  # one too many, and an empty document
        (lambda f, ends: int(ends[2]) - 2, 60_000),  # beyond the vocabulary
        (lambda f, ends: 0, None),  # the stream begins with one
        (lambda f, ends: int(ends[-1]), 5),  # the last id
    ],
)
def test_a_wrong_id_names_its_shard(
    where: Callable[[Forger, Any], int], value: int | None, copy: Path
) -> None:
    forger = Forger(copy)
    ids = forger.stream(1, "train")
    shard = shard_of(copy, where(forger, np.flatnonzero(ids == forger.spec.tokenizer.eot_id)))
    assert shard in forged(copy, change_ids(where, value))


def test_padding_of_another_sample(copy: Path) -> None:
    def change(forger: Forger) -> None:
        held, length = forger.records[1].splits["train"], forger.spec.sequence_length
        more = np.full(length, forger.spec.tokenizer.eot_id)
        ids = np.concatenate((forger.stream(1, "train"), more))
        forger.set_stream(1, "train", ids, padding=held.padding + length)

    last = len(Forger(copy).records[1].splits["train"].shards) - 1
    assert {RECORD, Forger(copy).shard_path(1, "train", last)} <= forged(copy, change)


def test_padding_before_the_end(copy: Path) -> None:
    def change(forger: Forger) -> None:
        ids, held = forger.stream(1, "train"), forger.records[1].splits["train"]
        assert held.padding > 1
        end = int(np.flatnonzero(ids == forger.spec.tokenizer.eot_id)[1])
        moved = np.insert(ids[:-1], end, forger.spec.tokenizer.eot_id)
        forger.set_stream(1, "train", moved)

    assert any(file.startswith("train/00001/") for file in forged(copy, change))


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
        edit_column("row", 0, -1),
        edit_column("row", -1, 10**6),
        edit_column("row", 3, -(2**63)),
        edit_column("split", 3, "test"),
        edit_column("split", 3, None),
        edit_column("tokens", 3, None),
    ],
)
def test_a_wrong_provenance_is_named(change: Callable[[Forger], None], copy: Path) -> None:
    assert forged(copy, change) == {DOCUMENTS}


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
    _fix_hash_in_manifest(copy, forger)
    assert RECORD in files_named(check(copy))


def _fix_hash_in_manifest(copy: Path, forger: Forger) -> None:
    old, data = forger.manifest.parts[1].record, (copy / RECORD).read_bytes()
    text = (copy / "manifest.json").read_text()
    text = text.replace(old.xxh128, content_hash(data))
    before, found, after = text.partition('"path": "parts/00001.json",\n    "size": ')
    assert found
    rest = after.partition(",")[2]
    (copy / "manifest.json").write_text(f"{before}{found}{len(data)},{rest}")


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m["splits"]["train"].update(documents=m["splits"]["train"]["documents"] + 1),
        lambda m: m["splits"]["holdout"].update(padding=10**30),
        lambda m: m["splits"]["train"].update(samples=0),
        lambda m: m["splits"].pop("holdout"),
        lambda m: m["splits"]["train"]["index"].update(size=3),
        lambda m: m["splits"]["train"]["index"].update(path="holdout/index.json"),
        lambda m: m["parts"].reverse(),
        lambda m: m["parts"][0].update(text_bytes=1),
        lambda m: m["parts"][0]["source"].update(url="/elsewhere"),
        lambda m: m["parts"][0]["record"].update(path="parts/00001.json"),
        lambda m: m["spec"].update(holdout_seed=99),
        lambda m: m["spec"].update(sequence_length=2**50),
        lambda m: m["spec"].update(shard_size=2**40),
        lambda m: m["spec"].update(shard_size=10),
        lambda m: m["spec"].update(compression="lzma"),
        lambda m: m["spec"]["tokenizer"].update(vocab_size=2**60),
        lambda m: m["spec"]["tokenizer"].update(eot_id=3),
        lambda m: m["spec"]["tokenizer"].update(fingerprint="0"),
        lambda m: m["spec"]["tokenizer"].update(kind="huggingface"),
        lambda m: m.update(tokenizer_files=[]),
        lambda m: m.update(format=2),
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


# --- hostile values


def unchecked(shard: Shard, **update: Any) -> Shard:
    """A shard that says what no shard may say."""
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
        hostile_shard(samples=0),
        hostile_shard(raw_bytes=2**62),
        hostile_shard(raw_bytes=-5),
        hostile_shard(zip_name=None),
        hostile_shard(zip_bytes=-5),
        hostile_shard(zip_bytes=None),
        hostile_shard(zip_hash="x"),
        hostile_shard(raw_hash="x"),
        hostile_shard(raw_name="00001/shard.00007.mds"),
        lambda forger: forger.change(1, rows=2**62, null_documents=2**62),
        lambda forger: forger.change(1, rows=-1),
    ],
)
def test_hostile_values_of_a_record(change: Callable[[Forger], None], copy: Path) -> None:
    forger = Forger(copy)
    change(forger)
    (copy / RECORD).write_bytes(to_json(forger.records[1]))
    _fix_hash_in_manifest(copy, forger)
    named = files_named(check(copy))
    assert RECORD in named or Forger(copy).shard_path(1, "train") in named


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"documents/00001.parquet"', '"../documents/00001.parquet"'),
        ('"documents/00001.parquet"', '"documents/00000.parquet"'),
        ('"documents/00001.parquet"', '"/etc/passwd"'),
        ("00001/shard.00000.mds.zstd", "../00001/shard.00000.mds.zstd"),
        ("00001/shard.00000.mds.zstd", "00000/shard.00000.mds.zstd"),
        ('"rows": ', '"rows": ' + "9" * 5000),
        ("{", "{" + '"a":[' * 100_000),
    ],
)
def test_hostile_text_of_a_record(old: str, new: str, copy: Path) -> None:
    forger, text = Forger(copy), (copy / RECORD).read_text()
    assert old in text
    (copy / RECORD).write_text(text.replace(old, new, 1))
    _fix_hash_in_manifest(copy, forger)
    assert RECORD in files_named(check(copy))


def test_a_shard_of_fewer_samples_than_said(copy: Path) -> None:
    def change(forger: Forger) -> None:
        held, form = forger.records[1].splits["train"], forger.spec.shard_format
        samples = held.shards[0].samples
        raw = form.header(samples - 1) + bytes((samples - 1) * form.sample_bytes)
        shard = forger.put_shard(1, "train", 0, samples, raw)
        shard = replace(shard, raw_bytes=form.raw_size(samples))
        forger.set_split(1, "train", held.model_copy(update={"shards": (shard, *held.shards[1:])}))

    assert Forger(copy).shard_path(1, "train") in forged(copy, change)


# Not getrusage: a child's ru_maxrss begins at its parent's.
_MEASURED = """
import re, sys
from pathlib import Path
from tasks.core.storage import LocalStorage
from tasks.core.verify.verify import verify

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

before = peak()
report = verify(LocalStorage(Path(sys.argv[1])), workers=1)
print(*sorted({finding.file for finding in report.findings}))
print((peak() - before) // 1024)
"""


def bomb(copy: Path) -> str:
    """2 GB of zeros where a shard should be, in some 60 KB."""
    forger = Forger(copy)
    packed = zstd.compress(bytes(2**31 - 1), 1, 1)
    shard = forger.shard_path(1, "train")
    (copy / shard).write_bytes(packed)
    update = {"zip_bytes": len(packed), "zip_hash": content_hash(packed)}
    hostile_shard(**update)(forger)
    forger.seal()
    return shard


def sparse_shard(copy: Path) -> str:
    """A shard that is as long as its record says: 8 GB."""
    forger = Forger(copy)
    shard = forger.shard_path(1, "train")
    with (copy / shard).open("r+b") as file:
        file.truncate(2**33)
    hostile_shard(zip_bytes=2**33)(forger)
    forger.seal()
    return shard


def many_rows(copy: Path) -> str:
    """Twenty million documents in a small file; the record knows of a few."""
    forger = Forger(copy)
    count = 2 * 10**7
    with pq.ParquetWriter(
        copy / DOCUMENTS,
        pa.schema([("row", pa.int64()), ("split", pa.string()), ("tokens", pa.uint32())]),
        compression="zstd",
        use_dictionary=["split", "tokens"],
        column_encoding={"row": "DELTA_BINARY_PACKED"},
    ) as writer:
        for first in range(0, count, 5 * 10**6):
            rows = np.arange(first, first + 5 * 10**6)
            columns = [rows, pa.DictionaryArray.from_arrays(np.zeros(5 * 10**6, np.int8), ["train"])
                       .cast(pa.string()), np.ones(5 * 10**6, np.uint32)]  # fmt: skip
            writer.write_table(pa.table(columns, schema=writer.schema))
    file = forger.records[1].documents
    data = (copy / DOCUMENTS).read_bytes()
    changed = file.model_copy(update={"size": len(data), "xxh128": content_hash(data)})
    forger.change(1, documents=changed)
    forger.seal()
    return DOCUMENTS


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("make", [bomb, sparse_shard, many_rows])
def test_memory_is_bounded(make: Callable[[Path], str], copy: Path) -> None:
    named, megabytes = _measure(copy, make)
    assert megabytes < 200, named


def _measure(copy: Path, make: Callable[[Path], str]) -> tuple[str, int]:
    expected = make(copy)
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(copy)], check=True, capture_output=True, text=True
    )
    named, megabytes = done.stdout.splitlines()
    assert expected in named.split()
    return named, int(megabytes)


# --- against the sources


def test_deep_finds_other_ids_of_a_text(copy: Path) -> None:
    def change(forger: Forger) -> None:
        ids = forger.stream(1, "train")
        ids[3] = 65 if ids[3] != 65 else 66
        forger.set_stream(1, "train", ids)

    assert forged(copy, change) == set()
    report = check(copy, deep=True, deep_sample=ALL)
    assert files_named(report) == {Forger(copy).shard_path(1, "train")}


def move_across(forger: Forger) -> None:
    """A document moves from train to holdout, in every file."""
    record, eot_id = forger.records[1], forger.spec.tokenizer.eot_id
    length, columns = forger.spec.sequence_length, forger.documents(1)
    streams = {}
    for split, held in record.splits.items():
        streams[split] = forger.stream(1, split)[: held.tokens]
    first = columns["split"].index("train")
    moved = streams["train"][: columns["tokens"][first] + 1]
    held_before = columns["split"][:first].count("holdout")
    ends = np.flatnonzero(streams["holdout"] == eot_id)
    at = int(ends[held_before - 1]) + 1 if held_before else 0
    streams["train"] = streams["train"][len(moved) :]
    streams["holdout"] = np.insert(streams["holdout"], at, moved)
    columns["split"][first] = "holdout"
    forger.set_documents(1, columns)
    for split, by in (("train", -1), ("holdout", 1)):
        ids = streams[split]
        padding = -len(ids) % length
        whole = np.concatenate((ids, np.full(padding, eot_id, ids.dtype)))
        documents = record.splits[split].documents + by
        forger.set_stream(1, split, whole, documents=documents, tokens=len(ids), padding=padding)


def test_deep_finds_a_document_of_the_other_split(copy: Path) -> None:
    assert forged(copy, move_across) == set()
    report = check(copy, deep=True)
    assert files_named(report) == {DOCUMENTS}
    assert "holdout" in report.findings[0].problem


def test_deep_finds_a_document_that_was_left_out(copy: Path) -> None:
    def change(forger: Forger) -> None:
        held, columns = forger.records[1].splits["train"], forger.documents(1)
        first, length = columns["split"].index("train"), forger.spec.sequence_length
        ids = forger.stream(1, "train")[columns["tokens"][first] + 1 : held.tokens]
        padding = -len(ids) % length
        whole = np.concatenate((ids, np.full(padding, forger.spec.tokenizer.eot_id)))
        for values in columns.values():
            del values[first]
        forger.set_documents(1, columns)
        counts = {"documents": held.documents - 1, "tokens": len(ids), "padding": padding}
        forger.set_stream(1, "train", whole, **counts)
        forger.change(1, empty_documents=forger.records[1].empty_documents + 1)

    assert forged(copy, change) == set()
    report = check(copy, deep=True)
    assert files_named(report) == {DOCUMENTS}
    assert "not listed" in report.findings[0].problem


@pytest.mark.parametrize(
    "update",
    [
        {"text_bytes": 1},
        {"null_documents": 1, "empty_documents": 2},
    ],
)
def test_deep_counts_the_rows_of_the_source(update: dict[str, int], copy: Path) -> None:
    assert forged(copy, lambda forger: forger.change(1, **update)) == set()
    assert files_named(check(copy, deep=True)) == {RECORD}


@pytest.mark.parametrize("damage", [flip, lengthen, Path.unlink])
def test_deep_names_a_source_that_changed(
    damage: Callable[[Path], None], tmp_path: Path, texts: list[list[str | None]], rank_path: Path
) -> None:
    root = build_dataset(tmp_path, texts, tokenizer=str(rank_path))
    source = tmp_path / "sources/001.parquet"
    damage(source)
    assert check(root).findings == ()
    report = check(root, deep=True)
    assert files_named(report) == {str(source)}
    assert report.checked.sources == 2


def test_deep_takes_as_many_as_asked_from_all_parts(sound: Path) -> None:
    for sample, sources in ((1, 1), (2, 2), (3, 3), (9, 3)):
        report = check(sound, deep=True, deep_sample=sample)
        assert report.findings == ()
        assert report.checked.sources == sources
        assert min(sample, 7) <= report.checked.retokenized <= sample  # part 2 has one
