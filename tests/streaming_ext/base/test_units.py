"""Amounts as users write them: bytes, tokens, and sizes that are shown as they were given."""

import pytest
from pydantic import ByteSize, TypeAdapter

from streaming_ext.base.errors import UsageError
from streaming_ext.base.units import parse_bytes, parse_count, size_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        (5, 5),
        ("7", 7),
        ("100b", 100),
        ("64kb", 65_536),
        ("1.5GB", 3 * 2**29),
        ("2 tb", 2**41),
    ],
)
def test_amounts_of_bytes(text, expected) -> None:
    assert parse_bytes(text, name="cache_limit") == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("100k", 10**5), ("64M", 64 * 10**6), ("1.5t", 15 * 10**11)]
)
def test_amounts_of_tokens(text, expected) -> None:
    assert parse_count(text, name="epoch_size") == expected


@pytest.mark.parametrize("text", ["", "gb", "-1", 0, "1zb", "1e3", "1 0", "0.0kb"])
def test_no_amounts_are_refused_by_name(text) -> None:
    with pytest.raises(UsageError, match="`cache_limit`"):
        parse_bytes(text, name="cache_limit")


@pytest.mark.parametrize("text", ["64MiB", "1500KB", "1TB", "1TiB", "1000001B"])
def test_a_size_is_shown_as_it_was_given(text) -> None:
    assert size_text(TypeAdapter(ByteSize).validate_python(text)) == text
