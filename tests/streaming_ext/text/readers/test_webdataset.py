"""WebDataset: samples of text; a hostile tar writes nothing and takes no memory."""

import gzip
import io
import subprocess
import tarfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents import tar_members
from streaming_ext.text.formats import format_of
from tests.streaming_ext.text.reading import faults, looked_at, read, tar

JSON_SAYS = "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
UTF8_SAYS = "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"
Files = Sequence[tuple[str, bytes]]


def rows(path: Path, files: Files, column: str = "text") -> list[tuple[int, str]]:
    path.write_bytes(tar(files))
    return read(path, ReadOptions(columns=(column,)))[0]


SAMPLES = [
    ("a/0.txt", b"zero"),
    ("a/0.json", b'{"text": "not this", "body": "one"}'),
    ("a/1.json", b'\xef\xbb\xbf{"text": "two"}'),
    ("a/1.cls", b"5"),
    ("a/2.jpg", b"\xff\xd8"),
    ("b/2.x.txt", b"other ending"),
    ("b/3.TXT", b"\xef\xbb\xbfthree"),
]


def test_samples(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    assert rows(path, SAMPLES) == [(0, "zero"), (1, "two"), (4, "three")]
    assert rows(path, SAMPLES, "txt") == [(0, "zero"), (4, "three")]
    assert rows(path, SAMPLES, "body") == [(0, "one")]
    assert rows(path, [("./0.txt", b"a"), ("__meta__/x", b""), ("1.txt", b"")]) == [
        (0, "a"),
        (1, ""),
    ]


def test_long_names_in_any_language_and_tars_end_to_end(tmp_path: Path) -> None:
    long = "ä" * 100 + "/" + "n" * 200
    files = [(f"{long}.txt", b"a"), (f"{long}.json", b"{}"), ("1.txt", b"b")]
    packed = [gzip.compress(tar(files, kind)) for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)]
    (tmp_path / "x.tar.gz").write_bytes(b"".join(packed))
    assert read(tmp_path / "x.tar.gz", ReadOptions())[0] == [*enumerate("abab")]


def member(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, **more: Any
) -> tuple[tarfile.TarInfo, io.BytesIO]:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type = len(data), kind
    for field, value in more.items():
        setattr(entry, field, value)
    return entry, io.BytesIO(data)


def write_members(path: Path, *members: tuple[tarfile.TarInfo, io.BytesIO]) -> None:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as file:
        for entry, data in members:
            file.addfile(entry, data)


