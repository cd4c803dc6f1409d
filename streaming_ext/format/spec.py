"""The settings that decide the bytes of a dataset, apart from its sources."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field, model_validator

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import ConfigMismatchError
from streaming_ext.base.units import size_text
from streaming_ext.format.condition import Kind
from streaming_ext.format.duplicates import Comparison
from streaming_ext.format.filters import NO_FILTERS, FilterName, Filters
from streaming_ext.format.layout import SPLITS, Split
from streaming_ext.format.mds import MdsFormat
from streaming_ext.format.schema import Count, Hash, Value, differing, require_all
from streaming_ext.format.shard import TokenDtype, token_dtype
from streaming_ext.format.webdataset import WebdatasetFormat

FormatName = Literal[
    "parquet", "jsonl", "json", "cbor", "arrow", "avro", "csv", "tsv", "webdataset", "text"
]
# Sets of token ids that other trainers read; see `streaming_ext.text.token_sets`.
TokenSetName = Literal["megatron", "olmo", "nanogpt", "llmc", "modded-nanogpt", "mds"]
IdType = Literal["uint8", "uint16", "uint32", "int32", "int64"]
OnBadDocument = Literal["fail", "skip"]
ShuffleMode = Literal["documents"]
SEPARATOR = "\n\n"


class ImportedIds(Value):
    """The way in which ids came into a dataset that was imported instead of tokenized.

    Attributes:
        set_format: name of the format of all files.
        dtype: type of an id in files that do not state it; None for the usual type.
        holdout_by: the input of the hash that chooses the holdout: a document's ids, four bytes per
            id.
    """

    set_format: TokenSetName
    dtype: IdType | None = None
    holdout_by: Literal["ids"] = "ids"


class IdOptions(ImportedIds):
    """The form of documents in files of token ids.

    Attributes:
        eot_id: the end-of-text id, which ends a document wherever it occurs.
        bos_id: the id that may stand before a document and is not part of it, if there is one.
        vocab_size: the number of ids of the vocabulary.
    """

    eot_id: int
    bos_id: int | None = None
    vocab_size: int

    @classmethod
    def of(cls, tokenizer: "TokenizerIdentity", imported: ImportedIds) -> Self:
        """Return the options of an import, with the special ids of a tokenizer."""
        ids = tokenizer.model_dump(include={"eot_id", "bos_id", "vocab_size"})
        return cls(**ids, **imported.model_dump())


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """Options for reading documents from files of every format.

    Attributes:
        columns: the columns that hold the text; each a name, or a path such as `meta.text`.
        separator: the text between the texts of several columns.
        source_format: name of the format of all files; None if their names show it.
        on_bad_document: the treatment of a document that cannot be read: fail, or skip it.
        filters: the filters that decide which documents stay.
        kept: further columns whose values are stored beside each document.
        ids: the form of documents in files that hold token ids instead of text.
    """

    columns: tuple[str, ...] = ("text",)
    separator: str = SEPARATOR
    source_format: FormatName | None = None
    on_bad_document: OnBadDocument = "fail"
    filters: Filters = NO_FILTERS
    kept: tuple[str, ...] = ()
    ids: IdOptions | None = None

    @property
    def compared(self) -> dict[str, Kind]:
        """Further columns to read, to compare or to keep, with the kind of value of each."""
        condition = self.filters.condition
        columns = {} if condition is None else dict(condition.columns)
        for column in self.kept:
            if columns.get(column, "any") == "any":
                columns[column] = "value"
        return columns


DEFAULT_FORMAT = "mds"


FORMATS: dict[str, type[MdsFormat]] = {DEFAULT_FORMAT: MdsFormat, "webdataset": WebdatasetFormat}


def _known(name: str) -> str:
    if name not in FORMATS:
        raise ValueError(f"must be {' or '.join(FORMATS)}")
    return name


OutputFormat = Annotated[str, AfterValidator(_known)]
# The default compression of the shards of each format.
USUAL_COMPRESSION: dict[str, str] = {DEFAULT_FORMAT: "zstd:1"}


class TokenizerIdentity(Value):
    """The tokenizer that the ids belong to; `fingerprint` covers everything that decides an id.

    Attributes:
        eot_id, eot_token: the token that ends each document.
        bos_id, bos_token: the token that begins each document, if there is one.
    """

    kind: Literal["tiktoken", "huggingface", "sentencepiece"]
    name: str
    vocab_size: Annotated[int, Field(gt=0)]
    eot_id: Count
    eot_token: str
    bos_id: Count | None = None
    bos_token: str | None = None
    pattern: str | None = None
    fingerprint: str

    @property
    def marks(self) -> dict[str, int]:
        """The ids of the tokens that begin and end a document, by token."""
        marks = {self.eot_token: self.eot_id, self.bos_token: self.bos_id}
        return {token: id_ for token, id_ in marks.items() if token is not None and id_ is not None}


class SubsetRule(Value):
    """The rule that chose the documents of a subset from another dataset.

    Attributes:
        of: content hash of that dataset's manifest.
        documents: the number of documents.
        seed: the seed of a random choice; None if the first documents, or all, were chosen.
        where: the condition that all documents meet, if there was one.
        added: kept columns that were added to that dataset and are not columns of the sources.
        near: the rule by which near copies were left out.
    """

    of: Hash
    documents: Annotated[int, Field(gt=0)]
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    where: str | None = None
    added: tuple[str, ...] | None = None
    near: "NearRule | None" = None


class NearRule(Value):
    """The rule that decides whether a document is a near copy of another one.

    Attributes:
        similarity: the least similarity of two near copies.
        bands, rows: the number of bands of a sketch, and of bins of a band. Two documents are
            compared if a band of their sketches is equal.
        ngram: the number of ids of an n-gram.
    """

    similarity: Annotated[float, Field(gt=0, le=1)]
    bands: Annotated[int, Field(gt=0, le=64)]
    rows: Annotated[int, Field(gt=0, le=32)]
    ngram: Annotated[int, Field(gt=0, le=64)]

    @property
    def bins(self) -> int:
        """The number of bins of a sketch."""
        return self.bands * self.rows

    @property
    def least_matches(self) -> int:
        """The least number of bins in which the sketches of two near copies agree."""
        chance = 1 + 255 * Fraction(str(self.similarity))  # that a bin agrees, in 256ths
        return math.ceil(self.bins * chance / 256)

    def similarity_of(self, matches: Ints) -> npt.NDArray[np.float32]:
        """Return the similarities at which this many bins agree: (documents,)."""
        return ((256 * matches - self.bins) / (255 * self.bins)).astype(np.float32)


class ExcludedTexts(Value):
    """Evaluation texts; documents that hold an n-gram of one are left out of the dataset.

    Attributes:
        files: the files of the texts.
        columns: the columns of a text, which are joined.
        words: the number of words of an n-gram.
        texts: the number of texts.
        without_ngram: the number of texts with fewer words than an n-gram, which are not found.
        mark_only: True if the documents are only counted, and stay.
        hash: content hash of all n-grams.
    """

    files: Annotated[tuple[str, ...], Field(min_length=1)]
    columns: Annotated[tuple[str, ...], Field(min_length=1)] = ("text",)
    words: Annotated[int, Field(gt=0)]
    texts: Count
    without_ngram: Count = 0
    mark_only: bool = False
    hash: Hash


class DatasetSpec(Value):
    """Everything but the sources that decides the bytes of a dataset.

    Attributes:
        text_column: the column that holds the documents, or several that are joined.
        output_format: the format of the shards; a key of `FORMATS`.
        text_separator: the text between the texts of several columns.
        source_format: the format of all source files; None if their names show it.
        on_bad_document: see `ReadOptions`.
        filters: the filters that decide which documents stay.
        exclude: the evaluation texts that documents are compared with.
        shuffle: the unit that is permuted over the whole dataset; None keeps the order of the
            sources.
        shuffle_seed: the seed of that permutation.
        deduplicate: the comparison that finds copies, of which the first stays; None keeps all.
        near: the rule by which near copies are found.
        unicode: version of Unicode by which texts are normalized before they are compared.
        keep_columns: the columns whose values the lists of documents hold; see `source_columns`.
        imported: the way in which ids were read, if the sources hold ids instead of text;
            `text_column` has no meaning then.
        subset: the rule that chose the documents of the dataset; None for all.
    """

    text_column: str | Annotated[tuple[str, ...], Field(min_length=2)]
    sequence_length: Annotated[int, Field(gt=0)]
    holdout_fraction: Annotated[float, Field(ge=0, lt=1)]
    holdout_seed: Annotated[int, Field(ge=0, lt=2**64)]
    shard_size: Annotated[int, Field(gt=0)]
    compression: str
    tokenizer: TokenizerIdentity
    output_format: OutputFormat = DEFAULT_FORMAT
    text_separator: str = SEPARATOR
    source_format: FormatName | None = None
    on_bad_document: OnBadDocument = "fail"
    filters: Filters = NO_FILTERS
    exclude: ExcludedTexts | None = None
    shuffle: ShuffleMode | None = None
    shuffle_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    deduplicate: Comparison | None = None
    near: NearRule | None = None
    unicode: str | None = None
    keep_columns: tuple[str, ...] = ()
    imported: ImportedIds | None = None
    subset: SubsetRule | None = None

    @model_validator(mode="after")
    def _near_rule(self) -> Self:
        require_all({"deduplicate, near": (self.deduplicate == "near") == (self.near is not None)})
        return self

    @property
    def drops(self) -> dict[FilterName, Any]:
        """The value of each option that drops documents, by the name of the option."""
        drops = self.filters.given()
        if self.exclude is not None and not self.exclude.mark_only:
            drops["exclude_texts"] = ", ".join(self.exclude.files)
        return drops

    @property
    def two_phases(self) -> bool:
        """True if parts can be packed only after all sources are tokenized."""
        return self.shuffle is not None or self.deduplicate is not None

    @property
    def source_columns(self) -> tuple[str, ...]:
        """The kept columns that are columns of the sources."""
        added = (self.subset and self.subset.added) or ()
        return tuple(name for name in self.keep_columns if name not in added)

    @property
    def lists_copies(self) -> bool:
        """True if the dataset lists the copies that it left out."""
        return self.deduplicate is not None if self.subset is None else self.listed_near is not None

    @property
    def listed_near(self) -> NearRule | None:
        """The rule of the near copies that the dataset lists; None if it lists none."""
        return self.near if self.subset is None else self.subset.near

    @property
    def dtype(self) -> TokenDtype:
        """Type of one token id on disk."""
        return token_dtype(self.tokenizer.vocab_size)

    @property
    def read_options(self) -> ReadOptions:
        """Options for reading the source files."""
        column = self.text_column
        return ReadOptions(
            columns=(column,) if isinstance(column, str) else column,
            separator=self.text_separator,
            source_format=self.source_format,
            on_bad_document=self.on_bad_document,
            filters=self.filters,
            kept=self.source_columns,
            ids=None if self.imported is None else IdOptions.of(self.tokenizer, self.imported),
        )

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits of the dataset; a holdout only if a fraction of the documents goes there."""
        return SPLITS if self.holdout_fraction else ("train",)

    @property
    def shard_format(self) -> MdsFormat:
        """Format of the shards."""
        return FORMATS[self.output_format](
            sequence_length=self.sequence_length,
            dtype=self.dtype,
            shard_size=self.shard_size,
            compression=self.compression,
        )

    def differences(
        self,
        wanted: "DatasetSpec",
        *,
        ours: str = "the output has",
        theirs: str = "this run asks for",
    ) -> list[str]:
        """Return one line for each field in which `wanted` differs from this specification.

        The tokenizer's name is not compared, because the fingerprint identifies the tokenizer.

        Args:
            wanted: the other specification.
            ours, theirs: the words before our value and before the other one in each line.
        """
        have, want = (
            spec.model_dump() | {"shard_size": size_text(spec.shard_size)}
            for spec in (self, wanted)
        )
        return [
            f"{field}: {ours} {has!r}, {theirs} {wants!r}"
            for field, has, wants in differing(have, want)
            if field != "tokenizer.name"
        ]

    def require_same(self, wanted: "DatasetSpec", *, where: str) -> None:
        """Refuse a specification that would give other bytes.

        Raises:
            ConfigMismatchError: the message names every field that differs.
        """
        if differences := self.differences(wanted):
            raise ConfigMismatchError(
                f"{where} was made with another configuration:\n  "
                + "\n  ".join(differences)
                + "\nUse the old values, or another --output."
            )
