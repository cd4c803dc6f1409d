"""JSON Lines as people write them: unusual lines are read one by one, and bad ones are named."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.filters import Filters
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents import document_rows, files, objects
from streaming_ext.text.readers import json_files
from streaming_ext.text.readers.json_files import JsonLinesFormat
from tests.streaming_ext.text.packed import pack
from tests.streaming_ext.text.reading import documents, faults, look, looked_at, read

GOOD = b'{"text": "good"}\n'


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"text": "a"}\n\n{"text": "b"}\n  \n', [(0, "a"), (2, "b")]),
        (b'{"text": "a"}\r\n{"text": "b"}\r\n\r\n{"text": "c"}', [(0, "a"), (1, "b"), (3, "c")]),
        (b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}', [(0, "a"), (1, "b")]),
        (b'{"id": 1}\n{"text": null}\n{"text": "b"}\n', [(2, "b")]),
        (b'{"text": "a", "text": "b"}\n', [(0, "b")]),
        (b'{"n": NaN, "text": "a"}\n', [(0, "a")]),
        (b'  {"text": "a"}  \n', [(0, "a")]),
        (b'{"n": ' + b"7" * 5000 + b', "text": "a"}\n\n', [(0, "a")]),
        (b'{"text": "\\ud83d\\ude00"}\n', [(0, "\U0001f600")]),
    ],
)
def test_unusual_lines(tmp_path: Path, data: bytes, expected: list[tuple[int, str]]) -> None:
    assert documents(tmp_path / "x.jsonl", data) == expected


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"text": "a', "no valid JSON (Unterminated string"),
        (b'{"text": "a"} x', "no valid JSON (Extra data"),
        (b'{"text": "a"}{"text": "b"}', "no valid JSON (Extra data"),
        (b'{"text": "\xc3\xa9" 5}', "no valid JSON (Expecting ',' delimiter"),
        (b'{"text": "a\xff"}', "no valid JSON ('utf-8' codec can't decode byte 0xff"),
        (b'{"other": "a\xff", "text": "a"}', "no valid JSON ('utf-8' codec can't decode byte 0xff"),
        (b'{"text": 5}', "'text' is of type number, expected string"),
        (b'{"text": {"a": 1}}', "'text' is of type object, expected string"),
        (b'{"text": [true]}', "'text' is of type array, expected string"),
        (b'{"text": false}', "'text' is of type boolean, expected string"),
        (b'"text"', "a value of type string, expected object"),
        (b"[1]", "a value of type array, expected object"),
        (b'{"text": "\\ud83d"}', "'text' holds half of a surrogate pair"),
        (b'{"text": "a\tb"}', "no valid JSON (Invalid control character"),
    ],
)
@pytest.mark.parametrize("before", [0, 70])
def test_a_bad_line_is_named_and_costs_no_other(
    tmp_path: Path, line: bytes, problem: str, before: int
) -> None:
    path, location = tmp_path / "x.jsonl", f"line {before + 1}, byte {before * len(GOOD)}"
    data = GOOD * before + line + b"\n" + GOOD
    with pytest.raises(SourceError) as caught:
        documents(path, data, batch_bytes=500)
    assert f"x.jsonl: {location}: {problem}" in str(caught.value)
    assert "\n" not in str(caught.value)
    pack(data, tmp_path / "x.jsonl.gz", "gzip")
    for name, batch_bytes in (("x.jsonl", 1), ("x.jsonl", 2**20), ("x.jsonl.gz", 30)):
        good, bad, rows, *_ = read(tmp_path / name, batch_bytes=batch_bytes)
        assert [row for row, _ in good] == [*range(before), before + 1]
        assert rows == before + 2
        ((row, where, reason),) = faults(bad)
        assert (row, where) == (before, location)
        assert reason.startswith(problem)


def test_a_line_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (json_files, objects, document_rows):
        monkeypatch.setattr(module, "MAX_TEXT_BYTES", 1000)
    long = b'{"text": "' + b"a" * 5000 + b'"}\n'
    path = tmp_path / "x.jsonl"
    for batch_bytes in (100, 700, 10_000):
        path.write_bytes(GOOD * 2 + long + GOOD + long + long + GOOD)
        good, bad, rows, *_ = read(path, batch_bytes=batch_bytes)
        assert [row for row, _ in good] == [0, 1, 3, 6]
        assert [(one.row, one.location) for one in bad] == [
            (2, "line 3, byte 34"),
            (4, f"line 5, byte {51 + len(long)}"),
            (5, f"line 6, byte {51 + 2 * len(long)}"),
        ]
        assert rows == 7
        path.write_bytes(GOOD + long[:-1])  # the last line, without an end
        assert len(read(path, batch_bytes=batch_bytes)[1]) == 1
        with pytest.raises(SourceError, match=r"line 2, byte 17: longer than"):
            read(path, ReadOptions(), batch_bytes)


NAMES = st.sampled_from(["text", "id", "meta"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


TEXTS = st.none() | st.text(max_size=8)
NUMBERS = st.none() | st.integers() | st.floats()
META = st.none() | st.fixed_dictionaries({}, optional={"text": TEXTS, "id": st.booleans()})
ORDINARY = st.fixed_dictionaries({}, optional={"text": TEXTS, "id": NUMBERS, "meta": META})
READS = [
    ReadOptions(),
    ReadOptions(columns=("meta.text",)),
    ReadOptions(filters=Filters(where="id > 0 or meta.id or text < 'b'")),
    ReadOptions(filters=Filters(where="meta.text is not None")),
    ReadOptions(kept=("id", "meta.id", "meta.text", "text")),
    ReadOptions(columns=("text", "meta.text"), kept=("meta",)),
]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(ORDINARY, max_size=12)
    | st.lists(st.dictionaries(NAMES, VALUES, max_size=3), max_size=12),
    ascii_only=st.booleans(),
    batch_bytes=st.integers(1, 300),
    options=st.sampled_from(READS),
    skips=st.booleans(),
)
def test_at_once_is_as_one_by_one(
    tmp_path: Path,
    values: list[dict[str, object]],
    ascii_only: bool,
    batch_bytes: int,
    options: ReadOptions,
    skips: bool,
) -> None:
    data = "".join(json.dumps(v, ensure_ascii=ascii_only) + "\n" for v in values)
    path = tmp_path / "x.jsonl"
    path.write_bytes(data.encode("utf-8", "surrogatepass"))
    options = replace(options, on_bad_document="skip" if skips else "fail")

    def outcome() -> str:
        """Return the result as a text: NaN differs from itself."""
        found = []
        try:
            for batch in JsonLinesFormat().read(path, options, batch_bytes=batch_bytes):
                columns = [column.to_pylist() for column in (batch.texts, *batch.values)]
                found.append((batch.rows.tolist(), columns, batch.dropped, batch.bad))
        except (SourceError, UsageError) as error:
            found.append(str(error))
        return repr(found)

    found = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_files, "_at_once", lambda *_: None)
        assert outcome() == found


@pytest.mark.parametrize("options", [READS[1], READS[2], READS[4]])
def test_conditions_kept_columns_and_paths_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: ReadOptions
) -> None:
    monkeypatch.setattr(json_files, "_values", None)
    data = b'{"text": "a", "id": 1, "meta": {"text": "a", "id": true}}\n{"other": 5}\n' + GOOD
    assert documents(tmp_path / "x.jsonl", data, options)[0] == (0, "a")


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_ALWAYS_ALLOWED_BYTES", 10_000)
    pack(GOOD * 10_000, tmp_path / "x.jsonl.zst", "zstd")
    with pytest.raises(SourceError, match=r"x\.jsonl\.zst: it unpacks to more than 200 times"):
        documents(tmp_path / "x.jsonl.zst", (tmp_path / "x.jsonl.zst").read_bytes())


@pytest.mark.parametrize("codec", ["gzip", "zstd", "bz2", "xz", "lz4"])
@pytest.mark.parametrize(("taken", "chunk"), [(1, 7), (5, 2**12), (2**17, 2**23)])
def test_members_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, taken: int, chunk: int
) -> None:
    monkeypatch.setattr(files, "_PACKED_BYTES", taken)
    monkeypatch.setattr(files, "_CHUNK_BYTES", chunk)
    suffix = next(suffix for suffix, name in files.CODECS.items() if name == codec)
    path = tmp_path / f"x.jsonl{suffix}"
    pack(GOOD * 100, path, codec)
    packed = path.read_bytes()
    pack(b"", path, codec)
    between = [b"", path.read_bytes(), *([b"\0" * 8] if codec in {"gzip", "bz2", "xz"} else [])]
    for each in between:
        assert len(documents(path, packed + each + packed)) == 200
    beginning = bytes([packed[0] ^ 1]) + packed[1:]
    for behind in (packed[: len(packed) // 2], packed[:2], beginning, b"else", b"\0else"):
        with pytest.raises(SourceError, match="damaged or cut short"):
            documents(path, packed * 2 + behind)
    with pytest.raises(SourceError, match="an empty file, which no packed file is"):
        documents(path, b"")


@pytest.mark.parametrize("neighbours", [0, 5000])
@pytest.mark.parametrize("depth", [399, 400, 3000])
def test_how_deep_a_line_may_be_does_not_depend_on_its_neighbours(
    tmp_path: Path, neighbours: int, depth: int
) -> None:
    deep = b'{"x": ' + b"[" * depth + b"]" * depth + b', "text": "a"}\n'
    if depth < 400:
        assert len(documents(tmp_path / "x.jsonl", deep + GOOD * neighbours)) == 1 + neighbours
        return
    with pytest.raises(SourceError, match=r"line 1, byte 0: values nested deeper than 400"):
        documents(tmp_path / "x.jsonl", deep + GOOD * neighbours)


@pytest.mark.parametrize("text", ["[" * 5000, '\\" [' * 500, "\\" + "{" * 500, '"[' * 500 + "\\"])
@pytest.mark.parametrize("neighbours", [0, 5000])
def test_brackets_within_texts_are_not_nested(tmp_path: Path, text: str, neighbours: int) -> None:
    data = json.dumps({"text": text, "x": [[]] * 500}).encode() + b"\n" + GOOD * neighbours
    assert documents(tmp_path / "x.jsonl", data)[0] == (0, text)


@pytest.mark.parametrize("name", ["evil\nname", "evil\x1b[2Jname"])
def test_names_of_columns_break_no_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({name: "a", "n": [1]}) + "\n")
    table = pa.table({name: ["a"], "n": [{name: 5}]})
    pq.write_table(table, tmp_path / "x.parquet")
    for file in ("x.jsonl", "x.parquet"):
        for column in ("text", "n"):
            with pytest.raises(UsageError, match="evil.+name") as refused:
                look(tmp_path / file, options=ReadOptions(columns=(column,)))
            assert str(refused.value).isprintable()


def test_a_look_refuses_no_more_than_another_column(tmp_path: Path) -> None:
    """Damage is left to the part that reads it."""
    path = tmp_path / "x.jsonl"
    for data in (
        b"",
        b"\n\n",
        b'{"text": null}\n',
        b'{"text": "a"}',
        b"{\n",
        b'{"a": 1}\n{"text": "a"}\n',
    ):
        path.write_bytes(data)
        JsonLinesFormat().check(looked_at(path), ReadOptions())
    path.write_bytes(b'{\n{"a": 1}\n')
    with pytest.raises(UsageError, match="no column 'text'"):
        JsonLinesFormat().check(looked_at(path), ReadOptions())
