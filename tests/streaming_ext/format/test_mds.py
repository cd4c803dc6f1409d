"""Shards are what MDSWriter writes, and no shard is believed beyond what it says."""

import bz2
import gzip
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.base.errors import CorruptDatasetError, UsageError
from streaming_ext.format.compression import Compression, decompress
from streaming_ext.format.mds import MdsFormat
from streaming_ext.format.mds_index import MAX_SHARD_BYTES
from streaming_ext.format.schema import content_hash
from streaming_ext.format.shard import Shard, TokenDtype, token_dtype

RAW = bytes(range(256)) * 40
HASH = "0" * 32


def small_format(**changes: object) -> MdsFormat:
    values: dict[str, object] = {
        "sequence_length": 4, "dtype": "uint16", "shard_size": 230, "compression": "none",
    }  # fmt: skip
    return MdsFormat(**(values | changes))  # type: ignore[arg-type]


class TestAgainstMDSWriter:
    """Byte for byte, on the same samples."""

    pytestmark = pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning"
    )

    @staticmethod
    def written_by_stock(
        folder: Path, form: MdsFormat, samples: np.ndarray
    ) -> tuple[list[bytes], dict[str, object]]:
        """The stored files in order, and the index."""
        pytest.importorskip("torch")
        from streaming_ext.training.stock import streaming

        writer = streaming.MDSWriter(
            out=str(folder),
            columns={"tokens": form.encoding},
            compression=None if form.compression == "none" else form.compression,
            hashes=["xxh128"],
            size_limit=form.shard_size,
        )
        with writer:
            for sample in samples:
                writer.write({"tokens": sample})
        index = json.loads((folder / "index.json").read_text())
        names = [(entry["zip_data"] or entry["raw_data"])["basename"] for entry in index["shards"]]
        return [(folder / name).read_bytes() for name in names], index

    @pytest.mark.parametrize(
        ("compression", "dtype", "num_samples"),
        [
            ("none", "uint16", 13),
            ("none", "uint32", 7),
            ("zstd", "uint32", 7),
            ("zstd:7", "uint16", 13),
            ("gz:6", "uint16", 13),
            ("bz2:9", "uint32", 7),
        ],
    )
    def test_same_bytes(
        self, tmp_path: Path, compression: str, dtype: TokenDtype, num_samples: int
    ) -> None:
        form = small_format(
            sequence_length=16, dtype=dtype, shard_size=400, compression=compression
        )
        rng = np.random.default_rng(1)
        # samples: (num_samples, sequence_length)
        samples = rng.integers(0, 50_000, (num_samples, 16)).astype(dtype)
        stored, index = self.written_by_stock(tmp_path / "stock", form, samples)

        codec = Compression.parse(compression)
        ours, shards = [], []
        for number, first in enumerate(range(0, num_samples, form.samples_per_shard)):
            chosen = samples[first : first + form.samples_per_shard]
            raw = form.header(len(chosen)) + chosen.tobytes()
            packed = raw if codec is None else codec.compress(raw)
            name = form.shard_name("train", 0, number)
            sizes = {"samples": len(chosen), "raw_bytes": len(raw), "raw_hash": content_hash(raw)}
            if codec is not None:
                sizes |= {"zip_name": f"{name}.{codec.codec}", "zip_bytes": len(packed)}
                sizes |= {"zip_hash": content_hash(packed)}
            assert len(raw) == form.raw_size(len(chosen)) <= form.shard_size
            ours.append(packed)
            shards.append(shard(raw_name=name, **sizes))
        assert len(ours) >= 3
        assert num_samples % form.samples_per_shard  # the last one is partial

        made = json.loads(form.index(shards))
        if codec is not None and codec.codec == "gz":  # stock gzip holds the time of day
            stored = [gzip.decompress(data) for data in stored]
            assert [gzip.decompress(data) for data in ours] == stored
            for entry in [*made["shards"], *index["shards"]]:  # type: ignore[misc]
                entry["zip_data"].pop("hashes")
        else:
            assert ours == stored
        for entry in made["shards"]:
            for data in filter(None, (entry["raw_data"], entry["zip_data"])):
                data["basename"] = data["basename"].removeprefix("00000/")
        assert made == index


