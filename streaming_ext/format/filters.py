"""Filters: which documents stay."""

from functools import cache
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from streaming_ext.base.errors import UsageError
from streaming_ext.format.condition import Condition

FilterName = str  # of a field of `Filters`
_BY_TOKENS: tuple[FilterName, ...] = ("min_tokens", "max_tokens")


class Filters(BaseModel):
    """Each filter drops documents; the first that drops a document counts it.

    Tokens are those of the text, without its end-of-text id.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    heading: ClassVar[str] = "Filters"

    where: Annotated[
        str | None,
        Field(description="Keep documents if \"language == 'en' and score >= 0.65\" holds."),
    ] = None
    min_bytes: Annotated[
        int | None, Field(gt=0, description="Drop documents of fewer bytes of text.")
    ] = None
    max_bytes: Annotated[
        int | None, Field(gt=0, description="Drop documents of more bytes of text.")
    ] = None
    min_characters: Annotated[
        int | None, Field(gt=0, description="Drop documents of fewer characters.")
    ] = None
    min_tokens: Annotated[
        int | None, Field(gt=0, description="Drop documents of fewer tokens.")
    ] = None
    max_tokens: Annotated[int | None, Field(gt=0, description="Drop documents of more tokens.")] = (
        None
    )

    @field_validator("where")
    @classmethod
    def _understood(cls, where: str | None) -> str | None:
        try:
            if where is not None:
                _condition(where)
        except UsageError as error:
            raise ValueError(str(error)) from error
        return where

    @model_validator(mode="after")
    def _some_documents_stay(self) -> Self:
        for name, least in self.given().items():
            most = getattr(self, name.replace("min_", "max_"), None)
            if name.startswith("min_") and most is not None and least > most:
                raise ValueError(
                    f"{option(name)} {least} is above {option(name.replace('min_', 'max_'))} "
                    f"{most}: no document would stay"
                )
        return self

    @property
    def condition(self) -> Condition | None:
        """The parsed `where`."""
        return None if self.where is None else _condition(self.where)

    def by_text(self, texts: pa.LargeStringArray) -> dict[FilterName, npt.NDArray[np.bool_]]:
        """Which documents each given filter of text drops.

        Args:
            texts: of the documents; null is never dropped.
        """
        sizes = {"bytes": pc.binary_length, "characters": pc.utf8_length}
        found = {
            name: (pc.less if least == "min" else pc.greater)(sizes[kind](texts), limit)
            for name, limit in self.given().items()
            for least, _, kind in [name.partition("_")]
            if kind in sizes
        }
        return {name: np.asarray(drops.fill_null(False)) for name, drops in found.items()}

    def by_tokens(self, lengths: npt.NDArray[np.int64]) -> dict[FilterName, npt.NDArray[np.bool_]]:
        """Which documents each given filter of tokens drops.

        Args:
            lengths: tokens of each document, 0 for one that has none and is left out anyway.
        """
        found: dict[FilterName, npt.NDArray[np.bool_]] = {}
        if self.min_tokens is not None:
            found["min_tokens"] = (lengths > 0) & (lengths < self.min_tokens)
        if self.max_tokens is not None:
            found["max_tokens"] = lengths > self.max_tokens
        return found

    def given(self) -> dict[FilterName, Any]:
        """The filters that are set."""
        names = Filters.model_fields
        return {name: value for name in names if (value := getattr(self, name)) is not None}


BY_TEXT = tuple(name for name in Filters.model_fields if name not in _BY_TOKENS)


def option(name: FilterName) -> str:
    """The option of a filter on the command line."""
    return f"--{name.replace('_', '-')}"


_condition = cache(Condition)
NO_FILTERS = Filters()
