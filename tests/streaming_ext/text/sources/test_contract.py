"""The contract of every source: a listing pins files, and only what was listed is read."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.fetch import fetch
from streaming_ext.text.formats import format_of
from streaming_ext.text.listing import list_sources
from streaming_ext.text.look import look_into
from streaming_ext.text.sources import SourceFile, objects
from streaming_ext.text.sources.source_bytes import SourceFileBytes, open_reader
from tests.streaming_ext.text.readers.test_contract import DOCUMENTS, PACKED, PLAIN, sampled
from tests.streaming_ext.text.reading import POINTER, SKIP
from tests.streaming_ext.text.sources.conftest import FILES, Location


def test_listed_in_order_with_size_and_version(location: Location) -> None:
    found = list_sources(location.named("{b,a}/x.parquet"))
    assert [source.name for source in found] == ["x.parquet", "x.parquet"]
    assert [source.size for source in found] == [100, 1]
    assert found == sorted(found)
    assert all(source.version for source in found)
    assert len({source.version for source in found}) == 2 or "http" in location.url
    assert list_sources(location.named("{b,a}/x.parquet")) == found


def test_pointers_of_git_lfs_are_named(location: Location, tmp_path: Path) -> None:
    for name in ("p.parquet", "p.jsonl", "p.jsonl.gz", "p.tar", "p.arrow", "p.csv"):
        location.put(name, POINTER)
        (source,) = list_sources(location.named(name))
        with pytest.raises(UsageError, match=rf"{name}: a pointer of Git LFS.*`git lfs pull`"):
            look_into([source], SKIP)
        path, _ = fetch(source, tmp_path)
        with pytest.raises(UsageError, match=rf"{name}: a pointer of Git LFS"):
            list(format_of(name).read(path, SKIP, name=source.url))


def test_complete_reads_ranges_and_resumed_reads(
    location: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_CHUNK_BYTES", 100)
    (source,) = list_sources(location.named("a/y.parquet"))
    data = FILES["a/y.parquet"]
    path, fetched = fetch(source, tmp_path / "one")
    assert path.read_bytes() == data
    assert fetched == len(data)
    assert fetch(source, tmp_path / "one") == (path, 0)
    assert open_reader(source).read(250, 700) == data[250:700]
    assert b"".join(open_reader(source).stream(333)) == data[333:]


def test_an_empty_file(location: Location, tmp_path: Path) -> None:
    for name, said in (("e.parquet", "file size is 0 bytes"), ("e.jsonl", None)):
        location.put(name, b"")
        (source,) = list_sources(location.named(name))
        assert look_into([source], SKIP) == ()
        path, _ = fetch(source, tmp_path, options=SKIP)
        with pytest.raises(SourceError, match=said) if said else nullcontext():
            assert list(format_of(name).read(path, SKIP, name=source.url)) == []


@pytest.mark.parametrize("location", ["s3", "gs", "az"], indirect=True)
@pytest.mark.parametrize(
    "key", ["my data/x.parquet", "odd/a#1.parquet", "odd/b?.parquet", "c//d.parquet"]
)
def test_keys_are_taken_to_the_letter(location: Location, tmp_path: Path, key: str) -> None:
    location.put("my-data/x.parquet", b"another")
    location.put("odd/bb.parquet", b"another")
    location.put("c/d.parquet", b"another")
    location.put(key, b"this one")
    (source,) = list_sources(location.named(key))
    assert (source.url, source.size) == (f"{location.url}/{key}", 8)
    path, _ = fetch(source, tmp_path)
    assert path.read_bytes() == b"this one"


def test_missing(location: Location) -> None:
    with pytest.raises((UsageError, SourceError), match=r"none\.parquet|no such file|matches"):
        list_sources(location.named("a/none.parquet"))


@pytest.mark.parametrize("same_size", [True, False])
def test_changed_since_it_was_listed(location: Location, tmp_path: Path, same_size: bool) -> None:
    """No file is half old and half new."""
    (source,) = list_sources(location.named("a/x.parquet"))
    reader = open_reader(source)
    assert reader.read(0, 10) == FILES["a/x.parquet"][:10]
    location.put("a/x.parquet", b"X" * (100 if same_size else 50))
    if location.pinned:
        path, _ = fetch(source, tmp_path / "one")
        assert path.read_bytes() == FILES["a/x.parquet"]
        assert reader.read(10, 20) == FILES["a/x.parquet"][10:20]
        return
    for read in (
        lambda: fetch(source, tmp_path / "one"),
        lambda: fetch(source, tmp_path / "one", options=ReadOptions(), span=(0, 40)),
        lambda: reader.read(10, 20),
        lambda: open_reader(source).read(10, 20),
    ):
        with pytest.raises(SourceError, match="changed since the run began") as caught:
            read()
        assert source.url in str(caught.value)
    assert not list((tmp_path / "one").glob("*.source"))
    (again,) = list_sources(location.named("a/x.parquet"))
    assert again.version != source.version


def test_a_file_that_is_not_there(location: Location, tmp_path: Path) -> None:
    (source,) = list_sources(location.named("a/x.parquet"))
    gone = SourceFile(
        url=source.url.replace("x.parquet", "z.parquet"), size=source.size, version=source.version
    )
    with pytest.raises(SourceError, match=r"z\.parquet") as caught:
        fetch(gone, tmp_path / "one")
    assert not caught.value.fatal  # the other files can still be read


def test_every_format(location: Location, tmp_path: Path) -> None:
    """Each is listed, looked into, sampled where it is stored, fetched, and read the same way."""
    files, options = {}, ReadOptions()
    for kind in (*PLAIN, PACKED):
        kind.write(tmp_path / "x", DOCUMENTS)
        files[f"x{kind.suffix}"] = (tmp_path / "x").read_bytes()
    files["x.txt"] = (DOCUMENTS[-1] or "").encode()
    for name, data in files.items():
        location.put(f"in/{name}", data)
    is_web = location.url.startswith("http:")
    found = list_sources(location.named(f"in/{{{','.join(files)}}}" if is_web else "in/*"))
    assert sorted(source.name for source in found) == sorted(files)
    if not is_web:
        of_folder = {source.name for source in list_sources(location.named("in"))}
        assert of_folder == {name for name in files if not re.search(r"\.(json|txt)\b", name)}
    for source in found:
        expected = [text for text in DOCUMENTS if text is not None]
        expected = expected[-1:] if source.name == "x.txt" else expected
        reads, file = format_of(source.url), SourceFileBytes(source)
        assert sampled(file, options) == expected, source.name
        path, fetched = fetch(source, tmp_path / "scratch", options=options)
        assert fetched == source.size
        read = reads.read(path, options, name=source.url)
        assert [text for batch in read for text in batch.texts.to_pylist()] == expected
