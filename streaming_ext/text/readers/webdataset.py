"""WebDataset: tars of samples; a document is a sample's `.txt`, or a field of its `.json`.

A sample is the members next to each other whose paths are the same up to the first dot of the name.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.document_rows import DocumentBatch, DocumentRows
from streaming_ext.text.documents.files import SourceBytes, Span
from streaming_ext.text.documents.kept_values import option_of
from streaming_ext.text.documents.objects import (
    BadValueError,
    Texts,
    Value,
    batches_of_values,
    check_fields,
    compared_of,
    decoded,
    require_object,
    text_of,
    value_at,
)
from streaming_ext.text.documents.source_format import FileLook, SourceFormat
from streaming_ext.text.documents.streams import (
    EndOfHeadError,
    Stream,
    open_stream,
    packed_suffixes,
)
from streaming_ext.text.documents.tar_members import Member, tar_members

_LOOK_SAMPLES = 20
_LOOK_BYTES = 2**24  # images and the like among them
_TEXT_ENDINGS = ("txt", "json")
_MOST_OTHERS = 20  # endings of a sample that are remembered for a message
_TXT = ("text", "txt")  # columns that are the `.txt` of a sample, where it has one


@dataclass(slots=True)
class _Sample:
    """The members of one key: those of text by their endings, and the endings of others."""

    key: str
    byte: int
    members: dict[str, Member] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    problem: str = ""

    @property
    def size(self) -> int:
        """Bytes of its texts."""
        return sum(len(member.data or b"") for member in self.members.values())


class WebDatasetFormat(SourceFormat):
    """Tars of samples, packed or not."""

    name = "webdataset"
    suffixes = packed_suffixes(".tar")
    has_records = False

    def documents(
        self, file: SourceBytes, rows: DocumentRows, span: Span | None
    ) -> Iterator[DocumentBatch]:
        """See `SourceFormat.documents`; messages name sample and byte."""
        with open_stream(file) as stream:
            values = (
                Value(f"sample {one.key!r}, byte {one.byte}", one, one.size)
                for one in _samples(stream, rows.where)
            )
            yield from batches_of_values(
                values, rows, texts_of=_texts, fraction=lambda: stream.fraction
            )

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook | None:
        """See `SourceFormat.look`: the first samples tell what there is."""
        samples: list[_Sample] = []
        with suppress(EndOfHeadError), open_stream(file, head=_LOOK_BYTES) as stream:
            samples.extend(islice(_samples(stream, file.name), _LOOK_SAMPLES))
        _check(samples, options, where=file.name)
        return super().look(file, options)


def _samples(stream: Stream, where: str) -> Iterator[_Sample]:
    sample: _Sample | None = None
    for member in tar_members(stream, where, (".txt", ".json")):
        folder, slash, base = member.name.rpartition("/")
        stem, dot, ending = base.partition(".")
        if not dot or (base.startswith("__") and stem.endswith("__")):
            continue
        key, ending = f"{folder}{slash}{stem}", ending.lower()
        if sample is None or sample.key != key:
            if sample is not None:
                yield sample
            sample = _Sample(key, member.byte)
        if ending in _TEXT_ENDINGS:
            if ending in sample.members:
                sample.problem = f"more than one .{ending}"
            if member.problem:
                sample.problem = f".{ending}: {member.problem}"
            sample.members[ending] = member
        elif len(sample.others) < _MOST_OTHERS:
            sample.others.add(ending)
    if sample is not None:
        yield sample


def _texts(sample: _Sample, options: ReadOptions) -> Texts:
    """The texts of a sample."""
    if sample.problem:
        raise BadValueError(sample.problem)
    described = sample.members.get("json")
    txt = sample.members.get("txt")
    # an object is decoded only where something is asked of it
    asked = bool(options.compared) or txt is None or any(c not in _TXT for c in options.columns)
    fields = require_object(decoded(described.data or b"")) if described and asked else {}
    texts = [
        _text(txt.data or b"")
        if txt and column in _TXT
        else text_of(value_at(fields, column), column)
        for column in options.columns
    ]
    return (*texts, *compared_of(fields, options))


def _text(data: bytes) -> str:
    """The text of a `.txt`."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadValueError(f".txt: no valid UTF-8 at its byte {error.start}") from error


def _check(samples: Sequence[_Sample], options: ReadOptions, *, where: str) -> None:
    """Look for the text in the first samples of a tar."""
    described = [sample.members["json"] for sample in samples if "json" in sample.members]
    has_txt = any("txt" in sample.members for sample in samples)
    columns = tuple(c for c in options.columns if not (has_txt and c in _TXT))
    if samples and columns and not described:
        others = {ending for sample in samples for ending in sample.others}
        endings = sorted({"txt"} | others if has_txt else others)
        raise UsageError(
            f"{where} has no column {columns[0]!r}; its samples hold {', '.join(endings)}. Text is "
            "taken of .txt, or of a field of .json: pass --text-column."
        )
    if samples and options.compared and not described:
        asked = " and ".join(dict.fromkeys(map(option_of, options.compared.values())))
        raise UsageError(f"{where}: its samples have no .json, where {asked} finds its columns.")
    try:
        values = [require_object(decoded(member.data or b"")) for member in described]
    except BadValueError as error:
        raise SourceError(f"{where}: {error}.") from error
    check_fields(values, options, where=where, columns=columns)
