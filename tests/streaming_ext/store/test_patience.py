"""Pauses between the attempts of a request."""

import random

import pytest

from streaming_ext.store.patience import Retry, retry_after

THEN = "Thu, 01 Jan 2026 00:00:10"


def test_random_numbers_of_the_training_script_stay_its_own() -> None:
    """Retries happen in threads of ours: what a script draws must not depend on them."""
    before = random.getstate()
    pauses = {Retry().pause(0) for _ in range(8)}
    assert random.getstate() == before
    assert len(pauses) > 1
    assert all(0.25 <= pause <= 0.5 for pause in pauses)


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1.5", None),
        ("²", None),
        ("٣", None),
        ("9" * 400, None),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 20.0),
        ("Thu, 01 Jan 2026 00:00:30 -0000", 20.0),
        ("Thu, 01 Jan 2026 00:00:30", 20.0),
        ("Thu, 01 Jan 2026 01:00:30 +0100", 20.0),
        ("Thu, 01 Jan 2026 00:00:00 GMT", 0.0),
        ("Thu, 01 Jan 99999999999999999999 00:00:00 GMT", None),
        ("Thu, 01 Jan 2026 00:00:00 +9999", None),
        ("Thu, 32 Jan 2026 99:00:00 GMT", None),
    ],
)
@pytest.mark.parametrize("zone", [" GMT", " -0000", ""])
def test_retry_after(asked: str, seconds: float | None, zone: str) -> None:
    """By the server's clock: ours does not matter."""
    assert retry_after({"retry-After": asked, "DATE": f"{THEN}{zone}"}) == seconds


def test_retry_after_by_a_broken_clock() -> None:
    date = "Thu, 01 Jan 2026 00:00:30 GMT"
    assert retry_after({"Retry-After": date, "Date": "today"}) is None
    assert retry_after({"Retry-After": date}) == 0.0
    assert retry_after({}) is None
