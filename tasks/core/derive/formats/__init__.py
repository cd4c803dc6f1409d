"""The formats of other trainers, by name."""

from tasks.core.derive.export_format import ExportFormat
from tasks.core.derive.formats.litdata import LitdataExport
from tasks.core.derive.formats.megatron import MegatronExport
from tasks.core.derive.formats.nanogpt import LlmcExport, ModdedNanogptExport, NanogptExport
from tasks.core.derive.formats.per_part import NanotronExport, OlmoExport, ParquetExport
from tasks.core.derive.formats.webdataset import WebdatasetExport

FORMATS: dict[str, type[ExportFormat]] = {
    form.name: form
    for form in (
        MegatronExport,
        NanogptExport,
        LlmcExport,
        ModdedNanogptExport,
        LitdataExport,
        NanotronExport,
        OlmoExport,
        ParquetExport,
        WebdatasetExport,
    )
}
