"""Formats of other trainers: one file per format, found by name."""

import platform
import zlib

import pyarrow as pa

from tasks.core.derive.export_format import ExportFormat
from tasks.core.derive.formats.levanter import LevanterFormat
from tasks.core.derive.formats.litdata import LitdataFormat
from tasks.core.derive.formats.llmc import LlmcFormat, ModdedNanogptFormat
from tasks.core.derive.formats.megatron import MegatronFormat
from tasks.core.derive.formats.nanogpt import NanogptFormat
from tasks.core.derive.formats.nanotron import NanotronFormat
from tasks.core.derive.formats.olmo import OlmoFormat
from tasks.core.derive.formats.parquet import ParquetFormat
from tasks.core.derive.formats.webdataset import WebdatasetFormat

_ALL: tuple[type[ExportFormat], ...] = (
    MegatronFormat,
    NanogptFormat,
    LlmcFormat,
    ModdedNanogptFormat,
    LevanterFormat,
    LitdataFormat,
    NanotronFormat,
    OlmoFormat,
    ParquetFormat,
    WebdatasetFormat,
)
FORMATS = {form.name: form for form in _ALL}


def made_with(name: str) -> dict[str, str]:
    """The versions of libraries that decide bytes of a format."""
    arrow = {"pyarrow": pa.__version__}
    libraries = {
        "olmo": arrow | {"zlib": zlib.ZLIB_RUNTIME_VERSION},
        "parquet": arrow,
        "webdataset": {"python": ".".join(platform.python_version_tuple()[:2])},  # its tarfile
    }
    return libraries.get(name, {})