def test_bad_samples_cost_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_members, "MAX_TEXT_BYTES", 1000)
    path = tmp_path / "x.tar"
    write_members(
        path,
        member("0.txt", b"a"),
        member("1.txt", b"\xff"),
        member("2.json", b"{"),
        member("3.txt", b"x" * 1001),
        member("4.txt", kind=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("5.txt", kind=tarfile.LNKTYPE, linkname="/etc/passwd"),
        member("6.txt", kind=tarfile.FIFOTYPE),
        member("7.txt", b"b"),
    )
    good, bad, *_ = read(path)
    assert [text for _, text in good] == ["a", "b"]
    assert [(location, reason) for _, location, reason in faults(bad)] == [
        ("sample '1'", f".txt: no valid UTF-8 ({UTF8_SAYS})"),
        ("sample '2'", f"no valid JSON ({JSON_SAYS})"),
        ("sample '3'", ".txt: longer than 1000 bytes"),
        ("sample '4'", ".txt: a link, which is not followed"),
        ("sample '5'", ".txt: a link, which is not followed"),
    ]
    with pytest.raises(SourceError, match=r"x\.tar: sample '1': \.txt: no valid UTF-8"):
        read(path, ReadOptions())


KINDS = (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_a_tar_is_whole_if_a_block_of_zeros_ends_it(kind: int, suffix: str, tmp_path: Path) -> None:
    """Nothing shows what is missing if a tar is cut before that."""
    path = tmp_path / f"x{suffix}"
    name = "n" * (90 if kind == tarfile.USTAR_FORMAT else 200)
    whole = tar([("0.txt", b"a" * 600), ("1.jpg", b"b"), (f"{name}.txt", b"c" * 512)], kind)
    end = len(whole.rstrip(b"\0"))
    end += -end % 512 + 512
    cuts = {at + by for at in range(0, end + 512, 512) for by in (-1, 0, 1, 300)} | {end - 512}
    for cut in sorted(cut for cut in cuts if cut >= 0):
        data = whole[:cut]
        path.write_bytes(gzip.compress(data, 1) if suffix == ".tar.gz" else data)
        if cut >= end and cut % 512 == 0:
            assert read(path).good == [(0, "a" * 600), (2, "c" * 512)]
        else:
            with pytest.raises(SourceError, match=rf"x{suffix}: not a whole webdataset file"):
                read(path)


def test_sparse_files_are_refused_and_fields_of_all_members_are_known(tmp_path: Path) -> None:
    """GNU tar writes the tars."""
    with (tmp_path / "1.txt").open("wb") as file:
        for number in range(60):
            file.seek(number * 2**16)
            file.write(b"x")
    (tmp_path / "2.txt").write_text("b")
    path = tmp_path / "x.tar"
    comment = ["--format=pax", "--pax-option=globexthdr.name=g,comment=all"]
    for kind in (["--format=gnu"], ["--format=pax"], comment):
        command = ["tar", "-C", tmp_path, *kind, "-cf", path]
        subprocess.run([*command, "2.txt"], check=True)
        assert read(path).good == [(0, "b")]
        subprocess.run([*command, "-S", "1.txt", "2.txt"], check=True)
        with pytest.raises(SourceError, match=r"x\.tar: .*\(a sparse member"):
            read(path)


def test_nothing_is_ever_written(tmp_path: Path) -> None:
    path = tmp_path / "inner" / "x.tar"
    path.parent.mkdir()
    names = ["../../escape.txt", str(tmp_path / "planted.txt"), "a/../../b.txt", ".txt"]
    rows(path, [(name, b"text") for name in names])
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["inner", "x.tar"]


def header(size: bytes, kind: bytes = b"0") -> bytes:
    whole = bytearray(tar([("0.txt", b"a")], tarfile.USTAR_FORMAT)[:512])
    whole[124:136], whole[156:157] = size.ljust(12, b"\0"), kind
    whole[148:156] = b" " * 8
    whole[148:156] = f"{sum(whole):06o}\0 ".encode()
    return bytes(whole)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no tar" * 200,
        *(
            header(size, kind)
            for size in (b"\xff" * 12, b"\x80" + b"\xff" * 11, b"77777777777", b"12345")
            for kind in (b"0", b"x", b"L", b"S")
        ),
        header(b"00000000005", b"x") + b"5 a=b".ljust(512, b"\0"),
        header(b"00000000005", b"x") + b"1 a=b".ljust(512, b"\0"),
    ],
)
@pytest.mark.timeout(20)
def test_hostile_tars(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"x\.tar: not a whole webdataset file \(.*\)"):
        read(path)


def test_a_look(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    for files, column, said in (
        (SAMPLES, "body", None),
        ([("0.txt", b"a")], "text", None),
        ([("0.jpg", b"a"), ("0.cls", b"1")], "text", r"column 'text'; its columns are jpg, cls\."),
        (SAMPLES[:2], "other", "column 'other'; its columns are txt, text, body"),
    ):
        path.write_bytes(tar(files))
        with pytest.raises(UsageError, match=said) if said else nullcontext():
            format_of("x.tar").check(looked_at(path), ReadOptions(columns=(column,)))


def test_a_size_of_hundreds_of_digits_is_damage(tmp_path: Path) -> None:
    write_members(tmp_path / "x.tar", member("a.txt", pax_headers={"size": "9" * 300}))
    with pytest.raises(SourceError, match="a member of 99999"):
        read(tmp_path / "x.tar")
