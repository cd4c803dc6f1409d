"""The contract of every source format: the same documents from any kind of file."""

import contextlib
import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbor2
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.filters import Filters
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.files import CODECS
from streaming_ext.text.formats import FORMATS, format_of
from streaming_ext.text.readers import cbor, json_files
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from tests.streaming_ext.text import reading
from tests.streaming_ext.text.packed import pack, write_arrow
from tests.streaming_ext.text.reading import POINTER, SKIP, look, looked_at
from tests.streaming_ext.text.reading import tar as tar_file

TEXT = ReadOptions()
Row = dict[str, Any]
DOCUMENTS = [
    "one",
    None,
    "",
    "zwei\n\t\"'\\",
    None,
    "\ufeff\U0001f600\x00\u2028",
    "one",
    "d" * 3000,
]


@dataclass(frozen=True)
class Kind:
    """A way to write rows, each with the same fields."""

    suffix: str
    write_rows: Callable[[Path, Sequence[Row]], object]
    says: str  # the error of a file cut in the middle

    def write(self, path: Path, documents: Sequence[str | None]) -> None:
        self.write_rows(path, [{"id": row, "text": text} for row, text in enumerate(documents)])


def json_lines(rows: Sequence[Row]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def json_array(rows: Sequence[Row]) -> bytes:
    return json.dumps(rows, indent=1).encode()


def cbor_sequence(rows: Sequence[Row]) -> bytes:
    return b"".join(map(cbor2.dumps, rows))


def tar(rows: Sequence[Row]) -> bytes:
    return tar_file(
        (f"some/{number:05}.{ending}", data)
        for number, row in enumerate(rows)
        for ending, data in (("cls", b"7"), ("json", json.dumps(row).encode()))
    )


def bytes_as(
    made: Callable[[Sequence[Row]], bytes], codec: str = "none"
) -> Callable[[Path, Sequence[Row]], object]:
    return lambda path, rows: pack(made(rows), path, codec)


def table_of(rows: Sequence[Row], kind: pa.DataType) -> pa.Table:
    if not any("meta" in row for row in rows):
        fields = [("id", pa.int64()), ("text", kind)]
    else:
        fields = [("title", kind), ("meta", pa.struct([("n", pa.int64()), ("text", kind)]))]
    return pa.Table.from_pylist(list(rows), pa.schema(fields))


def parquet(path: Path, rows: Sequence[Row]) -> None:
    pq.write_table(table_of(rows, pa.string()), path, row_group_size=7)


def arrow_stream(path: Path, rows: Sequence[Row]) -> None:
    write_arrow(path, table_of(rows, pa.string()), stream=True)


def arrow_file(path: Path, rows: Sequence[Row]) -> None:
    write_arrow(path, table_of(rows, pa.large_string()), compression="zstd")


AVRO = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": ["null", "long"], "default": None},
        {"name": "text", "type": ["null", "string"], "default": None},
        {"name": "title", "type": ["null", "string"], "default": None},
        {
            "name": "meta",
            "default": None,
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Meta",
                    "fields": [
                        {"name": "n", "type": ["null", "long"]},
                        {"name": "text", "type": ["null", "string"]},
                    ],
                },
            ],
        },
    ],
}


def avro(codec: str) -> Callable[[Sequence[Row]], bytes]:
    def made(rows: Sequence[Row]) -> bytes:
        whole = io.BytesIO()
        fastavro.writer(whole, AVRO, rows, codec=codec, sync_interval=100)
        return whole.getvalue()

    return made


def cells(delimiter: str, newline: str = "\n") -> Callable[[Sequence[Row]], bytes]:
    """Write rows with a column per field, also per field of `meta`; None is an empty cell."""

    def cell(value: object) -> str:
        return "" if value is None else '"{}"'.format(str(value).replace('"', '""'))

    def made(rows: Sequence[Row]) -> bytes:
        flat = [
            {k: v for k, v in row.items() if k != "meta"}
            | ({f"meta.{k}": v for k, v in (row["meta"] or {}).items()} if "meta" in row else {})
            for row in rows
        ]
        names = list(dict.fromkeys(name for row in flat for name in row)) or ["id", "text"]
        lines = [delimiter.join(names)]
        lines += [delimiter.join(cell(row.get(name)) for name in names) for row in flat]
        return "".join(line + newline for line in lines).encode()

    return made


