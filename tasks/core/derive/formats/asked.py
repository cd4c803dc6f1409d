"""What is asked of a format that it cannot give: one error each, which says what can be had."""

from streaming_ext.base.errors import UsageError
from streaming_ext.format.spec import DatasetSpec
from tasks.core.derive.export_format import ExportOptions

_NOTHING_ASKED = ExportOptions()


def require_only(name: str, options: ExportOptions, *allowed: str) -> None:
    """Refuse options that a format has no use for.

    Args:
        name: of the format.
        options: as given.
        allowed: fields of these that may be given.

    Raises:
        UsageError: naming one that is of no use.
    """
    for field in ExportOptions.model_fields:
        given = getattr(options, field)
        if given != getattr(_NOTHING_ASKED, field) and field not in allowed:
            rest = ", ".join(map(_option, allowed)) or "no such option"
            raise UsageError(f"{_option(field)} is of no use with {name}, which takes {rest}.")


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def require_uint16(name: str, spec: DatasetSpec) -> None:
    """Refuse a vocabulary that 16 bits do not hold.

    Raises:
        UsageError: naming formats that do.
    """
    ids = spec.tokenizer.vocab_size
    if ids > 2**16:
        raise UsageError(
            f"{name} stores an id in 16 bits, so it holds 65,536 different ones; this dataset's "
            f"vocabulary has {ids:,}. Formats for larger ones: megatron, llmc, nanotron, olmo, "
            "litdata, levanter, parquet, webdataset."
        )
