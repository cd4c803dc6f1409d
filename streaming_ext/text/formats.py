"""The source formats that there are, and the one of a file."""

from streaming_ext.format.spec import ReadOptions, TokenSetName
from streaming_ext.text.documents.source_format import SourceFormat
from streaming_ext.text.readers.arrow import ArrowFormat
from streaming_ext.text.readers.avro import AvroFormat
from streaming_ext.text.readers.cbor import CborFormat
from streaming_ext.text.readers.delimited import CsvFormat, TsvFormat
from streaming_ext.text.readers.json_array import JsonFormat
from streaming_ext.text.readers.json_lines import JsonLinesFormat
from streaming_ext.text.readers.parquet import ParquetFormat
from streaming_ext.text.readers.plain_text import PlainTextFormat
from streaming_ext.text.readers.webdataset import WebDatasetFormat
from streaming_ext.text.token_sets.bare_ids import LlmcSet, NanogptSet, NanotronSet, OlmoSet
from streaming_ext.text.token_sets.litdata import LitdataSet
from streaming_ext.text.token_sets.mds import MdsSet
from streaming_ext.text.token_sets.megatron import MegatronSet
from streaming_ext.text.token_sets.token_set import TokenSetFormat
from streaming_ext.text.token_sets.webdataset import WebdatasetSet

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
    "litdata": LitdataSet(),
    "nanotron": NanotronSet(),
    "olmo": OlmoSet(),
    "nanogpt": NanogptSet(),
    "llmc": LlmcSet(),
    "modded-nanogpt": LlmcSet(),
    "webdataset": WebdatasetSet(),
    "mds": MdsSet(),
}


def format_of(name: str, options: ReadOptions | None = None) -> SourceFormat:
    """The format of a file: the one that is asked for, else by the end of the name.

    The first one where that tells nothing.
    """
    if options is not None and options.ids is not None:
        return TOKEN_SETS[options.ids.set_format]
    named = None if options is None else options.source_format
    for one in FORMATS:
        if one.name == named:
            return one
    for one in FORMATS:
        if name.endswith(one.suffixes):
            return one
    return FORMATS[0]


def has_known_suffix(name: str) -> bool:
    """Whether a file in a folder is taken for a source."""
    return any(one.is_in_folder(name) for one in FORMATS)


def must_be_named(name: str) -> bool:
    """Whether a file has the name of a format that folders hold for other reasons too."""
    return not has_known_suffix(name) and any(name.endswith(one.suffixes) for one in FORMATS)


def known_suffixes() -> str:
    """The names that are looked for in folders, for people; packed ones left out."""
    plain = [s for one in FORMATS for s in one.suffixes if s.count(".") == 1]
    *first, last = [suffix for suffix in plain if has_known_suffix(f"x{suffix}")]
    return f"{', '.join(first)} or {last}" if first else last
