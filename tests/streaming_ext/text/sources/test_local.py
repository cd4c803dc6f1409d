"""The files that a pattern matches: each once, sorted, or a clear reason why there is none."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.store.scratch import SCRATCH_MARK
from streaming_ext.text import fetch
from streaming_ext.text.fetch import identify
from streaming_ext.text.listing import list_sources
from streaming_ext.text.sources import SourceFile

FILES = (
    "a.parquet",
    "b.parquet",
    "notes.txt",
    "2024/x.parquet",
    "2024/deep/er/y.parquet",
    "2025/x.parquet",
    ".hidden.parquet",
    ".cache/z.parquet",
    "2024/.cache/z.parquet",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for size, name in enumerate(FILES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    return tmp_path


def found(tree: Path, patterns: Sequence[str], max_files: int | None = None) -> list[str]:
    """Return the listed paths below `tree`, in order."""
    listed = list_sources([f"{tree}/{pattern}" for pattern in patterns], max_files=max_files)
    return [str(Path(source.url).relative_to(tree)) for source in listed]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["a.parquet"], ["a.parquet"]),
        (["notes.txt"], ["notes.txt"]),  # a file that is named is a source
        (
            ["."],
            [
                "2024/deep/er/y.parquet",
                "2024/x.parquet",
                "2025/x.parquet",
                "a.parquet",
                "b.parquet",
            ],
        ),
        (["2024"], ["2024/deep/er/y.parquet", "2024/x.parquet"]),
        (["*.parquet"], ["a.parquet", "b.parquet"]),
        (["[b-z].parquet"], ["b.parquet"]),
        (["*/x.parquet"], ["2024/x.parquet", "2025/x.parquet"]),
        (["202[45]"], ["2024/deep/er/y.parquet", "2024/x.parquet", "2025/x.parquet"]),
        (["2024/**/*.parquet"], ["2024/deep/er/y.parquet", "2024/x.parquet"]),
        (["{a,b}.parquet"], ["a.parquet", "b.parquet"]),
        (["{2024..2025}/x.parquet"], ["2024/x.parquet", "2025/x.parquet"]),
        (["{2024/deep,2025}"], ["2024/deep/er/y.parquet", "2025/x.parquet"]),
        (["{2024,2024/deep}/**/y.parquet"], ["2024/deep/er/y.parquet"]),
        (
            ["2024", "./2025/../2024", "2024//x.parquet"],
            ["2024/deep/er/y.parquet", "2024/x.parquet"],
        ),
        (["a.parquet", "*.parquet", "{a,a}.parquet", "./a.parquet"], ["a.parquet", "b.parquet"]),
        ([".hidden.parquet"], [".hidden.parquet"]),
        ([".cache"], [".cache/z.parquet"]),
    ],
)
def test_patterns(tree: Path, patterns: list[str], expected: list[str]) -> None:
    assert found(tree, patterns) == expected


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("{a,c}.parquet", "c.parquet, and"),
        ("{2024..2027}/x.parquet", r"2026/x.parquet, and .* \(1 more are missing\)"),
        ("{2024,2026}", "2026, and"),
        ("*.{parquet,json}", r"\*.json, and"),
    ],
)
def test_what_braces_name_must_exist(tree: Path, pattern: str, named: str) -> None:
    with pytest.raises(UsageError, match=f"the braces name {tree}/{named}"):
        found(tree, [pattern])


def test_relative_home_and_file_urls(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    monkeypatch.setenv("HOME", str(tree))
    expected = [SourceFile(url=str(tree / "b.parquet"), size=1)]
    assert expected[0].name == "b.parquet"
    for pattern in ("b.parquet", "./b.parquet", "~/b.parquet", f"file://{tree}/b.parquet"):
        assert list_sources([pattern]) == expected
    assert len(list_sources([f"file://{tree}/202?"])) == 3
    (tree / "[x]").mkdir()
    (tree / "b.parquet").rename(tree / "[x]/b.parquet")
    monkeypatch.chdir(tree / "[x]")  # the name of this folder is no pattern
    (source,) = list_sources(["*.parquet"])
    assert source.url == str(tree / "[x]/b.parquet")


@pytest.mark.parametrize("name", ["[ab].parquet", "what?.parquet", "{x}.parquet", "**.parquet"])
def test_a_name_that_looks_like_a_pattern(tree: Path, name: str) -> None:
    (tree / name).touch()
    assert found(tree, [name]) == [name]
    (tree / "[2024]").mkdir()
    (tree / "[2024]/only.parquet").touch()
    assert found(tree, ["[2024]"]) == ["[2024]/only.parquet"]


@pytest.mark.parametrize(("max_files", "count"), [(3, 3), (100, 5)])
def test_max_files_takes_the_first_of_the_sorted(
    tree: Path, max_files: int | None, count: int
) -> None:
    assert found(tree, ["."], max_files) == found(tree, ["."])[:count]
    assert len(found(tree, ["."], max_files)) == count


def test_sorted_by_code_points_as_on_every_machine(tmp_path: Path) -> None:
    names = ["10.parquet", "2.parquet", "B.parquet", "a.parquet", "é.parquet"]
    for name in reversed(names):
        (tmp_path / name).touch()
    assert found(tmp_path, ["."]) == names


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (["missing.parquet"], "missing.parquet: no such file, and no folder of this name"),
        (["*.json"], "*.json: no file matches this pattern. (Quote it"),
        (["{c,d}.parquet"], "no file matches this pattern"),
        (["empty"], "no folder of this name holds a .parquet, .jsonl, .cbor"),
        (["a.parquet", "missing"], "missing"),
    ],
)
def test_says_why_nothing_matches(tree: Path, patterns: list[str], said: str) -> None:
    (tree / "empty").mkdir()
    with pytest.raises(UsageError, match=re.escape(said)):
        found(tree, patterns)


@pytest.mark.parametrize(
    "name", ["new\nline", "tab\t", "\x1b[31mred", "\x7f", "\u202eltr", "\udcff"]
)
def test_names_that_could_not_be_shown_or_recorded_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.parquet").touch()
    said = "Rename it" if name == "\udcff" else "holds control characters"
    with pytest.raises(UsageError, match=said) as caught:
        list_sources([str(tmp_path)])
    assert str(caught.value).isprintable()


def test_a_name_that_says_no_format(tmp_path: Path) -> None:
    (tmp_path / "data.foo").write_text('{"text": "a"}\n')
    (tmp_path / "data").write_text("")
    (tmp_path / "a.jsonl").write_text("")
    for name, said in (
        ("data.foo", r"the ending \.foo names"),
        ("data", "its name has no ending"),
        ("*", "its name has no ending"),
    ):
        with pytest.raises(UsageError, match=rf"data(\.foo)?: {said}.* --format \(parquet, jsonl"):
            list_sources([f"{tmp_path}/{name}"])
    assert len(list_sources([f"{tmp_path}/data.foo"], any_name=True)) == 1
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "blob")
    assert [source.name for source in list_sources([f"{tmp_path}/blob"])] == ["blob"]


def test_what_must_be_named_in_a_folder_is_named(tmp_path: Path) -> None:
    """The same holds for files beside the Arrow files of a saved dataset."""
    for name in ("a.json", "deep/b.json.gz", "c.txt", ".hidden.txt", "d.py", "cache-1f.arrow"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for pattern in (str(tmp_path), f"file://{tmp_path}/"):
        with pytest.raises(UsageError, match="Name files of other formats, or pass --format"):
            list_sources([pattern])
    assert [source.name for source in list_sources([f"{tmp_path}/*.json"])] == ["a.json"]
    assert len(list_sources([str(tmp_path)], any_name=True)) == 5


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 5000])
def test_a_file_is_identified_by_size_and_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(fetch, "_HASHED_BYTES", 1000)
    data, path = bytes(number % 251 for number in range(size)), tmp_path / "x"
    path.write_bytes(data)
    identity = identify(SourceFile(url="/far/away", size=size), path)
    assert identity.model_dump(exclude_defaults=True) == {
        "url": "/far/away",
        "size": size,
        "version": f"xxh128:{xxhash.xxh3_128_hexdigest(data)}",
    }
    for wrong, said in (
        (tmp_path / "gone", "cannot be read: no such file"),
        (tmp_path, "cannot be read: is a directory"),
        (path, f"/far/x: {size} bytes, but 3 when the run began"),
    ):
        with pytest.raises(SourceError, match=said):
            identify(SourceFile(url="/far/x", size=3 if wrong == path else 0), wrong)


class TestOddFiles:
    def test_a_link_that_leads_nowhere_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "a.parquet").touch()
        (tmp_path / "b.parquet").symlink_to("nowhere")
        for pattern in (tmp_path, tmp_path / "*.parquet"):
            with pytest.raises(UsageError, match=r"No such file .*b\.parquet"):
                list_sources([str(pattern)])

    def test_a_linked_folder_is_looked_into_once(self, tmp_path: Path) -> None:
        for name in ("a/1", "b/2"):
            (tmp_path / name).parent.mkdir()
            (tmp_path / f"{name}.parquet").touch()
        (tmp_path / "a/more").symlink_to(tmp_path / "b")
        (tmp_path / "b/round").symlink_to(tmp_path / "a")
        found = [source.name for source in list_sources([str(tmp_path / "a")])]
        assert sorted(found) == ["1.parquet", "2.parquet"]

    def test_many_names_in_braces(self, tmp_path: Path) -> None:
        for number in range(2410):
            (tmp_path / f"{number:05}.parquet").touch()
        assert len(list_sources([str(tmp_path / "{00000..02409}.parquet")])) == 2410
        with pytest.raises(UsageError, match="braces for more than"):
            list_sources(["{0..2000000}.parquet"])

    def test_scratch_in_a_folder_of_sources_is_left_out(self, tree: Path) -> None:
        (tree / "2025" / SCRATCH_MARK).touch()
        assert found(tree, ["."]) == [
            "2024/deep/er/y.parquet",
            "2024/x.parquet",
            "a.parquet",
            "b.parquet",
        ]
        assert found(tree, ["2025"]) == ["2025/x.parquet"]  # a folder that is named is read
        assert found(tree, ["2025/*.parquet"]) == ["2025/x.parquet"]
        without = ["2024/deep/er/y.parquet", "2024/x.parquet", "a.parquet", "b.parquet"]
        assert found(tree, ["**/*.parquet"]) == without
        assert found(tree, ["*/*.parquet"]) == ["2024/x.parquet"]
        assert found(tree, ["2*"]) == without[:2]

    def test_what_is_no_regular_file_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "a.parquet").touch()
        os.mkfifo(tmp_path / "b.parquet")
        for pattern in (".", "*.parquet", "b.parquet", "{a,b}.parquet"):
            with pytest.raises(UsageError, match=r"b\.parquet: is a pipe, socket or device"):
                list_sources([str(tmp_path / pattern)])
        with pytest.raises(UsageError, match="/dev/null: is a pipe, socket or device"):
            list_sources(["/dev/null"])

    def test_one_file_by_two_names_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data/1.parquet").touch()
        (tmp_path / "link").symlink_to("data")
        (tmp_path / "one.parquet").symlink_to("data/1.parquet")
        for names, first in (
            (["*"], "link"),
            (["data", "link"], "link"),
            (["**/1.parquet"], "link"),
            (["{data,link}/*.parquet"], "link"),
            (["data", "one.parquet"], "one"),
        ):
            both = rf"{first}.*\.parquet is the same file as .*data/1\.parquet"
            with pytest.raises(UsageError, match=both):
                list_sources([str(tmp_path / name) for name in names])
        # A hard link is a file like any other; some file systems make them instead of copies.
        (tmp_path / "data/2.parquet").hardlink_to(tmp_path / "data/1.parquet")
        assert len(list_sources([str(tmp_path / "data")])) == 2
        (tmp_path / "data/2.parquet").unlink()
        assert len(list_sources([str(tmp_path / "link")])) == 1

    def test_dots_behind_a_link_lead_where_the_system_says(self, tmp_path: Path) -> None:
        (tmp_path / "far/deep").mkdir(parents=True)
        (tmp_path / "far/a.parquet").write_bytes(b"far")
        (tmp_path / "a.parquet").write_bytes(b"n")
        (tmp_path / "link").symlink_to("far/deep")
        (source,) = list_sources([f"{tmp_path}/link/../a.parquet"])
        assert (source.url, source.size) == (f"{tmp_path}/far/a.parquet", 3)

    @pytest.mark.parametrize(
        "pattern", ["", "file://", "~nobodyhere/x.parquet", "a" * 5000, "a\0b", "[a\0]"]
    )
    def test_impossible_names(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
    ) -> None:
        monkeypatch.chdir(tree)  # an empty pattern does not mean this folder
        with pytest.raises(UsageError):
            list_sources([pattern])

    def test_spaces_of_other_scripts_are_no_control_characters(self, tmp_path: Path) -> None:
        (tmp_path / "東\u3000京.parquet").touch()
        assert len(list_sources([str(tmp_path)])) == 1