KINDS = [
    Kind(".parquet", parquet, "not a whole Parquet file"),
    Kind(".jsonl", bytes_as(json_lines), "line 8, byte [0-9]+: no valid JSON"),
    Kind(".ndjson", bytes_as(json_lines), "line 8, byte [0-9]+: no valid JSON"),
    *(
        Kind(f".jsonl{suffix}", bytes_as(json_lines, codec), "damaged or cut short")
        for suffix, codec in CODECS.items()
    ),
    Kind(".json", bytes_as(json_array), "not a whole json file, .* after document 7"),
    Kind(".lines.json", bytes_as(json_lines), "line 8, byte [0-9]+: no valid JSON"),
    Kind(".json.gz", bytes_as(json_array, "gzip"), "damaged or cut short"),
    Kind(".cbor", bytes_as(cbor_sequence), "not a whole cbor file"),
    Kind(".array.cbor", bytes_as(cbor2.dumps), "not a whole cbor file"),
    Kind(".cbor.zst", bytes_as(cbor_sequence, "zstd"), "damaged or cut short"),
    Kind(".tar", bytes_as(tar), "not a whole webdataset file, .* after sample"),
    Kind(".tar.gz", bytes_as(tar, "gzip"), "damaged or cut short"),
    Kind(".stream.arrow", arrow_stream, "not a whole arrow file"),
    Kind(".file.arrow", arrow_file, "not a whole arrow file"),
    Kind(".avro", bytes_as(avro("null")), "not a whole avro file"),
    Kind(".deflate.avro", bytes_as(avro("deflate")), "not a whole avro file"),
    Kind(".avro.gz", bytes_as(avro("null"), "gzip"), "damaged or cut short"),
    Kind(".csv", bytes_as(cells(",")), ".*damaged from row 8 on .*within a quoted cell"),
    Kind(".crlf.csv", bytes_as(cells(",", "\r\n")), ".*damaged from row 8 on .*quoted cell"),
    Kind(".csv.gz", bytes_as(cells(","), "gzip"), "damaged or cut short"),
    Kind(".tsv", bytes_as(cells("\t")), ".*damaged from row 8 on .*within a quoted cell"),
    Kind(".tsv.zst", bytes_as(cells("\t"), "zstd"), "damaged or cut short"),
]
ALL = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suffix)
# Without compressed files: the compression does not affect how a format is read.
PLAIN = [kind for kind in KINDS if not kind.suffix.endswith(tuple(CODECS))]
PACKED = next(kind for kind in KINDS if kind.suffix == ".jsonl.gz")
EACH_FORMAT = pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.suffix)


def read(
    path: Path, batch_bytes: int = 2**20, options: ReadOptions = TEXT
) -> list[tuple[int, str]]:
    found = reading.read(path, options, batch_bytes)
    assert found.rows == len(DOCUMENTS) or path.name.startswith("other")
    return found.good


def sampled(file: SourceFileBytes, options: ReadOptions, batch_bytes: int = 100) -> list[str]:
    """Return the texts of a file, read block by block from where it is stored."""
    format_, found = format_of(file.name), []
    for block in format_.blocks(file, options):
        last = 0.0
        for batch in format_.read(file, options, span=block.span, batch_bytes=batch_bytes):
            found += batch.texts.to_pylist()
            assert batch.fraction >= last
            last = batch.fraction
        assert last == pytest.approx(1, abs=0.05)
    return found


def test_every_format_is_here() -> None:
    names = {format_of(f"x{kind.suffix}").name for kind in KINDS}
    assert names | {"text"} == {one.name for one in FORMATS}  # a file of text is one document


