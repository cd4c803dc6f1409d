"""Patterns over the names that a server lists, and URLs that are none."""

import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.text.formats import has_known_suffix
from streaming_ext.text.listing import list_sources
from streaming_ext.text.sources.objects import bucket_of
from streaming_ext.text.sources.patterns import alternatives, matching

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
    names = ("a/x.parquet", "a/deep/y.parquet", "a/.hidden/z.parquet", "a/notes.txt",
             "b/x.parquet", "a2/x.parquet")  # fmt: skip
    assert matching(names, pattern, has_known_suffix) == expected


def test_a_double_star_is_a_whole_name() -> None:
    with pytest.raises(UsageError, match="can only be an entire path component"):
        matching(["a/x.parquet"], "a**.parquet", has_known_suffix)


def test_braces_for_too_many_names() -> None:
    with pytest.raises(UsageError, match="braces for more than 100,000 names"):
        alternatives("{0..20000000}.parquet")


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


@pytest.mark.parametrize(
    "key", ["my data/part-?.jsonl", "a?.jsonl", "a b#c.jsonl", "a//b.jsonl", "/a", "a/", ""]
)
def test_keys_are_taken_to_the_letter(key: str) -> None:
    assert bucket_of(f"s3://bucket/{key}")[1] == key


def test_a_space_is_no_wildcard() -> None:
    names = ["my data/1.jsonl", "my-data/1.jsonl", "my data/10.jsonl"]
    assert matching(names, "my data/?.jsonl", has_known_suffix) == names[:1]


@pytest.mark.parametrize(
    "url", ["s3://b/a/../c", "s3://b/a\nb", "s3://", "s3:///x", "s3://k:s@b/x"]
)
def test_urls_that_name_no_object(url: str) -> None:
    with pytest.raises(UsageError):
        bucket_of(url)


@pytest.mark.parametrize(
    "url",
    ["https://h:99999999/x.parquet", "https://[::1/x", "https://exa mple/x", "https://a..b/x",
     "https:///x.parquet", "https://\0/x", "https://xn--a/x", "https://127.0.0.1:9/\udc80",
     "https://h:-1/x"],
)  # fmt: skip
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(UsageError):
        list_sources([url])
