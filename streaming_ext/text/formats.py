"""The source formats, the format of a file, and which files can be cut."""

from contextlib import suppress
from pathlib import PurePath

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.spec import ReadOptions, TokenSetName
from streaming_ext.text.documents.source_format import SourceFormat
from streaming_ext.text.readers.arrow import ArrowFormat
from streaming_ext.text.readers.avro import AvroFormat
from streaming_ext.text.readers.cbor import CborFormat
from streaming_ext.text.readers.delimited import CsvFormat, TsvFormat
from streaming_ext.text.readers.json_files import JsonFormat, JsonLinesFormat
from streaming_ext.text.readers.parquet import ParquetFormat
from streaming_ext.text.readers.plain_text import PlainTextFormat
from streaming_ext.text.readers.webdataset import WebDatasetFormat
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from streaming_ext.text.token_sets.bare_ids import (
    LlmcSet,
    MegatronSet,
    NanogptSet,
    OlmoSet,
)
from streaming_ext.text.token_sets.mds_shards import MdsSet
from streaming_ext.text.token_sets.token_set import TokenSetFormat

FORMATS: list[SourceFormat] = [
    ParquetFormat(),
    JsonLinesFormat(),
    JsonFormat(),
    CborFormat(),
    ArrowFormat(),
    AvroFormat(),
    CsvFormat(),
    TsvFormat(),
    WebDatasetFormat(),
    PlainTextFormat(),
]
TOKEN_SETS: dict[TokenSetName, TokenSetFormat] = {
    "megatron": MegatronSet(),
    "olmo": OlmoSet(),
    "nanogpt": NanogptSet(),
    "llmc": LlmcSet(),
    "modded-nanogpt": LlmcSet(),
    "mds": MdsSet(),
}
BY_NAME = ReadOptions()
_PARQUET = b"PAR1"  # the first bytes of a Parquet file


def format_of(name: str, options: ReadOptions = BY_NAME) -> SourceFormat:
    """Return the format of a file: from the options, else from its suffix, else Parquet."""
    if options.ids is not None:
        return TOKEN_SETS[options.ids.set_format]
    by_option = [one for one in FORMATS if one.name == options.source_format]
    by_name = [one for one in FORMATS if name.endswith(one.suffixes)]
    return [*by_option, *by_name, FORMATS[0]][0]


def can_be_cut(source: SourceFile, options: ReadOptions) -> bool:
    """Return whether a file can be read from the middle; false if it cannot be read at all.

    Raises:
        StorageError: a server refuses or does not answer.
    """
    try:
        return format_of(source.url, options).can_be_cut(SourceFileBytes(source))
    except SourceError:  # damaged or gone: reported when its turn comes
        return False


def has_known_suffix(name: str) -> bool:
    """Return whether a file in a folder is taken as a source."""
    return any(one.is_in_folder(name) for one in FORMATS)


def require_a_format(source: SourceFile) -> None:
    """Refuse a file whose suffix names no format, unless it begins as a Parquet file does.

    Raises:
        UsageError: the file has no known format.
    """
    if any(source.url.endswith(one.suffixes) for one in FORMATS):
        return
    with suppress(SourceError):  # its own part reports it
        if SourceFileBytes(source).read(0, min(len(_PARQUET), source.size)) != _PARQUET:
            suffix = PurePath(source.name).suffix
            ending = f"the ending {suffix} names no format" if suffix else "its name has no ending"
            raise UsageError(
                f"{source.url}: {ending}, and it is no Parquet file. Pass --format "
                f"({', '.join(one.name for one in FORMATS)}), or leave the file out."
            )


def known_suffixes() -> str:
    """List the suffixes that folders are searched for, for display; without packed files."""
    *first, last = [one.suffixes[0] for one in FORMATS if not one.must_be_named]
    return f"{', '.join(first)} or {last}"