class TestHeader:
    @pytest.mark.parametrize("num_samples", [1, 2, 3])
    def test_the_rest_of_the_file_is_the_samples(self, num_samples: int) -> None:
        form = small_format()
        ids = np.arange(num_samples * 4, dtype=np.uint16)
        raw = form.header(num_samples) + ids.tobytes()
        found = form.tokens_of(raw, num_samples)
        assert found.shape == (num_samples, 4)
        assert found.dtype == np.uint16
        assert found.reshape(-1).tolist() == list(range(num_samples * 4))
        assert not found.flags.owndata  # a view

    def test_any_other_shard_is_refused(self) -> None:
        form = small_format()
        raw = form.header(2) + bytes(16)
        form.tokens_of(raw, 2)
        other = small_format(dtype="uint32", sequence_length=2)  # of the same size
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
    def test_a_full_shard_is_the_largest_that_fits(
        self, length: int, shard_size: int, dtype: TokenDtype
    ) -> None:
        form = small_format(sequence_length=length, shard_size=shard_size, dtype=dtype)
        if form.raw_size(1) > shard_size:
            with pytest.raises(UsageError, match="cannot hold one sample"):
                _ = form.samples_per_shard
        else:
            count = form.samples_per_shard
            assert form.raw_size(count) <= shard_size < form.raw_size(count + 1)

    def test_a_shard_too_small_for_a_sample_says_so(self) -> None:
        message = r"203 bytes cannot hold one sample of 4 tokens \(8 bytes\).*--shard-size"
        with pytest.raises(UsageError, match=message):
            _ = small_format(shard_size=203).samples_per_shard


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(1, "uint16"), (50_257, "uint16"), (65_536, "uint16"), (65_537, "uint32")],
)
def test_token_dtype(vocab_size: int, dtype: str) -> None:
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
    def test_parse(self, text: str, expected: tuple[str, int] | None) -> None:
        parsed = Compression.parse(text)
        assert (parsed and (parsed.codec, parsed.level)) == expected

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "unknown"),
            ("zip", "expected none or one of zstd, gz, bz2"),
            ("none:1", "unknown"),
            ("zstd:0", "from 1 to 22, got '0'"),
            ("zstd:", "from 1 to 22, got ''"),  # what follows, stock does not read
            ("zstd:01", "from 1 to 22, got '01'"),
            ("zstd:\u0663", "from 1 to 22"),
            ("zstd:23", "from 1 to 22"),
            ("gz:10", "from 1 to 9"),
            ("bz2:x", "from 1 to 9, got 'x'"),
        ],
    )
    def test_refused(self, text: str, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            Compression.parse(text)

    @pytest.mark.parametrize("text", ["zstd:19", "gz:6", "bz2:1"])
    def test_round_trip(self, text: str) -> None:
        codec = Compression.parse(text)
        assert codec is not None
        packed = codec.compress(RAW)
        assert len(packed) < len(RAW) / 4
        assert packed == codec.compress(RAW)
        assert decompress(packed, codec=text, raw_size=len(RAW)) == RAW
        assert decompress(packed, codec=codec.codec, raw_size=len(RAW)) == RAW

    def test_the_level_is_used(self) -> None:
        noise = np.random.default_rng(0).integers(0, 4, 50_000).astype(np.uint8).tobytes()
        sizes = []
        for text in ("zstd:1", "zstd:19"):
            codec = Compression.parse(text)
            assert codec is not None
            sizes.append(len(codec.compress(noise)))
        assert sizes[1] < sizes[0]


PACKED = {
    "zstd": zstd.compress(RAW, 3, 1),
    "gz": gzip.compress(RAW, mtime=0),
    "bz2": bz2.compress(RAW),
}


@pytest.mark.parametrize("codec", PACKED)
class TestDecompress:
    """What comes out has the size that the index says, or is an error."""

    @pytest.mark.parametrize("change", [-len(RAW) + 1, -1, 1, 10, 100_000])
    def test_another_size(self, codec: str, change: int) -> None:
        with pytest.raises(CorruptDatasetError):
            decompress(PACKED[codec], codec=codec, raw_size=len(RAW) + change)

    def test_a_bomb_is_not_unpacked(self, codec: str) -> None:
        bomb = {
            "zstd": lambda data: zstd.compress(data, 3, 1),
            "gz": gzip.compress,
            "bz2": bz2.compress,
        }[codec](bytes(64 * 2**20))
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
    def test_damage_never_gives_another_size(self, codec: str, data: st.DataObject) -> None:
        damaged = bytearray(PACKED[codec])
        for _ in range(data.draw(st.integers(1, 4))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        try:
            found = decompress(bytes(damaged), codec=codec, raw_size=len(RAW))
        except CorruptDatasetError:
            return
        assert len(found) == len(RAW)

    def test_cut_off_anywhere(self, codec: str) -> None:
        packed = PACKED[codec]
        for end in range(len(packed)):
            with pytest.raises(CorruptDatasetError):
                decompress(packed[:end], codec=codec, raw_size=len(RAW))

    @pytest.mark.parametrize("more", [b"\0", b"xx", "again"])
    def test_something_behind_the_end(self, codec: str, more: bytes | str) -> None:
        rest = PACKED[codec] if isinstance(more, str) else more
        with pytest.raises(CorruptDatasetError):
            decompress(PACKED[codec] + rest, codec=codec, raw_size=len(RAW))

    def test_of_another_codec(self, codec: str) -> None:
        for other in {*PACKED} - {codec}:
            with pytest.raises(CorruptDatasetError, match=f"damaged {other}"):
                decompress(PACKED[codec], codec=other, raw_size=len(RAW))


def test_unknown_codec() -> None:
    with pytest.raises(CorruptDatasetError, match="'br:1'; this reader knows zstd, gz, bz2"):
        decompress(b"", codec="br:1", raw_size=0)


def shard(**changes: object) -> Shard:
    values: dict[str, object] = {
        "samples": 1, "raw_name": "00000/shard.00000.mds", "raw_bytes": 10, "raw_hash": HASH,
    }  # fmt: skip
    return Shard(**(values | changes))  # type: ignore[arg-type]


PACKED_FILE = {"zip_name": "00000/shard.00000.mds.zstd", "zip_bytes": 5, "zip_hash": "f" * 32}


class TestShard:
    def test_names(self) -> None:
        names = [small_format().shard_name("train", *at) for at in ((7, 12), (123_456, 100_000))]
        assert names == ["00007/shard.00012.mds", "123456/shard.100000.mds"]
        assert [shard(raw_name=name).name for name in names] == names

    def test_what_is_stored(self) -> None:
        raw, packed = shard(), shard(**PACKED_FILE)
        assert (raw.name, raw.size, raw.hash) == ("00000/shard.00000.mds", 10, HASH)
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
    def test_what_is_no_shard_is_refused(self, change: dict[str, object], said: str) -> None:
        with pytest.raises(ValueError, match=said):
            shard(**change)
