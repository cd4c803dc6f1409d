"""Reading files by URL: at most the limit, in time, and with the true reason of a failure."""

import threading
from pathlib import Path

import pytest

from streaming_ext.base.errors import StorageError, TransientStorageError
from streaming_ext.store.patience import Attempts, Retry
from streaming_ext.store.remote import FileMissingError, Remote, within
from tests.streaming_ext.build import Built


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_at_most_the_limit_is_read(packed: Built, scheme: str) -> None:
    whole = (packed.root / "manifest.json").read_bytes()
    source = Remote(url=f"{scheme}{packed.root}")
    assert source.read("manifest.json", limit=10) == whole[:11]
    assert source.read("manifest.json", limit=10**6) == whole
    with pytest.raises(FileMissingError):
        source.read("nothing", limit=1)


def test_a_scheme_that_nobody_knows() -> None:
    with pytest.raises((StorageError, ValueError), match="nosuch"):
        Remote(url="nosuch://x").read("y", limit=1)


def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "index.json").mkdir()
    with pytest.raises(FileMissingError, match="is missing"):
        Remote(url=str(tmp_path)).read("index.json", limit=1)


def test_secrets_stay_out_of_what_is_shown() -> None:
    options = {"key": "k", "secret": "planted-secret"}
    assert "planted" not in repr(Remote(url="s3://bucket/data", options=options))


class TestWithin:
    def test_errors_come_out_as_they_are(self) -> None:
        def fail() -> None:
            raise KeyError("x")

        with pytest.raises(KeyError):
            within(60, fail, what="it")
        assert within(60, lambda: 3, what="it") == 3

    def test_what_takes_too_long_says_what_went_wrong_meanwhile(self) -> None:
        ended = threading.Event()
        attempts = Attempts(Retry(first_pause=0.001))
        attempts.failed(TransientStorageError("503 Slow Down"))
        with pytest.raises(TransientStorageError, match=r"it did not come .* 503 Slow Down"):
            within(0.2, ended.wait, what="it", attempts=attempts)
        ended.set()
