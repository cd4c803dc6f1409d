"""What decides the bytes of a dataset beside its sources."""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from streaming_ext.dataset.formats import DEFAULT_FORMAT, FORMATS, ShardFormat, shard_format
from streaming_ext.dataset.layout import SPLITS, Split
from streaming_ext.dataset.schema import Count, Value
from streaming_ext.dataset.shard import TokenDtype, token_dtype
from streaming_ext.errors import ConfigMismatchError
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.units import size_text


class TokenizerIdentity(Value):
    """Which tokenizer the ids belong to; `fingerprint` covers all that decides an id."""

    kind: Literal["tiktoken", "huggingface"]
    name: str
    vocab_size: Annotated[int, Field(gt=0)]
    eot_id: Count
    eot_token: str
    pattern: str | None = None
    fingerprint: str


class DatasetSpec(Value):
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
