"""Checksums that no library of ours has, against published values and another implementation."""

import hashlib
import random
import zlib
from pathlib import Path

import google_crc32c
import pytest

from streaming_ext.store.crc import Crc
from streaming_ext.store.digests import Digest

# Of the catalogue of parametrised CRC algorithms: the nine digits.
PUBLISHED = {"crc32c": "e3069283", "crc64nvme": "ae8b14860a799888"}
ROW = {"crc32c": 4 * 4096, "crc64nvme": 8 * 4096}  # bytes that are taken at once


@pytest.mark.parametrize("kind", PUBLISHED)
def test_the_published_values(kind: str) -> None:
    crc = Crc(kind)
    crc.update(b"123456789")
    assert crc.digest().hex() == PUBLISHED[kind]
    assert int.from_bytes(Crc(kind).digest()) == 0


def slow_crc64(data: bytes) -> bytes:
    """Bit by bit, as it is defined."""
    value = 2**64 - 1
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x9A6C9329AC4BC9B5 if value & 1 else 0)
    return (value ^ 2**64 - 1).to_bytes(8, "big")


@pytest.mark.parametrize("kind", PUBLISHED)
@pytest.mark.parametrize("around", [0, 1, 2])
def test_any_length_in_any_pieces(kind: str, around: int) -> None:
    rng = random.Random(around)
    for length in {0, 1, 7, 8, 9, max(0, around * ROW[kind] + rng.randrange(-9, 9))}:
        data = rng.randbytes(length)
        expected = (
            slow_crc64(data) if kind == "crc64nvme" else google_crc32c.value(data).to_bytes(4)
        )
        crc, place = Crc(kind), 0
        while place < length:
            size = rng.randrange(1, ROW[kind] * 2)
            crc.update(data[place : place + size])
            place += size
        assert crc.digest() == expected
        assert crc.digest() == expected  # asked again


@pytest.mark.parametrize("kind", ["md5", "sha1", "sha256", "crc32", "crc32c", "crc64nvme"])
def test_of_files_whole_and_in_pieces(tmp_path: Path, kind: str) -> None:
    data = random.Random(3).randbytes(100_000)
    (tmp_path / "x").write_bytes(data)

    def one(piece: bytes) -> bytes:
        if kind == "crc32":
            return zlib.crc32(piece).to_bytes(4)
        if kind.startswith("crc"):
            crc = Crc(kind)
            crc.update(piece)
            return crc.digest()
        return hashlib.new(kind, piece).digest()

    assert Digest(kind=kind, value="").of(tmp_path / "x") == one(data).hex()
    pieces = [data[:40_000], data[40_000:50_000], data[50_000:]]
    composed = Digest(kind=kind, value="", count=3, sizes=(40_000, 10_000, 50_000))
    assert composed.of(tmp_path / "x") == one(b"".join(map(one, pieces))).hex()
