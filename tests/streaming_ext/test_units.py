"""Amounts as users write them."""

import pytest
from pydantic import ByteSize, TypeAdapter

from streaming_ext.base.errors import UsageError
from streaming_ext.base.units import parse_bytes, parse_count, size_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, None), (5, 5), ("7", 7), ("100b", 100), ("64kb", 65_536), ("1.5GB", 3 * 2**29),
     ("2 tb", 2**41)],
)  # fmt: skip
def test_bytes(text, expected) -> None:
    assert parse_bytes(text, name="cache_limit") == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("100k", 10**5), ("64M", 64 * 10**6), ("1.5t", 15 * 10**11)]
)
def test_counts(text, expected) -> None:
    assert parse_count(text, name="epoch_size") == expected


@pytest.mark.parametrize("text", ["", "gb", "-1", 0, "1zb", "1e3", "1 0", "0.0kb"])
def test_nonsense_is_refused_by_name(text) -> None:
    with pytest.raises(UsageError, match="`cache_limit`"):
        parse_bytes(text, name="cache_limit")


@pytest.mark.parametrize("text", ["64MiB", "64MB", "1500KB", "1536KiB", "1TB", "1TiB", "1000001B"])
def test_a_size_is_shown_as_it_was_given(text: str) -> None:
    assert size_text(TypeAdapter(ByteSize).validate_python(text)) == text
