"""OLMo-core's and dolma's `.npy`: bare ids in the smallest type, an end-of-text id behind each."""

import numpy as np

from streaming_ext.base.errors import UsageError
from streaming_ext.format.spec import IdOptions
from streaming_ext.text.token_sets.files.ids_of_file import IdsOfFile, raw_ids
from streaming_ext.text.token_sets.files.set_file import SetFile
from streaming_ext.text.token_sets.token_set import TokenSetFormat

_MAGIC = b"\x93NUMPY"


class OlmoSet(TokenSetFormat):
    """See `TokenSetFormat`; lists of documents beside the files are not needed."""

    name = "olmo"
    suffixes = (".npy",)
    is_cut = True
    ends_with_eot = True
    tells_type = False

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """All of the file is ids: it has not the head of NumPy's own files."""
        name = file.name
        ids = raw_ids(file, options.dtype or np.min_scalar_type(options.vocab_size - 1).name)
        if file.read(0, min(len(_MAGIC), file.size)) == _MAGIC:
            raise UsageError(
                f"{name}: made by numpy.save; files of OLMo-core have no head. Write the array "
                "with `array.tofile(...)` instead."
            )
        return ids
