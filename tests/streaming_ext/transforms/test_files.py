"""Files as a source: turns, spans, whole records, faults."""

import gzip
import json
import shutil
from itertools import islice

import pytest

from streaming_ext.base.errors import ConfigMismatchError, SourceError, UsageError
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.transforms import CheckpointableDataset
from streaming_ext.transforms import files as of_files
from tests.streaming_ext.transforms.chains import require_resumes, subset_of
from tests.streaming_ext.transforms.conftest import write_lines

Chain = CheckpointableDataset
pytestmark = pytest.mark.usefixtures("small_spans")


def ids(dataset: Chain) -> list[int]:
    return [sample["id"] for sample in dataset]


def in_turns(files: list[list[int]], active: int) -> list[int]:
    """Take one sample of each active file in turn; the next file replaces one that ended."""
    waiting = [list(file) for file in files]
    open_, found = waiting[:active], []
    waiting = waiting[active:]
    while open_:
        first = open_.pop(0)
        if first:
            found.append(first.pop(0))
            open_.append(first)
        elif waiting:
            open_.append(waiting.pop(0))
    return found


@pytest.mark.parametrize("active", [2, 10])
def test_files_take_turns(folder, records, active) -> None:
    files = [[one["id"] for one in documents] for documents in records]
    dataset = Chain.from_files(f"{folder}/{{0..2}}.jsonl", n_active_shards=active)
    assert ids(dataset) == in_turns(files, active)
    assert next(iter(dataset)) == records[0][0]


def test_records_resume_at_every_position(folder) -> None:
    found = require_resumes(
        lambda: Chain.from_files(
            str(folder), repeat=True, shuffle_shards=True, n_active_shards=2
        ).take(60),
        some=60,
    )
    assert len({one["id"] for one in found[:40]}) == 40  # an epoch, and some of the next
    assert [one["id"] for one in found[:20]] != [one["id"] for one in found[40:]]


def test_text_flows_as_arrays_and_resumes(folder, records, vocabulary) -> None:
    def make() -> Chain:
        return (
            Chain.from_files(str(folder), n_active_shards=2, shuffle_shards=True)
            .tokenize(str(vocabulary), pattern="gpt2")
            .ensure_bos_eos(str(vocabulary), pattern="gpt2")
            .concat_chunk(32)
            .shuffle(20)
            .batch(4)
        )

    batches = require_resumes(make, some=10)
    tokenizer = load_tokenizer(str(vocabulary), pattern="gpt2")
    order = ids(Chain.from_files(str(folder), n_active_shards=2, shuffle_shards=True))
    texts = {one["id"]: one["text"] for documents in records for one in documents}
    stream = [i for n in order for i in [*tokenizer.encode(texts[n]), tokenizer.eot_id]]
    rows = [stream[at : at + 32] for at in range(0, len(stream) - 31, 32)]
    assert sorted(row for batch in batches for row in batch["input_ids"]) == sorted(rows)


def test_each_worker_has_its_own_spans(folder) -> None:
    dataset = Chain.from_files(str(folder))
    of_each = [[one["id"] for one in subset_of(dataset, n, 3)] for n in range(3)]
    assert sorted(one for own in of_each for one in own) == list(range(40))
    assert min(map(len, of_each)) > 5


def test_packed_files_of_other_formats(folder, records, tmp_path) -> None:
    import cbor2
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((folder / "0.jsonl").read_bytes()))
    (tmp_path / "b.cbor").write_bytes(b"".join(map(cbor2.dumps, records[1])))
    pq.write_table(pa.Table.from_pylist(records[2]), tmp_path / "c.parquet")
    dataset = Chain.from_files(str(tmp_path), n_active_shards=1)
    expected = [one for documents in records for one in documents]
    assert list(map(repr, dataset)) == list(map(repr, expected))  # whole numbers stay whole
    require_resumes(lambda: dataset.take(25).batch(10, collate_fn=lambda rows: {"rows": rows}))


def test_a_damaged_line_is_named(folder, tmp_path) -> None:
    lines = (folder / "0.jsonl").read_text().splitlines()
    (tmp_path / "0.jsonl").write_text("\n".join([*lines[:2], '{"id": 3,', "[1]", *lines[2:4]]))
    with pytest.raises(
        SourceError, match=r"0\.jsonl: line 3, byte [0-9]+: no valid JSON.*-document skip"
    ):
        list(Chain.from_files(str(tmp_path)))
    left = Chain.from_files(str(tmp_path), on_bad_document="skip")
    assert list(left) == [json.loads(line) for line in lines[:4]]


def test_a_state_of_files_read_otherwise_is_refused(folder) -> None:
    state = Chain.from_files(str(folder)).iter().state_dict()
    for settings in ({"format": "text"}, {"on_bad_document": "skip"}, {"n_active_shards": 3}):
        with pytest.raises(ConfigMismatchError, match="this one is"):
            Chain.from_files(str(folder), **settings).iter(state)


def test_a_changed_file_is_refused_and_a_copy_is_not(folder, tmp_path) -> None:
    state = Chain.from_files(str(folder)).iter().state_dict()
    copy, changed = str(tmp_path / "files"), tmp_path / "files" / "1.jsonl"
    shutil.copytree(folder, copy, copy_function=shutil.copyfile)
    dataset = Chain.from_files(copy)
    dataset.iter(state).close()
    changed.write_text(changed.read_text().replace("}\n", " \n")[:-2] + "}\n")
    assert changed.stat().st_size == (folder / "1.jsonl").stat().st_size
    with pytest.raises(ConfigMismatchError, match="files, which a hash of their names"):
        Chain.from_files(copy).iter(state)
    with changed.open("a") as file:
        file.write('{"id": 41, "text": "new"}\n')
    with pytest.raises(SourceError, match=r"1\.jsonl: changed since it was listed"):
        list(dataset)


def test_nothing_to_repeat_is_an_error(tmp_path) -> None:
    (tmp_path / "0.jsonl").write_text("\n\n")
    with pytest.raises(UsageError, match="cannot repeat"):
        next(iter(Chain.from_files(str(tmp_path), repeat=True)))


@pytest.mark.parametrize("count", [49, 98])
def test_an_epoch_may_end_within_a_read(tmp_path, count, monkeypatch) -> None:
    """At these counts, a file's samples are not quite as many bytes as a read takes."""
    monkeypatch.setattr(of_files, "SPAN_BYTES", 2**22)
    write_lines(tmp_path / "0.jsonl", [{"id": n} for n in range(count)])
    dataset = Chain.from_files(str(tmp_path), repeat=True).batch(128)
    assert next(iter(dataset))["id"].tolist() == [n % count for n in range(128)]


def test_a_worker_without_a_span_ends(tmp_path) -> None:
    write_lines(tmp_path / "0.jsonl", [])
    write_lines(tmp_path / "1.jsonl", [{"id": 1}])
    dataset = Chain.from_files(str(tmp_path), repeat=True)
    of_each = [[one["id"] for one in islice(subset_of(dataset, n, 4), 3)] for n in range(4)]
    assert sorted(of_each) == [[], [], [], [1, 1, 1]]
    (tmp_path / "1.jsonl").write_text("\n")
    for number in range(4):
        with pytest.raises(UsageError, match="cannot repeat"):
            next(subset_of(Chain.from_files(str(tmp_path), repeat=True), number, 4))