@ALL
def test_the_same_documents(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / f"x{kind.suffix}"
    kind.write(path, DOCUMENTS)
    expected = [(row, text) for row, text in enumerate(DOCUMENTS) if text is not None]
    for batch_bytes in (20, 2**20):
        assert read(path, batch_bytes) == expected
    format_of(path.name).check(looked_at(path), TEXT)
    with pytest.raises(UsageError, match=r"has no column 'body'; its columns are .*text"):
        format_of(path.name).check(looked_at(path), ReadOptions(columns=("body",)))


@EACH_FORMAT
def test_large_texts_among_small_ones(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / f"other{kind.suffix}"
    documents = ["a", '\U0001f600\n" é' * 2**17, "", "b" * 3 * 2**20, "c", "ü" * (2**19 + 1)]
    kind.write(path, documents)
    for batch_bytes in (2**10, 2**24):
        assert read(path, batch_bytes) == list(enumerate(documents))


class CountedBytes:
    """A file, and the number of bytes that were read of it."""

    def __init__(self, path: Path) -> None:
        self._file, self.taken = looked_at(path), 0
        self.name, self.size = self._file.name, self._file.size

    def read(self, start: int, end: int) -> bytes:
        self.taken += end - start
        return self._file.read(start, end)


@pytest.mark.parametrize(
    "kind",
    [
        one
        for one in KINDS
        if one.suffix[1:] in {"json", "cbor", "tar", "jsonl", "csv"}  # a CBOR array is read at once
    ],
    ids=lambda kind: kind.suffix,
)
def test_a_look_reads_no_large_document(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / f"x{kind.suffix}"
    kind.write(path, ["a", "b" * 30 * 2**20, "c"])
    counted = CountedBytes(path)
    format_of(path.name).check(counted, TEXT)
    assert counted.taken < 20 * 2**20
    with pytest.raises(UsageError, match=r"has no column 'body'; its columns are .*text"):
        format_of(path.name).check(counted, ReadOptions(columns=("body",)))


STORIES: list[Row] = [
    {"title": "A", "meta": {"n": 1, "text": "one"}},
    {"title": None, "meta": {"n": None, "text": "two"}},
    {"title": "C", "meta": None},
    {"title": "", "meta": {"n": 2, "text": "four"}},
    {"title": None, "meta": None},
    {"title": "", "meta": {"n": 3, "text": None}},
    {"title": "G", "meta": {"n": 4, "text": ""}},
]


@EACH_FORMAT
def test_a_path_and_several_columns(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / f"other{kind.suffix}"
    kind.write_rows(path, STORIES)
    inner = ReadOptions(columns=("meta.text",))
    both = ReadOptions(columns=("title", "meta.text"), separator=" | ")
    expected = [(0, "A | one"), (1, "two"), (2, "C"), (3, "four"), (5, ""), (6, "G")]
    for batch_bytes in (3, 2**20):
        assert read(path, batch_bytes, inner) == [(0, "one"), (1, "two"), (3, "four"), (6, "")]
        assert read(path, batch_bytes, both) == expected
    assert sampled(looked_at(path), both) == [text for _, text in expected]
    with pytest.raises(UsageError, match=r"has no column 'meta\.body'; its columns are .*meta"):
        look(path, options=ReadOptions(columns=("title", "meta.body")))


@EACH_FORMAT
def test_a_column_that_a_file_lacks_is_null(kind: Kind, tmp_path: Path) -> None:
    has, lacks = tmp_path / f"a{kind.suffix}", tmp_path / f"b{kind.suffix}"
    kind.write_rows(has, STORIES)
    kind.write_rows(lacks, [{"id": 1, "text": "one"}, {"id": 2, "text": "two"}])
    kept = ReadOptions(columns=("text", "meta.text"), kept=("title", "meta.n"))
    batches = [*format_of(lacks.name).read(lacks, kept)]
    assert [text for batch in batches for text in batch.texts.to_pylist()] == ["one", "two"]
    assert all(values.null_count == 2 for batch in batches for values in batch.values)
    for where, texts in (("title is None", 2), ("title == 'A'", 0), ("not title == 'A'", 0)):
        options = ReadOptions(columns=("text", "meta.text"), filters=Filters(where=where))
        assert len(reading.read(lacks, options).good) == texts
        assert look(lacks, has, options=options) == ()
    assert look(has, lacks, options=kept) == look(lacks, has, options=kept) == ()
    if ".avro" in kind.suffix:  # its schema has all columns here
        return
    with pytest.raises(UsageError, match=r"(?m)has no column 'title'; .*\.$") as refused:
        look(lacks, options=kept)
    assert "no column 'meta.n'" in str(refused.value)
    with pytest.raises(UsageError, match="no column 'title'.* Neither has any other file"):
        look(lacks, lacks, options=kept)


TABLES = {".parquet", ".stream.arrow", ".file.arrow", ".csv", ".crlf.csv", ".tsv"}


@pytest.mark.parametrize(
    "kind",
    [one for one in PLAIN if one.suffix not in TABLES],  # in a table, all documents have a column
    ids=lambda kind: kind.suffix,
)
def test_a_look_goes_on_until_a_document_has_the_column(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / f"x{kind.suffix}"
    kind.write_rows(path, [{"id": 1, "text": "a"}] * 3000 + [{"title": "b", "meta": None}])
    assert look(path, options=ReadOptions(columns=("text", "title"), kept=("title",))) == ()


@pytest.mark.parametrize("value", [5, ["a"], {"a": "b"}, True])
@pytest.mark.parametrize(
    "kind",
    [one for one in PLAIN if one.suffix in {".jsonl", ".json", ".cbor", ".array.cbor", ".tar"}],
    ids=lambda kind: kind.suffix,
)
def test_a_wrong_type_in_the_first_documents_is_bad_there(
    kind: Kind, tmp_path: Path, value: object
) -> None:
    path, other = tmp_path / f"x{kind.suffix}", tmp_path / f"y{kind.suffix}"
    rows = [{"title": "t", "text": value}] * 60 + [{"title": "t", "text": "good"}]
    kind.write_rows(path, rows)
    assert look(path) == ()
    found = reading.read(path)
    assert found.good == [(60, "good")]
    assert len(found.bad) == 60
    with pytest.raises(SourceError, match=r"'text' is of type \w+, expected string"):
        reading.read(path, TEXT)
    kind.write_rows(other, rows[:60])
    with pytest.raises(UsageError, match=r"'text' is of type .*Columns of text: title"):
        look(other)
    (wrong,) = look(other, path)
    assert "'text' is of type" in wrong


@ALL
def test_the_name_of_the_format_goes_before_that_of_the_file(kind: Kind, tmp_path: Path) -> None:
    packed = next((suffix for suffix in CODECS if kind.suffix.endswith(suffix)), "")
    name = format_of(f"x{kind.suffix}").name
    path = tmp_path / f"data.txt{packed}"
    kind.write(path, DOCUMENTS)
    options = ReadOptions(source_format=name)  # type: ignore[arg-type]
    assert format_of(path.name, options).name == name
    assert len(read(path, options=options)) == 6


@pytest.mark.parametrize("suffix", [*(kind.suffix for kind in KINDS), ".txt", ".txt.xz"])
def test_a_pointer_of_git_lfs_is_named(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(POINTER)
    for options in (TEXT, SKIP):
        with pytest.raises(UsageError, match=r"x\..*: a pointer of Git LFS.*`git lfs pull`"):
            reading.read(path, options)
    if ".txt" not in suffix:  # nothing of it is read before the run
        with pytest.raises(UsageError, match="git lfs pull"):
            look(path)


def test_a_text_about_git_lfs_is_a_text(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"The words: " + POINTER)
    assert len(reading.read(tmp_path / "x.txt").good) == 1
    (tmp_path / "x.txt").write_bytes(POINTER * 20)  # a pointer is shorter
    assert len(reading.read(tmp_path / "x.txt").good) == 1


@ALL
def test_no_documents(kind: Kind, tmp_path: Path) -> None:
    kind.write(tmp_path / f"other{kind.suffix}", [])
    assert read(tmp_path / f"other{kind.suffix}") == []


@ALL
def test_a_file_cut_short_is_named(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / f"x{kind.suffix}"
    noise = random.Random(1).randbytes(2000).hex()
    kind.write(path, [*DOCUMENTS[:-1], noise])
    path.write_bytes(path.read_bytes()[: -len(noise) // 4])
    with pytest.raises(SourceError, match=rf"x{kind.suffix}: {kind.says}"):
        read(path)
    path.unlink()
    with pytest.raises(SourceError, match=r"cannot be read: no such file"):
        read(path)


# These may end after any document.
ENDLESS = {".jsonl", ".ndjson", ".lines.json", ".cbor", ".avro", ".deflate.avro", ".csv", ".tsv"}


@EACH_FORMAT
def test_a_cut_at_any_byte_is_noticed(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cbor, "_BUFFER_BYTES", 5)
    monkeypatch.setattr(json_files, "_CHUNK_BYTES", 7)
    path = tmp_path / f"other{kind.suffix}"
    kind.write(path, ["one", None, "two" * 9] * 2)
    whole, documents = path.read_bytes(), read(path)
    for length in range(1, len(whole), len(whole) // 300 + 1):  # an empty file may have no document
        path.write_bytes(whole[:length])
        try:
            found = read(path)
        except (SourceError, UsageError):
            continue
        assert found == documents[: len(found)]
        padding = kind.suffix == ".tar" and found == documents
        assert padding or kind.suffix.removeprefix(".crlf") in ENDLESS


# Arrow prints a warning about a row of the wrong length that is not UTF-8, and fails the file.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@EACH_FORMAT
def test_any_bytes_end_in_documents_or_an_error(kind: Kind, tmp_path: Path) -> None:
    rng, path = random.Random(5), tmp_path / f"other{kind.suffix}"
    kind.write(path, ["one", None, "two" * 9] * 7)
    whole = path.read_bytes()
    for _ in range(100):
        changed = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        path.write_bytes(changed)
        with contextlib.suppress(SourceError, UsageError):
            assert len(read(path, options=SKIP)) <= 60


@EACH_FORMAT
def test_blocks_hold_every_document_once(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / f"x{kind.suffix}"
    rng = random.Random(3)
    documents = [rng.randbytes(rng.randrange(30_000)).hex() for _ in range(200)]
    kind.write(path, documents)
    assert sampled(looked_at(path), TEXT, batch_bytes=2**16) == documents
