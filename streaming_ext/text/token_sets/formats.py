"""The formats of token sets that there are, by name."""

from streaming_ext.text.documents.options import TokenSetName
from streaming_ext.text.token_sets.litdata import LitdataSet
from streaming_ext.text.token_sets.llmc import LlmcSet
from streaming_ext.text.token_sets.mds import MdsSet
from streaming_ext.text.token_sets.megatron import MegatronSet
from streaming_ext.text.token_sets.nanogpt import NanogptSet
from streaming_ext.text.token_sets.nanotron import NanotronSet
from streaming_ext.text.token_sets.olmo import OlmoSet
from streaming_ext.text.token_sets.token_set import TokenSetFormat
from streaming_ext.text.token_sets.webdataset import WebdatasetSet

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


def token_set_format(name: TokenSetName) -> TokenSetFormat:
    """The format of a name."""
    return TOKEN_SETS[name]
