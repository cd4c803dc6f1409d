"""nanoGPT's `.bin`: bare ids, with an end-of-text id behind each document."""

from streaming_ext.format.shard import token_dtype
from streaming_ext.format.spec import IdOptions
from streaming_ext.text.token_sets.files.ids_of_file import IdsOfFile, raw_ids
from streaming_ext.text.token_sets.files.set_file import SetFile
from streaming_ext.text.token_sets.token_set import TokenSetFormat


class NanogptSet(TokenSetFormat):
    """See `TokenSetFormat`."""

    name = "nanogpt"
    suffixes = (".bin",)
    is_cut = True
    ends_with_eot = True
    tells_type = False

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """All of the file is ids."""
        return raw_ids(file, options.dtype or token_dtype(options.vocab_size))
