"""The rules for every format: documents, repair, refusals, a full disk, checks."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streaming_ext.base.errors import ConfigMismatchError, CorruptDatasetError, ScratchError
from streaming_ext.format.layout import EXPORT
from streaming_ext.format.schema import FileRecord, content_hash, to_json
from streaming_ext.store import LocalStorage
from tasks.core.derive.export_format import (
    ExportFiles,
    describe_export,
    read_export,
    read_export_records,
)
from tasks.core.derive.formats import FORMATS
from tests.full_disk import full_disk
from tests.streaming_ext.build import build
from tests.tasks.core.check.damage import files_named, flip, lengthen
from tests.tasks.core.exports import readers
from tests.tasks.core.exports.exporting import (
    PARTS,
    checked,
    content,
    documents_of,
    exported,
    make_dataset,
    open_files,
    planned,
)
from tests.tasks.core.exports.readers import READERS, read
from tests.tasks.core.running import do_parts

NAMES = sorted(READERS)
READ_ELSEWHERE = {"modded-nanogpt"}
KINDS = ["litdata", "megatron", "parquet"]  # an index, shared files, neither


def test_every_format_has_a_reader() -> None:
    assert {*NAMES, *READ_ELSEWHERE} == set(FORMATS)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("contract")).root


@pytest.fixture(params=NAMES)
def name(request) -> str:
    return str(request.param)


LARGE = list(range(98)) * 30
Parts = list[list[tuple[str, list[int]]]]
LARGE_DOCUMENT: Parts = [
    [],
    [("train", [1]), ("train", LARGE), ("train", [2])],
    [],
    [("holdout", LARGE)],
]
CASES: dict[str, tuple[Parts, dict[str, Any]]] = {
    "some documents": (PARTS, {}),
    "shards of one sample": (PARTS, {"compression": "none", "shard_samples": 1}),
    "ids of 32 bits": (PARTS, {"vocab_size": 70_000}),
    "no documents": ([[], []], {}),
    "no train": ([[("holdout", [1, 2])], []], {}),
    "no holdout": ([[("train", [1, 2])], []], {}),
    "a large document, parts without any": (LARGE_DOCUMENT, {}),
}
# Formats whose files have a bound, which the large document exceeds.
BOUNDED: dict[str, dict[str, Any]] = {
    "megatron": {},
    "llmc": {},
    "litdata": {},
    "webdataset": {"rows": "documents"},
}


@pytest.mark.parametrize("case", CASES)
def test_it_holds_the_documents_of_the_dataset(name, case, tmp_path, monkeypatch) -> None:
    """They may lie in shards and memory in any way; the export is sound and published."""
    if (name, case) == ("nanogpt", "ids of 32 bits"):
        pytest.skip("its ids have 16 bits")
    if case == "shards of one sample":
        monkeypatch.setattr("tasks.core.reading.documents._BLOCK", 2)
    parts, settings = CASES[case]
    dataset = build(tmp_path / "dataset", parts, **settings).root
    root = exported(dataset, tmp_path / "out", name)
    report = checked(root)
    assert report.findings == ()
    assert not report.not_compared
    assert report.documents == sum(map(len, parts))
    assert planned(dataset, root, name).published
    documents = documents_of(parts)
    described = describe_export(LocalStorage(root)).manifest.splits
    assert set(described) == {split for split, held in documents.items() if held}
    if all(documents.values()):
        monkeypatch.setattr(readers, "PARTS", parts)
        assert read(name, root) == documents


@pytest.mark.parametrize("name", BOUNDED)
def test_an_export_in_files_of_few_bytes_is_sound(name, tmp_path) -> None:
    dataset = build(tmp_path / "dataset", LARGE_DOCUMENT).root
    root = exported(dataset, tmp_path / "out", name, max_file_size=1200, **BOUNDED[name])
    assert checked(root).findings == ()


@pytest.mark.parametrize("name", KINDS)
def test_a_part_that_lost_its_file_is_exported_again(name, dataset, tmp_path) -> None:
    output = tmp_path / "out"
    plan = planned(dataset, output, name)
    do_parts(plan, LocalStorage(output), [0, 1])
    record = read_export_records(LocalStorage(output))[0]
    lost = (plan.kept if plan.form.shared() else output) / record.spans[0].path
    lost.unlink()
    plan = planned(dataset, output, name)
    assert 0 in plan.todo
    # A part counts as missing until it is made again, although the last part's bytes give a shared
    # file its full length.
    do_parts(plan, LocalStorage(output), plan.todo[-1:])
    assert planned(dataset, output, name).todo == plan.todo[:-1]


@pytest.mark.parametrize("name", KINDS)
def test_a_published_export_that_lost_a_file_is_repaired(name, dataset, tmp_path) -> None:
    output = exported(dataset, tmp_path / "out", name)
    expected = content(output)
    lost = next(path for path in expected if path.split("/")[0] not in {"export", EXPORT})
    (output / lost).unlink()
    assert not planned(dataset, output, name).published
    assert content(exported(dataset, output, name)) == expected


def test_another_configuration_is_refused(dataset, tmp_path) -> None:
    other = make_dataset(tmp_path / "other", vocab_size=101).root
    started = tmp_path / "started"
    do_parts(planned(dataset, started, "litdata"), LocalStorage(started), [0])
    published = exported(dataset, tmp_path / "out", "litdata")
    for held in (started, published):
        with pytest.raises(ConfigMismatchError, match="export: the output has 'litdata'"):
            planned(dataset, held, "nanogpt")
        with pytest.raises(ConfigMismatchError, match="dataset_manifest.xxh128"):
            planned(other, held, "litdata")


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_dataset_is_not_exported(name, tmp_path) -> None:
    dataset = make_dataset(tmp_path).root
    shard = next((dataset / "train/00001").iterdir())
    data = shard.read_bytes()
    said = rf"{shard.name}: (its content hash|\d+ bytes.*, expected {len(data)})"
    for damaged in (data[:-1] + b"x", data[:-1], data + b"more"):
        shard.write_bytes(damaged)
        with pytest.raises(CorruptDatasetError, match=said):
            exported(dataset, tmp_path / "out", name)
    assert not (tmp_path / "out" / EXPORT).exists()
    assert open_files(tmp_path) == []  # a worker goes on, and other parts need descriptors


@pytest.mark.parametrize("name", ["litdata", "megatron", "olmo", "parquet"])
def test_a_disk_that_takes_no_more(name, tmp_path) -> None:
    parts = [[("train", LARGE * 3)], [("train", LARGE * 3)]]
    dataset = build(tmp_path / "dataset", parts).root
    expected = content(exported(dataset, tmp_path / "expected", name))
    with full_disk(8_000), pytest.raises(ScratchError, match=r"Cannot write to scratch .*"):
        exported(dataset, tmp_path / "out", name)
    assert not (tmp_path / "out" / EXPORT).exists()
    assert open_files(tmp_path) == []
    assert content(exported(dataset, tmp_path / "out", name)) == expected


def test_spans_of_a_shared_file_stand_where_they_belong(tmp_path) -> None:
    out = ExportFiles(tmp_path / "scratch", tmp_path / "shared")
    data = os.urandom(20 * 2**20 + 5)
    sink = out.span("train/all.bin", 3)
    for first in range(0, len(data), 3_000_001):
        sink.write(data[first : first + 3_000_001])
    sink.close()
    head = out.span("train/all.bin", 0)
    head.write(b"abc")
    head.close()
    assert (tmp_path / "shared/train/all.bin").read_bytes() == b"abc" + data
    assert [(span.start, span.size) for span in out.spans] == [(3, len(data)), (0, 3)]


class TestVerify:
    def test_every_file_is_looked_at(self, name, dataset, tmp_path) -> None:
        output = exported(dataset, tmp_path / "out", name)
        files = describe_export(LocalStorage(output)).files
        path, size = next(iter(files.items()))
        data = (output / path).read_bytes()
        for damage in (flip, lengthen, partial(os.truncate, length=size - 1), Path.unlink):
            damage(output / path)
            assert files_named(checked(output)) == {path}
            (output / path).write_bytes(data)
        (output / "train").mkdir(exist_ok=True)
        (output / "train/more").write_text("x")
        (finding,) = checked(output).findings
        assert str(finding) == "train/more: 1 bytes that nothing lists"
        (output / "train/more").unlink()
        for path, size in files.items():
            assert (output / path).stat().st_size == size
            flip(output / path)
        assert files_named(checked(output)) == {*files}

    def test_the_dataset_is_gone_unreadable_or_another_one(self, tmp_path) -> None:
        dataset = make_dataset(tmp_path).root
        output = exported(dataset, tmp_path / "out", "nanogpt")
        dataset.rename(tmp_path / "moved")
        report = checked(output)
        assert (report.sound, report.not_compared) == (True, f"{dataset} is not there")
        make_dataset(tmp_path, vocab_size=101)
        (finding,) = checked(output).findings
        assert "no generation has a hash" in finding.problem
        (dataset / "manifest.json").unlink()
        (dataset / "manifest.json").mkdir()
        (finding,) = checked(output).findings
        assert "cannot be compared with" in finding.problem

    def test_bytes_of_another_library_are_not_compared(
        self, dataset, tmp_path, monkeypatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(FORMATS["olmo"], "made_with", {"pyarrow": "1.0"})
            output = exported(dataset, tmp_path / "out", "olmo")
        report = checked(output)
        assert report.sound
        assert report.not_compared.startswith("made with pyarrow 1.0, here is pyarrow ")

    def test_a_lost_record_is_the_only_finding_of_parts(self, dataset, tmp_path) -> None:
        output = exported(dataset, tmp_path / "out", "nanogpt")
        (output / "export/00001.json").unlink()
        assert files_named(checked(output)) == {"export/00001.json"}

    def test_other_documents_with_right_hashes_are_found(self, dataset, tmp_path) -> None:
        """Hashes alone would accept what a faulty writer wrote."""
        output = exported(dataset, tmp_path / "out", "nanogpt")
        flip(output / "train.bin", 0)
        seal(LocalStorage(output))
        found = checked(output).findings
        assert [str(finding) for finding in found] == [
            "train.bin: does not hold the documents of the dataset, id by id"
        ]


def seal(output: LocalStorage) -> None:
    """Make the records and the manifest of an export agree with its files."""
    output.create()
    manifest, records = read_export(output), []
    for part, record in read_export_records(output).items():
        spans = []
        for span in record.spans:
            data = output.read_range(span.path, span.start, span.start + span.size)
            spans.append(span._replace(xxh128=content_hash(data)))
        sealed = to_json(record.model_copy(update={"spans": tuple(spans)}))
        path = manifest.records[part].path
        output.put(path, sealed)
        records.append(FileRecord.of(path, sealed))
    output.put(EXPORT, to_json(manifest.model_copy(update={"records": tuple(records)})))
