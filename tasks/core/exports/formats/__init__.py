"""How a dataset lies in the files of other trainers: one file a format, found by its name."""

import platform
import zlib

import pyarrow as pa

from tasks.core.exports.contract import MakeFormat
from tasks.core.exports.formats.levanter import LevanterFormat
from tasks.core.exports.formats.litdata import LitdataFormat
from tasks.core.exports.formats.llmc import LlmcFormat, ModdedNanogptFormat
from tasks.core.exports.formats.megatron import MegatronFormat
from tasks.core.exports.formats.nanogpt import NanogptFormat
from tasks.core.exports.formats.nanotron import NanotronFormat
from tasks.core.exports.formats.olmo import OlmoFormat
from tasks.core.exports.formats.parquet import ParquetFormat
from tasks.core.exports.formats.webdataset import WebdatasetFormat

FORMATS: dict[str, MakeFormat] = {
    "megatron": MegatronFormat,
    "nanogpt": NanogptFormat,
    "llmc": LlmcFormat,
    "modded-nanogpt": ModdedNanogptFormat,
    "levanter": LevanterFormat,
    "litdata": LitdataFormat,
    "nanotron": NanotronFormat,
    "olmo": OlmoFormat,
    "parquet": ParquetFormat,
    "webdataset": WebdatasetFormat,
}


def made_with(name: str) -> dict[str, str]:
    """The versions of libraries here that decide bytes of a format which itself does not."""
    arrow = {"pyarrow": pa.__version__}
    libraries = {
        "olmo": arrow | {"zlib": zlib.ZLIB_RUNTIME_VERSION},
        "parquet": arrow,
        "webdataset": {"python": ".".join(platform.python_version_tuple()[:2])},  # its tarfile
    }
    return libraries.get(name, {})
