"""Rows of one length as members of a tar, beside those that are made of any length."""

import io
import tarfile

import numpy as np
import pytest

from tasks.core.exports.containers import npy_rows, tar
from tasks.core.exports.containers.npy_rows import NpyRows


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
@pytest.mark.parametrize("length", [1, 7, 192, 2048])
@pytest.mark.parametrize("at_once", [1, 3000, 2**20])
def test_they_are_those_of_any_length(
    dtype: str, length: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npy_rows, "_AT_ONCE", at_once)
    rows = NpyRows("train-00003-", length, np.dtype(dtype))
    for first, count in [(0, 5), (999_999_999_997, 3), (8, 1), (3, 0)]:  # over and over again
        ids = np.arange(first, first + count * length).astype(dtype)
        found = b"".join(map(bytes, rows.members(first, ids)))
        arrays = tar.npy_files(ids, np.arange(1, count + 1) * length)
        numbers = first + np.arange(count)
        expected = tar.content_of(tar.members("train-00003-", numbers, ".npy", arrays))
        assert found == bytes(expected)
        assert len(found) == count * rows.size


def test_tarfile_and_numpy_read_them() -> None:
    ids = np.arange(30, dtype="<u2")
    content = b"".join([*map(bytes, NpyRows("a-", 10, ids.dtype).members(7, ids)), tar.END])
    with tarfile.open(fileobj=io.BytesIO(content)) as opened:
        names = opened.getnames()
        read = [np.load(io.BytesIO(opened.extractfile(name).read())) for name in names]  # type: ignore[union-attr]
    assert names == [f"a-{number:012}.npy" for number in (7, 8, 9)]
    assert np.concatenate(read).tolist() == ids.tolist()
