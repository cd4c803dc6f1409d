"""Pauses between the attempts of a request."""

import random

import pytest

from streaming_ext.base.errors import TransientStorageError
from streaming_ext.store.faults import ask
from streaming_ext.store.patience import Attempts, Retry, retry_after


def test_random_numbers_of_the_training_script_stay_its_own() -> None:
    """Retries run in our threads: the numbers that a script draws must not depend on them."""
    before = random.getstate()
    pauses = {Retry().pause(0) for _ in range(8)}
    assert random.getstate() == before
    assert len(pauses) > 1
    assert all(0.25 <= pause <= 0.5 for pause in pauses)


@pytest.mark.parametrize(("silent", "attempts"), [(False, 4), (True, 2)])
def test_attempts_are_counted(silent: bool, attempts: int) -> None:
    made: list[int] = []

    def fail() -> None:
        made.append(1)
        error = TransientStorageError("busy")
        error.silent = silent
        raise error

    retry = Retry(attempts=4, silences=2, first_pause=0.001)
    with pytest.raises(TransientStorageError, match=rf"busy \(tried {attempts} times\)") as caught:
        ask("try", fail, Attempts(retry))
    assert len(made) == attempts
    assert caught.value.silent == silent


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("", 0.0),
        ("-1", 0.0),
        ("٣", 0.0),
        ("9" * 400, 0.0),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 0.0),
    ],
)
def test_retry_after(header: str, seconds: float) -> None:
    assert retry_after({"retry-After": header}) == seconds
    assert retry_after({}) == 0.0
