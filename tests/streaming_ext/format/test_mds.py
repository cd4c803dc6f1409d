"""Shards have the bytes that MDSWriter writes, and damaged ones are refused."""

import bz2
import gzip
import json
import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.base.errors import CorruptDatasetError, UsageError
from streaming_ext.format.compression import Compression, decompress
from streaming_ext.format.mds import MdsFormat
from streaming_ext.format.mds_index import MAX_SHARD_BYTES
from streaming_ext.format.shard import Shard, token_dtype
from streaming_ext.training.stock import streaming
from tests.streaming_ext.build import build

RAW = bytes(range(256)) * 40
HASH = "0" * 32


def small_format(**changes: object) -> MdsFormat:
    values: dict[str, object] = {
        "sequence_length": 4,
        "dtype": "uint16",
        "shard_size": 230,
        "compression": "none",
    }
    return MdsFormat(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize(
    ("compression", "vocab_size", "num_samples"),
    [
        ("none", 60_000, 13),
        ("none", 70_000, 7),
        ("zstd", 70_000, 7),
        ("zstd:7", 60_000, 13),
        ("gz:6", 60_000, 13),
        ("bz2:1", 70_000, 7),
    ],
)
def test_the_bytes_of_mds_writer(tmp_path, compression, vocab_size, num_samples) -> None:
    """Compare each shard and the index for the same samples; the last shard is partial."""
    ids = np.random.default_rng(1).integers(0, 50_000, num_samples * 16 - 1).tolist()
    built = build(
        tmp_path / "ours",
        [[("train", ids)]],
        sequence_length=16,
        compression=compression,
        shard_samples=3,
        vocab_size=vocab_size,
    )
    form = built.manifest.spec.shard_format
    with streaming.MDSWriter(
        out=str(tmp_path / "stock"),
        columns={"tokens": form.encoding},
        compression=None if compression == "none" else compression,
        hashes=["xxh128"],
        size_limit=form.shard_size,
    ) as writer:
        for sample in built.streams["train"].reshape(num_samples, 16):
            writer.write({"tokens": sample})
    folders = (built.root / "train", tmp_path / "stock")
    ours, theirs = (json.loads((folder / "index.json").read_text()) for folder in folders)
    assert len(ours["shards"]) >= 3
    stored = []
    for folder, index in zip(folders, (ours, theirs), strict=True):
        stored.append([])
        for entry in index["shards"]:
            kept = entry["zip_data"] or entry["raw_data"]
            data = (folder / kept["basename"]).read_bytes()
            if compression == "gz:6":  # stock's gzip files hold the time of day
                data = gzip.decompress(data)
                entry["zip_data"].pop("hashes")
            stored[-1].append(data)
            for names in filter(None, (entry["raw_data"], entry["zip_data"])):
                names["basename"] = names["basename"].removeprefix("00000/")
    assert stored[0] == stored[1]
    assert ours == theirs


class TestHeader:
    def test_any_other_shard_is_refused(self) -> None:
        form = small_format()
        raw = form.header(2) + bytes(16)
        form.tokens_of(raw, 2)
        other = small_format(dtype="uint32", sequence_length=2)  # its samples have the same size
        assert other.sample_bytes == form.sample_bytes
        for data, samples in ((raw, 1), (raw, 3), (raw[:-1], 2), (raw + b"\0", 2), (b"", 2)):
            with pytest.raises(CorruptDatasetError, match=f"not a shard of {samples} samples"):
                form.tokens_of(data, samples)
        with pytest.raises(CorruptDatasetError, match="uint32:2"):
            other.tokens_of(raw, 2)
        for position in range(len(form.header(2))):
            damaged = bytearray(raw)
            damaged[position] ^= 1
            with pytest.raises(CorruptDatasetError, match="matching header"):
                form.tokens_of(bytes(damaged), 2)

    @given(
        length=st.integers(1, 5000),
        shard_size=st.integers(300, MAX_SHARD_BYTES),
        dtype=st.sampled_from(["uint16", "uint32"]),
    )
    def test_a_full_shard_is_the_largest_that_fits(self, length, shard_size, dtype) -> None:
        form = small_format(sequence_length=length, shard_size=shard_size, dtype=dtype)
        if form.raw_size(1) > shard_size:
            message = (
                rf"{shard_size} bytes cannot hold one sample of {length} tokens .*--shard-size"
            )
            with pytest.raises(UsageError, match=message):
                _ = form.samples_per_shard
        else:
            count = form.samples_per_shard
            assert form.raw_size(count) <= shard_size < form.raw_size(count + 1)


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(1, "uint16"), (50_257, "uint16"), (65_536, "uint16"), (65_537, "uint32")],
)
def test_token_dtype(vocab_size, dtype) -> None:
    assert token_dtype(vocab_size) == dtype
    assert vocab_size - 1 <= np.iinfo(dtype).max


