"""What a dataset says of itself: the record of each part and the manifest that makes it whole.

A part counts when its record exists, a dataset when its manifest exists. Both are functions of
the source bytes and the configuration alone: no time and no host stands in them.
"""

import json
import re
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from streaming_ext.dataset.formats import DEFAULT_FORMAT, FORMATS, ShardFormat, shard_format
from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.layout import SPLITS, Split, documents_path, record_path
from streaming_ext.dataset.shard import Shard, TokenDtype, token_dtype
from streaming_ext.errors import ConfigMismatchError, CorruptDatasetError
from streaming_ext.format_version import FormatVersion, refuse_newer
from streaming_ext.plain_faults import plain_faults
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.units import size_text

FORMAT: Final = FormatVersion(1)  # the newest that is read here

NOT_CHECKED: Literal["not checked"] = "not checked"

Model = TypeVar("Model", bound=BaseModel)

Count = Annotated[int, Field(ge=0)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
# Inside the dataset's folder: no absolute path, no step upwards, no odd characters.
RelativePath = Annotated[
    str, Field(pattern=r"^[a-z0-9_-]+(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*(\.[a-z]+)?$")
]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileRecord(_Value):
    """One file: its path below the dataset's root, its size in bytes, its XXH3-128."""

    path: RelativePath
    size: Count
    xxh128: Hash

    @classmethod
    def of(cls, path: str, data: bytes) -> Self:
        """The record of a file that holds `data`."""
        return cls(path=path, size=len(data), xxh128=content_hash(data))


class SourceIdentity(_Value):
    """Which bytes a part was made from.

    Attributes:
        url: where the file was found.
        size: in bytes.
        version: what pins its content, `xxh128:HEX` for a file on disk.
        content: `not checked` where the server offered nothing to compare the bytes with that
            came, or only some of the file were fetched.
    """

    url: str
    size: Count
    version: str
    content: Literal["not checked"] | None = None

    @model_serializer(mode="wrap")
    def _without_nothing(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        if self.content is None:
            values.pop("content", None)
        return values


class TokenizerIdentity(_Value):
    """Which tokenizer the ids belong to; `fingerprint` covers all that decides an id."""

    kind: Literal["tiktoken", "huggingface"]
    name: str
    vocab_size: Annotated[int, Field(gt=0)]
    eot_id: Count
    eot_token: str
    pattern: str | None = None
    fingerprint: str


class DatasetSpec(_Value):
    """Everything but the sources that decides the bytes of a dataset.

    Attributes:
        output_format: how samples lie in files; a name of `streaming_ext.dataset.formats`.
    """

    text_column: str
    sequence_length: Annotated[int, Field(gt=0)]
    holdout_fraction: Annotated[float, Field(ge=0, lt=1)]
    holdout_seed: Annotated[int, Field(ge=0, lt=2**64)]
    shard_size: Annotated[int, Field(gt=0)]
    compression: str
    tokenizer: TokenizerIdentity
    output_format: str = DEFAULT_FORMAT

    @field_validator("output_format")
    @classmethod
    def _known_format(cls, name: str) -> str:
        if name not in FORMATS:
            raise ValueError(f"output format {name!r} is unknown: expected {', '.join(FORMATS)}")
        return name

    @model_serializer(mode="wrap")
    def _without_the_usual(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Left out where it is the format that all datasets had before there was a choice.
        values: dict[str, Any] = serialize(self)
        if self.output_format == DEFAULT_FORMAT:
            values.pop("output_format", None)
        return values

    @property
    def dtype(self) -> TokenDtype:
        """Type of one token id on disk."""
        return token_dtype(self.tokenizer.vocab_size)

    @property
    def read_options(self) -> ReadOptions:
        """What is read of the source files."""
        return ReadOptions(column=self.text_column)

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that there are: a holdout only where a share of documents goes there."""
        return SPLITS if self.holdout_fraction else ("train",)

    @property
    def shard_format(self) -> ShardFormat:
        """How the samples are stored."""
        return shard_format(
            self.output_format,
            sequence_length=self.sequence_length,
            dtype=self.dtype,
            shard_size=self.shard_size,
            compression=self.compression,
        )

    def differences(self, wanted: "DatasetSpec") -> list[str]:
        """One line for each field in which `wanted` is not this specification.

        The tokenizer's name is left out: the fingerprint says whether it is the same one.
        """

        def flat(spec: DatasetSpec) -> dict[str, Any]:
            values = spec.model_dump(exclude={"tokenizer"}) | {"output_format": spec.output_format}
            values["shard_size"] = size_text(spec.shard_size)
            return values | {f"tokenizer.{k}": v for k, v in spec.tokenizer.model_dump().items()}

        ours, theirs = flat(self), flat(wanted)
        return [
            f"{field}: the output has {ours[field]!r}, this run asks for {theirs[field]!r}"
            for field in ours
            if ours[field] != theirs[field] and field != "tokenizer.name"
        ]

    def require_same(self, wanted: "DatasetSpec", *, where: str) -> None:
        """Refuse a specification that would give other bytes.

        Raises:
            ConfigMismatchError: naming every field that differs.
        """
        if differences := self.differences(wanted):
            raise ConfigMismatchError(
                f"{where} was made with another configuration:\n  "
                + "\n  ".join(differences)
                + "\nUse the old values, or another --output."
            )


class SplitPart(_Value):
    """What a part holds of one split.

    Attributes:
        documents: how many.
        tokens: their ids and one end-of-text id each, padding left out.
        padding: end-of-text ids that fill up the last sample.
        shards: in the order of the token stream.
    """

    documents: Count
    tokens: Count
    padding: Count
    shards: tuple[Shard, ...]

    @property
    def samples(self) -> int:
        """Number of samples in all shards."""
        return sum(shard.samples for shard in self.shards)


class PartRecord(_Value):
    """What became of one source file, and every file that was made of it.

    Attributes:
        rows: rows of the source file; each is a document of a split, null, or empty.
        null_documents: rows that hold no text.
        empty_documents: rows whose text gives no token.
        text_bytes: UTF-8 bytes of all texts.
    """

    format: Literal[1] = 1
    part: Count
    spec: DatasetSpec
    source: SourceIdentity
    rows: Count
    null_documents: Count
    empty_documents: Count
    text_bytes: Count
    splits: dict[Split, SplitPart]
    documents: FileRecord

    @model_validator(mode="after")
    def _sums_agree(self) -> Self:
        if set(self.splits) != set(self.spec.splits):
            raise ValueError(f"splits {sorted(self.splits)}, expected {sorted(self.spec.splits)}")
        kept = sum(split.documents for split in self.splits.values())
        if kept + self.null_documents + self.empty_documents != self.rows:
            raise ValueError(f"{self.rows} rows, but {kept} documents kept and "
                             f"{self.null_documents + self.empty_documents} skipped")  # fmt: skip
        if self.documents.path != documents_path(self.part):
            raise ValueError(f"documents at {self.documents.path!r} are not those of the part")
        form = self.spec.shard_format
        for name, split in self.splits.items():
            for number, shard in enumerate(split.shards):
                if shard.raw_name != form.shard_name(self.part, number):
                    raise ValueError(f"{shard.raw_name!r} as shard {number} of part {self.part:05}")
                if shard.zip_name is not None and not shard.zip_name.startswith(shard.raw_name):
                    raise ValueError(f"{shard.zip_name!r} as packed {shard.raw_name!r}")
                if shard.raw_bytes != form.raw_size(shard.samples):
                    raise ValueError(f"{shard.samples} samples in {shard.raw_bytes} bytes")
            if split.documents * 2 > split.tokens:
                raise ValueError(f"{name}: {split.documents} documents in {split.tokens} tokens")
            if split.tokens + split.padding != split.samples * self.spec.sequence_length:
                raise ValueError(
                    f"{name}: {split.tokens} tokens and {split.padding} of padding do not fill "
                    f"{split.samples} samples of {self.spec.sequence_length}"
                )
        return self

    def files(self) -> list[FileRecord]:
        """Every file of this part but the record itself."""
        shards = [
            FileRecord(path=f"{name}/{shard.name}", size=shard.size, xxh128=shard.hash)
            for name, split in self.splits.items()
            for shard in split.shards
        ]
        return [*shards, self.documents]

    def summary(self) -> "PartSummary":
        """The line that stands for this part in the manifest."""
        return PartSummary(
            part=self.part,
            source=self.source,
            record=FileRecord.of(record_path(self.part), to_json(self)),
            rows=self.rows,
            null_documents=self.null_documents,
            empty_documents=self.empty_documents,
            text_bytes=self.text_bytes,
        )


class PartSummary(_Value):
    """One part in the manifest; see `PartRecord` for the words."""

    part: Count
    source: SourceIdentity
    record: FileRecord
    rows: Count
    null_documents: Count
    empty_documents: Count
    text_bytes: Count


class SplitSummary(_Value):
    """A split in the manifest; see `SplitPart` for the words."""

    index: FileRecord
    documents: Count
    tokens: Count
    padding: Count
    samples: Count
    shards: Count


class NodeShare(_Value):
    """Which share of the sources a dataset was made of, where each node keeps its own.

    Attributes:
        rank: of the node, from 0.
        nodes: how many there are.
        sources: content hash of the list of all source files, the same on every node.
    """

    rank: Count
    nodes: Annotated[int, Field(gt=0)]
    sources: Hash

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if self.rank >= self.nodes:
            raise ValueError(f"share {self.rank} of {self.nodes}")
        return self


class Manifest(_Value):
    """The commit point of a dataset, written last.

    `share` stands in the file only where there is one.
    """

    format: Literal[1] = 1
    spec: DatasetSpec
    parts: tuple[PartSummary, ...]
    splits: dict[Split, SplitSummary]
    tokenizer_files: tuple[FileRecord, ...]
    share: NodeShare | None = None

    @model_serializer(mode="wrap")
    def _without_nothing(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        if self.share is None:
            del values["share"]
        return values

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of all texts."""
        return sum(part.text_bytes for part in self.parts)

    @property
    def tokens(self) -> int:
        """Tokens of all splits, padding left out."""
        return sum(split.tokens for split in self.splits.values())


def to_json(value: BaseModel) -> bytes:
    """The bytes of a record or manifest: keys sorted, one value a line, for `diff` to read well."""
    text = json.dumps(value.model_dump(mode="json"), sort_keys=True, indent=1, ensure_ascii=False)
    return (text + "\n").encode()


def from_json(model: type[Model], data: bytes, *, where: str) -> Model:
    """Read a record or manifest.

    Raises:
        NewerVersionError: a newer shardmill made it; `where` names the file.
        CorruptDatasetError: it is damaged.
    """
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        reason = plain_faults(error)
    except CorruptDatasetError as error:  # raised in our own words while a shard is looked at
        reason = str(error)
    refuse_newer(_version(data), FORMAT, what=where)
    kind = re.sub(r"(?<!^)(?=[A-Z])", " ", model.__name__).lower()  # PartRecord -> part record
    raise CorruptDatasetError(f"{where} is no valid {kind}: {reason}")


def _version(data: bytes) -> object:
    """What a record or manifest says that its format is, None where it cannot be told."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value.get("format") if isinstance(value, dict) else None
