"""The filters that decide which documents stay."""

from functools import cache
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.format.condition import Condition, understood

FilterName = str  # the name of a field of `Filters`


class Filters(BaseModel):
    """Filters of documents; a document counts for the first filter that drops it.

    Tokens are counted without the end-of-text id.
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

    _understood = field_validator("where")(understood)

    @model_validator(mode="after")
    def _some_documents_stay(self) -> Self:
        for kind in ("bytes", "tokens"):
            least, most = getattr(self, f"min_{kind}"), getattr(self, f"max_{kind}")
            if least is not None and most is not None and least > most:
                raise ValueError(
                    f"--min-{kind} {least} is above --max-{kind} {most}: no document would stay"
                )
        return self

    @property
    def condition(self) -> Condition | None:
        """The parsed `where`."""
        return None if self.where is None else _condition(self.where)

    def by_text(self, texts: pa.LargeStringArray) -> dict[FilterName, Flags]:
        """Find the documents that each given filter of the text drops.

        Args:
            texts: the texts of the documents; nulls are never dropped.
        """
        valid = np.asarray(texts.is_valid())
        found: dict[FilterName, Flags] = {}
        for kind, measure in (("bytes", pc.binary_length), ("characters", pc.utf8_length)):
            if {f"min_{kind}", f"max_{kind}"} & self.given().keys():
                found |= self._outside(kind, np.asarray(measure(texts).fill_null(0)), valid)
        return found

    def by_tokens(self, lengths: Ints) -> dict[FilterName, Flags]:
        """Find the documents that each given filter of tokens drops.

        Args:
            lengths: number of tokens of each document; a document without tokens is left out
                anyway.
        """
        return self._outside("tokens", lengths, lengths > 0)

    def _outside(self, kind: str, sizes: Ints, valid: Flags) -> dict[FilterName, Flags]:
        """Find the documents that are too small and those that are too large: (documents,) each."""
        found = {}
        if (least := getattr(self, f"min_{kind}", None)) is not None:
            found[f"min_{kind}"] = valid & (sizes < least)
        if (most := getattr(self, f"max_{kind}", None)) is not None:
            found[f"max_{kind}"] = valid & (sizes > most)
        return found

    def given(self) -> dict[FilterName, Any]:
        """Return the value of each filter that is set, by its name."""
        names = Filters.model_fields
        return {name: value for name in names if (value := getattr(self, name)) is not None}


_condition = cache(Condition)
NO_FILTERS = Filters()
