"""WebDataset: tars of samples; a document is a sample's `.txt`, or a field of its `.json`.

A sample consists of adjacent members whose paths are the same up to the first dot of the name.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.files import Stream, packed_suffixes
from streaming_ext.text.documents.objects import BadValueError, ParsedValue, decoded
from streaming_ext.text.documents.source_format import ObjectFormat
from streaming_ext.text.documents.tar_members import Member, tar_members

_TXT = ("text", "txt")  # columns that are the `.txt` of a sample, if it has one


class WebDatasetFormat(ObjectFormat):
    """Tars of samples, packed or not."""

    name = "webdataset"
    suffixes = packed_suffixes(".tar")
    has_records = False
    look_bytes = 2**24  # room for members such as images

    def values(self, stream: Stream, options: ReadOptions) -> Iterator[ParsedValue]:
        """See `ObjectFormat.values`."""
        for key, group in groupby(_keyed_members(stream), key=itemgetter(0)):
            sample = [(ending, member) for _, ending, member in group]
            value = _document(sample, options)
            size = sum(len(member.data or b"") for _, member in sample)
            yield ParsedValue(f"sample {key!r}", value, size)
            del value, sample  # they may be large


def _keyed_members(stream: Stream) -> Iterator[tuple[str, str, Member]]:
    """Yield the members of samples, each after the key of its sample and its ending."""
    for member in tar_members(stream, (".txt", ".json")):
        folder, slash, base = member.name.rpartition("/")
        stem, dot, ending = base.partition(".")
        if dot and not (base.startswith("__") and stem.endswith("__")):
            yield f"{folder}{slash}{stem}", ending.lower(), member


def _document(sample: Sequence[tuple[str, Member]], options: ReadOptions) -> object:
    """Return a sample's fields or fault; its `.json` is decoded only if a column needs it."""
    texts: dict[str, bytes] = {}
    for ending, member in sample:
        if ending in ("txt", "json"):
            if problem := "more than one" if ending in texts else member.problem:
                return BadValueError(f".{ending}: {problem}")
            texts[ending] = member.data or b""
    if not texts:
        return dict.fromkeys((ending for ending, _ in sample), b"")
    columns = {*options.columns, *options.compared}
    described: object = {}
    if "json" in texts and ("txt" not in texts or options.compared or columns - {*_TXT}):
        described = decoded(texts["json"])
    if "txt" not in texts or not isinstance(described, dict):
        return described
    if not columns & {*_TXT}:
        return {"txt": None, **described}
    try:
        return described | dict.fromkeys(_TXT, texts["txt"].decode())
    except UnicodeDecodeError as error:
        return BadValueError(f".txt: no valid UTF-8 ({error})")
