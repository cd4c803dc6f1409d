"""Patterns over the names that a server lists."""

import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.text.formats import has_known_suffix
from streaming_ext.text.sources.patterns import matching

FINEWEB = [f"data/train-{number:05}.parquet" for number in range(2410)]


def test_braces_for_all_files_of_a_large_dataset() -> None:
    assert matching(FINEWEB, "data/train-{00000..02409}.parquet", has_known_suffix) == FINEWEB


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a", ["a/x.parquet", "a/deep/y.parquet"]),
        ("a/", ["a/x.parquet", "a/deep/y.parquet"]),
        ("a/*", ["a/x.parquet", "a/notes.txt"]),
        ("*/x.parquet", ["a/x.parquet", "b/x.parquet", "a2/x.parquet"]),
        ("a/**/[xy].parquet", ["a/x.parquet", "a/deep/y.parquet"]),
        ("{a,b}/?.parquet", ["a/x.parquet", "b/x.parquet"]),
        ("a/notes.txt", ["a/notes.txt"]),
    ],
)
def test_patterns(pattern: str, expected: list[str]) -> None:
    names = (
        "a/x.parquet",
        "a/deep/y.parquet",
        "a/.hidden/z.parquet",
        "a/notes.txt",
        "b/x.parquet",
        "a2/x.parquet",
    )
    assert matching(names, pattern, has_known_suffix) == expected


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("a**.parquet", "can only be an entire path component"),
        ("{0..20000000}.parquet", "braces for more than 100,000 names"),
    ],
)
def test_what_is_no_pattern(pattern: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        matching(["a/x.parquet"], pattern, has_known_suffix)


def test_what_braces_name_must_exist() -> None:
    names = ["a/1.parquet", "a/2.parquet", "b/1.parquet"]
    assert matching(names, "{a,b}/1.parquet", has_known_suffix) == ["a/1.parquet", "b/1.parquet"]
    assert matching(names, "{a,b}", has_known_suffix) == names
    with pytest.raises(UsageError, match=r"the braces name a/3.parquet"):
        matching(names, "a/{1,2,3}.parquet", has_known_suffix)
    with pytest.raises(UsageError, match=r"the braces name c/\*"):
        matching(names, "{a,c}/*", has_known_suffix)
    assert matching(names, "{c,d}/*", has_known_suffix) == []
    assert matching(names, "{a,c}/1.*", has_known_suffix, each=False) == ["a/1.parquet"]


def test_a_space_is_no_wildcard() -> None:
    names = ["my data/1.jsonl", "my-data/1.jsonl", "my data/10.jsonl"]
    assert matching(names, "my data/?.jsonl", has_known_suffix) == names[:1]
