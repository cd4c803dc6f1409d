"""The spans of a file cut anywhere hold all its documents; each needs only its own bytes."""

import json
import random
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streaming_ext.base.errors import SourceError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.files import Span
from streaming_ext.text.formats import format_of
from tests.streaming_ext.text.packed import write_arrow
from tests.streaming_ext.text.readers.test_contract import KINDS, Kind
from tests.streaming_ext.text.reading import looked_at, read
from tests.tasks.core.doubles import write_source

TEXT = ReadOptions()
CUTTABLE = {".parquet", ".jsonl", ".ndjson", ".lines.json", ".file.arrow"}
ALL = pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.suffix in CUTTABLE], ids=lambda kind: kind.suffix
)


def texts_of(path: Path, span: Span | None = None, batch_bytes: int = 2**20) -> list[str | None]:
    """Return the texts of a span row by row, None for no text."""
    found = read(path, TEXT, batch_bytes, span)
    texts = dict(found.good)
    return [texts.get(row) for row in range(found.rows)]


def texts_of_spans(path: Path, cuts: Iterable[int], batch_bytes: int) -> list[list[str | None]]:
    """Return the texts of each span between the cuts, read from its bytes alone, as on scratch."""
    file, whole, found = looked_at(path), path.read_bytes(), []
    sparse = path.parent / "sparse" / path.name
    sparse.parent.mkdir(exist_ok=True)
    for span in pairwise(sorted({0, file.size, *cuts})):
        needed = format_of(path.name).needed(file, TEXT, span)
        assert all(a[1] <= b[0] for a, b in pairwise(needed))
        kept = bytearray(len(whole))
        for start, end in needed:
            kept[start:end] = whole[start:end]
        sparse.write_bytes(kept)
        found.append(texts_of(sparse, span, batch_bytes))
    return found


TEXTS = st.text(st.sampled_from('a"\n\r é😀\u2028'), max_size=12)
LINES = st.lists(
    st.one_of(
        TEXTS.map(lambda text: json.dumps({"text": text}, ensure_ascii=False)),
        st.sampled_from(["", "  ", '{"id": 1}']),
    ),
    max_size=12,
)


@given(
    lines=LINES,
    newline=st.sampled_from(["\n", "\r\n"]),
    ends=st.booleans(),
    cuts=st.lists(st.floats(0, 1), max_size=8),
    batch_bytes=st.integers(1, 60),
)
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_lines_cut_anywhere(
    tmp_path: Path,
    lines: list[str],
    newline: str,
    ends: bool,
    cuts: list[float],
    batch_bytes: int,
) -> None:
    data = (newline.join(lines) + newline * ends).encode()
    (tmp_path / "x.jsonl").write_bytes(data)
    at = [round(cut * len(data)) for cut in cuts]
    found = texts_of_spans(tmp_path / "x.jsonl", at, batch_bytes)
    assert [text for texts in found for text in texts] == texts_of(tmp_path / "x.jsonl")
    # Each line is in the span that holds its first byte.
    firsts = [0, *(match.end() for match in re.finditer(b"\n", data))]
    spans = pairwise(sorted({0, len(data), *at}))
    assert [len(texts) for texts in found] == [
        sum(start <= first < end for first in firsts) for start, end in spans
    ]


@ALL
@pytest.mark.parametrize("seed", [0, 3])
def test_a_file_cut_anywhere(kind: Kind, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    documents = [
        None if rng.random() < 0.1 else "é\r\n" * rng.randrange(40) + str(row) for row in range(40)
    ]
    path = tmp_path / f"x{kind.suffix}"
    if kind.suffix == ".parquet":
        write_source(path, documents, row_group_size=3)
    else:
        kind.write(path, documents)
    size = path.stat().st_size
    assert format_of(path.name).can_be_cut(looked_at(path))
    found = texts_of_spans(path, [rng.randrange(size) for _ in range(seed * 4)], 200)
    assert [text for texts in found for text in texts] == documents


@pytest.mark.parametrize(
    "suffix", [".jsonl.gz", ".json", ".json.gz", ".jsonl.bz2", ".stream.arrow", ".csv", ".avro"]
)
def test_a_file_that_cannot_be_entered_is_not_cut(suffix: str, tmp_path: Path) -> None:
    kind = next(kind for kind in KINDS if kind.suffix == suffix)
    path = tmp_path / f"x{suffix}"
    kind.write(path, ["a", "b"])
    assert not format_of(path.name).can_be_cut(looked_at(path))
    with pytest.raises(SourceError, match="cannot be entered in the middle"):
        list(format_of(path.name).read(path, TEXT, span=(0, 9)))


def test_a_bad_line_is_named_with_its_byte(tmp_path: Path) -> None:
    good = b'{"text": "good"}\n'
    data = good * 4 + b'{"text": "half\n' + good
    (tmp_path / "x.jsonl").write_bytes(data)
    cut = len(good) + 3
    with pytest.raises(SourceError, match=r"line 3 from byte 34 on, byte 68: no valid JSON"):
        texts_of(tmp_path / "x.jsonl", (cut, len(data)))
    assert texts_of(tmp_path / "x.jsonl", (0, cut)) == ["good"] * 2


def test_a_mark_in_the_middle_is_no_byte_order_mark(tmp_path: Path) -> None:
    good, marked = b'{"text": "a"}\n', b'\xef\xbb\xbf{"text": "b"}\n'
    (tmp_path / "x.jsonl").write_bytes(marked + good + marked)
    span = (len(marked) + len(good), 2 * len(marked) + len(good))
    assert texts_of(tmp_path / "x.jsonl", (0, span[0])) == ["b", "a"]
    for part in (None, span):
        with pytest.raises(SourceError, match="no valid JSON"):
            texts_of(tmp_path / "x.jsonl", part)


def test_arrow_dictionaries_are_read_with_each_span(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    texts = [f"text {row % 3}" for row in range(30)]
    table = pa.table({"text": pa.array(texts).dictionary_encode(), "n": range(30)})
    write_arrow(path, table)
    size = path.stat().st_size
    found = [texts_of(path, span) for span in pairwise([0, 500, size - 400, size])]
    assert [text for own in found for text in own] == texts
    assert all(found[:2])