class TestCompression:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("none", None),
            ("zstd", ("zstd", 3)),
            ("zstd:22", ("zstd", 22)),
            ("gz", ("gz", 9)),
            ("bz2:1", ("bz2", 1)),
        ],
    )
    def test_parse(self, text, expected) -> None:
        parsed = Compression.parse(text)
        assert (parsed and (parsed.codec, parsed.level)) == expected

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "unknown"),
            ("zip", "expected none or one of zstd, gz, bz2"),
            ("none:1", "unknown"),
            ("zstd:0", "from 1 to 22, got '0'"),
            ("zstd:", "from 1 to 22, got ''"),  # stock does not read this and the following ones
            ("zstd:01", "from 1 to 22, got '01'"),
            ("zstd:\u0663", "from 1 to 22"),
            ("zstd:23", "from 1 to 22"),
            ("gz:10", "from 1 to 9"),
            ("bz2:x", "from 1 to 9, got 'x'"),
        ],
    )
    def test_refused(self, text, said) -> None:
        with pytest.raises(UsageError, match=said):
            Compression.parse(text)

    @pytest.mark.parametrize("text", ["zstd:19", "gz:6", "bz2:1"])
    def test_round_trip(self, text) -> None:
        codec = Compression.parse(text)
        assert codec is not None
        packed = codec.compress(RAW)
        assert len(packed) < len(RAW) / 4
        assert packed == codec.compress(RAW)
        for name in (text, codec.codec):
            assert decompress(packed, codec=name, raw_size=len(RAW)) == RAW


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": zstd.compress,
    "gz": partial(gzip.compress, mtime=0),
    "bz2": bz2.compress,
}
PACKED = {codec: compress(RAW) for codec, compress in COMPRESS.items()}


@pytest.mark.parametrize("codec", PACKED)
class TestDecompress:
    """The output has the size that the index says, or there is an error."""

    @pytest.mark.parametrize("change", [-len(RAW) + 1, -1, 1, 10, 100_000])
    def test_another_size(self, codec, change) -> None:
        with pytest.raises(CorruptDatasetError):
            decompress(PACKED[codec], codec=codec, raw_size=len(RAW) + change)

    def test_a_bomb_is_not_unpacked(self, codec) -> None:
        bomb = COMPRESS[codec](bytes(64 * 2**20))
        assert len(bomb) < 2**17
        tracemalloc.start()
        try:
            with pytest.raises(CorruptDatasetError):
                decompress(bomb, codec=codec, raw_size=1000)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 2**20

    @settings(deadline=None)
    @given(st.data())
    def test_damage_never_gives_another_size(self, codec, data) -> None:
        damaged = bytearray(PACKED[codec])
        for _ in range(data.draw(st.integers(1, 4))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        try:
            found = decompress(bytes(damaged), codec=codec, raw_size=len(RAW))
        except CorruptDatasetError:
            return
        assert len(found) == len(RAW)

    def test_cut_off_anywhere(self, codec) -> None:
        packed = PACKED[codec]
        for end in range(len(packed)):
            with pytest.raises(CorruptDatasetError):
                decompress(packed[:end], codec=codec, raw_size=len(RAW))

    @pytest.mark.parametrize("more", [b"\0", b"xx", "again"])
    def test_something_behind_the_end(self, codec, more) -> None:
        rest = PACKED[codec] if isinstance(more, str) else more
        with pytest.raises(CorruptDatasetError):
            decompress(PACKED[codec] + rest, codec=codec, raw_size=len(RAW))

    def test_of_another_codec(self, codec) -> None:
        for other in {*PACKED} - {codec}:
            with pytest.raises(CorruptDatasetError, match=f"damaged {other}"):
                decompress(PACKED[codec], codec=other, raw_size=len(RAW))


def test_unknown_codec() -> None:
    with pytest.raises(CorruptDatasetError, match="'br:1'; this reader knows zstd, gz, bz2"):
        decompress(b"", codec="br:1", raw_size=0)


def shard(**changes: object) -> Shard:
    values: dict[str, object] = {
        "samples": 1,
        "raw_name": "00000/shard.00000.mds",
        "raw_bytes": 10,
        "raw_hash": HASH,
    }
    return Shard(**(values | changes))  # type: ignore[arg-type]


PACKED_FILE = {"zip_name": "00000/shard.00000.mds.zstd", "zip_bytes": 5, "zip_hash": "f" * 32}


class TestShard:
    def test_it_is_named_and_sized_by_what_is_stored(self) -> None:
        names = [small_format().shard_name("train", *at) for at in ((7, 12), (123_456, 100_000))]
        assert names == ["00007/shard.00012.mds", "123456/shard.100000.mds"]
        for name in names:
            raw, packed = shard(raw_name=name), shard(**PACKED_FILE)
            assert (raw.name, raw.size, raw.hash) == (name, 10, HASH)
            assert [packed.name, packed.size, packed.hash] == [*PACKED_FILE.values()]

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"samples": 0}, "samples"),
            ({"raw_bytes": -1}, "raw_bytes"),
            ({"raw_hash": "Z" * 32}, "raw_hash"),
            ({"zip_bytes": 5}, "zip_name, zip_bytes, zip_hash"),
            (PACKED_FILE | {"zip_bytes": None}, "zip_name, zip_bytes, zip_hash"),
            (PACKED_FILE | {"zip_bytes": 0}, "zip_bytes"),
            (PACKED_FILE | {"zip_name": "../x.gz"}, "zip_name"),
            *(
                ({"raw_name": name}, "raw_name")
                for name in (
                    "",
                    "/etc/passwd",
                    "../00000/shard.00000.mds",
                    "00000/shard.00000.mds/../../x",
                    "00000/shard.00000.mds\n",
                    "00000//shard.00000.mds",
                    "00000\\shard.00000.mds",
                    "00000/shard.00000.mds.ZST",
                    "0000/shard.00000.mds",
                    "shard.00000.mds",
                    "00000/shard.00000.mds\0",
                )
            ),
        ],
    )
    def test_what_is_no_shard_is_refused(self, change, said) -> None:
        with pytest.raises(ValueError, match=said):
            shard(**change)
