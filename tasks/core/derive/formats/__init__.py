"""Formats of other trainers, found by name."""

from tasks.core.derive.export_format import ExportFormat
from tasks.core.derive.formats.litdata import LitdataFormat
from tasks.core.derive.formats.megatron import MegatronFormat
from tasks.core.derive.formats.nanogpt import LlmcFormat, ModdedNanogptFormat, NanogptFormat
from tasks.core.derive.formats.per_part import NanotronFormat, OlmoFormat, ParquetFormat
from tasks.core.derive.formats.webdataset import WebdatasetFormat

FORMATS: dict[str, type[ExportFormat]] = {
    form.name: form
    for form in (
        MegatronFormat,
        NanogptFormat,
        LlmcFormat,
        ModdedNanogptFormat,
        LitdataFormat,
        NanotronFormat,
        OlmoFormat,
        ParquetFormat,
        WebdatasetFormat,
    )
}
