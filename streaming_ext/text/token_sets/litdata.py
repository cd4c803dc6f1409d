"""litData's chunks of ids, whose items are documents; `index.json` beside them tells the type."""

import json
from pathlib import Path

import numpy as np

from streaming_ext.errors import SourceError, UsageError, one_line
from streaming_ext.text.documents.options import IdOptions
from streaming_ext.text.token_sets.files.ids_of_file import IdsOfFile, held_ids
from streaming_ext.text.token_sets.files.set_file import SetFile, pin_of
from streaming_ext.text.token_sets.token_set import TokenSetFormat

_INDEX = "index.json"
_TYPES = {5: "uint16", 6: "uint32", 2: "int32", 3: "int64"}


class LitdataSet(TokenSetFormat):
    """See `TokenSetFormat`; a chunk that is compressed is refused."""

    name = "litdata"
    suffixes = (".bin",)

    def beside(self, path: Path) -> tuple[Path, ...]:
        """The index of all chunks."""
        return (path.with_name(_INDEX),)

    def pin(self, file: SetFile, options: IdOptions) -> str:
        """Of the index of all chunks."""
        return pin_of(file.folder, (_INDEX,))

    def glance(self, file: SetFile, options: IdOptions) -> None:
        """Read the index alone."""
        _type_of(file)

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """The items of a chunk, whose places must lie within it.

        Raises:
            UsageError: the index is missing, or of something else.
            SourceError: the chunk is cut short.
        """
        name, kind = file.name, np.dtype(_type_of(file)).newbyteorder("<")
        data = file.whole()
        items = int.from_bytes(data[:4], "little")
        head = 4 * (items + 2)
        places = (
            np.frombuffer(data, "<u4", items + 1, 4).astype(np.int64)
            if head <= len(data)
            else np.zeros(1, np.int64)
        )
        if (
            places[0] != head or places[-1] != len(data) or (places[1:] < places[:-1]).any()
            or ((places - head) % kind.itemsize).any()
        ):  # fmt: skip
            raise SourceError(
                f"{name}: {len(data):,} bytes, in which the places of its {items:,} items do not "
                f"lie as {kind.name} ids. It is cut short; copy it again."
            )
        starts = (places[:-1] - head) // kind.itemsize
        return held_ids(np.frombuffer(data, kind, offset=head), starts=np.unique(starts))


def _type_of(file: SetFile) -> str:
    index = file.beside(_INDEX)
    if index is None:
        raise UsageError(f"{file.name}: there is no {_INDEX} beside it, which tells types.")
    try:
        told = json.loads(index.whole())["config"]
        (form,) = told["data_format"]
        compression = told["compression"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{index.name}: no index of litData: {one_line(error)}.") from error
    kinds = {f"no_header_numpy:{code}": kind for code, kind in _TYPES.items()}
    if compression is not None or not isinstance(form, str) or form not in kinds:
        raise UsageError(
            f"{index.name}: chunks of {form!r}, compressed with {compression}; chunks of ids, "
            f"no_header_numpy of {', '.join(_TYPES.values())}, that are not compressed are read."
        )
    return kinds[form]
