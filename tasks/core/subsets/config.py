"""The configuration of a subset: the same object in command line and flow parameters."""

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from streaming_ext.errors import UsageError
from streaming_ext.text.options import Options
from streaming_ext.units import parse_count
from tasks.core.options import Execution


class Subset(Options):
    """Which documents of which dataset, and where they go."""

    dataset: Annotated[
        str, Field(min_length=1, description="Folder or URL of a published dataset.")
    ]
    output: Annotated[
        str,
        Field(min_length=1, description="Where the subset goes: a folder, s3://, gs:// or az://."),
    ]
    documents: Annotated[
        int | None, Field(gt=0, description="How many documents, of all splits together.")
    ] = None
    tokens: Annotated[
        str | None,
        Field(
            description="As many whole documents as have at most so many tokens (10M), "
            "end-of-text ids counted."
        ),
    ] = None
    seed: Annotated[
        int | None,
        Field(ge=0, lt=2**63, description="Of the draw of the documents; 0 unless given."),
    ] = None
    first: Annotated[
        bool, Field(description="Take the first documents in their order, and draw none.")
    ] = False

    @field_validator("tokens", mode="before")
    @classmethod
    def _count(cls, given: Any) -> Any:
        try:
            parse_count(given, name="tokens")
        except UsageError as error:
            raise ValueError(str(error)) from error
        return None if given is None else str(given)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.documents is None) == (self.tokens is None):
            raise ValueError("give one of --documents and --tokens")
        if self.first and self.seed is not None:
            raise ValueError("--first draws nothing: leave out --seed")
        return self

    @property
    def most_tokens(self) -> int | None:
        """Tokens that the documents may have."""
        return parse_count(self.tokens, name="tokens")

    @property
    def drawn_by(self) -> int | None:
        """The seed; None where the first ones are taken."""
        return None if self.first else self.seed or 0


class SubsetConfig(Execution, Subset):
    """A subset, and with which means it is made."""

    arguments: ClassVar[tuple[str, ...]] = ("dataset",)
