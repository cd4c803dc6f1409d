"""The arguments of a dataset as four objects: its order, location, rank and batches.

The location is one dataset, or streams of several.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from streaming_ext.base.errors import UsageError
from streaming_ext.base.kinds import check_fields, checked, integer, positive
from streaming_ext.base.units import parse_bytes
from streaming_ext.order.ranks import RankPosition
from streaming_ext.order.settings import OrderSettings
from streaming_ext.order.steps import Schedule
from streaming_ext.store.locations import absolute
from streaming_ext.training.columns import COLUMNS


def _condition(name: str, value: Any) -> str:
    from streaming_ext.format.condition import Condition

    if not isinstance(value, str):
        raise UsageError(f"`{name}` must be a condition as text, got {value!r}.")
    return Condition(value).text


def _proportion(name: str, value: Any) -> float | str:
    if not isinstance(value, str):
        return positive("a number")(name, value)
    Schedule.of_proportions(value, name=name)
    return value


@dataclass(frozen=True, kw_only=True)
class TokenStream:
    """A dataset and its part of an epoch, in the words of mosaicml-streaming.

    Attributes:
        remote: the location of the published dataset; None if all of it is local.
        local: the cache, or the dataset itself.
        split: the split to read in place of the dataset's `split`.
        proportion: the part of the epoch, relative to the other streams; also as a schedule in
            tokens of training, "0:0.9 900B:0.2".
        repeat: the number of times that an epoch holds this stream.
        choose: sequences of this stream per epoch.
        where: the condition on kept columns, `tokens` or `source` that its documents meet, as
            `shardmill shard --where` takes it: "score >= 4"; all documents unless given.
        domain: the name of a kind of text; streams of one domain have one number in `domain_ids`.
        max_repeats: the most passes over this stream in all of training; needs a proportion.
        generation: the beginning of the hash of a manifest, to read an older generation of an
            extended dataset; the newest unless given.
    """

    remote: str | None = None
    local: str | Path | None = None
    split: str | None = None
    proportion: float | str | None = checked(None, _proportion)
    repeat: float | None = checked(None, positive("a number"))
    choose: int | None = checked(None, integer(1))
    where: str | None = checked(None, _condition)
    domain: str | None = None
    max_repeats: float | None = checked(None, positive("a number"))
    generation: str | None = None

    @property
    def url(self) -> str:
        """The location of the data, for messages."""
        return str(self.remote or self.local)

    @property
    def name(self) -> str:
        """The location and the condition, for messages."""
        return self.url if self.where is None else f"{self.url} where {self.where}"

    @property
    def domain_name(self) -> str:
        """The domain: the given one, or the name of the stream."""
        return self.name if self.domain is None else self.domain

    def made(
        self, *, split: str | None, sequence_length: int | None, limit: int | None
    ) -> "TokenStream":
        """Return this stream, whose dataset exists; a text makes its dataset first.

        Args:
            split: the split to read.
            sequence_length: tokens of the longest sequences; None if the user named none.
            limit: bytes that the cache may hold.
        """
        return self

    def __post_init__(self) -> None:
        names = [n for n in ("proportion", "repeat", "choose") if getattr(self, n) is not None]
        if len(names) > 1:
            raise UsageError(f"Give one of proportion, repeat and choose, got {', '.join(names)}.")
        if self.max_repeats is not None and self.proportion is None:
            raise UsageError("`max_repeats` goes with `proportion`: give the stream one.")
        check_fields(self)
        for name in ("remote", "local"):
            if given := getattr(self, name):
                object.__setattr__(self, name, absolute(given))


@dataclass(frozen=True, kw_only=True, slots=True)
class DataLocation:
    """The location of the data, and the way to fetch them.

    Attributes:
        streams: several datasets, in place of `remote` and `local`.
        remote: the location of the published dataset; None if all of it is local.
        local: the cache of the raw shards; the dataset itself if `remote` is None.
        proportion_by: `column:NAME`, for a stream of the documents of each value that `proportions`
            names. Documents of other values are left out; a line of the log counts them.
        proportions: the proportion of each value, as `TokenStream(proportion=...)` takes it:
            {"de": 2, "en": 1}; None stands for documents without a value.
        token_dtype: type of an id, if a set of another tool stores them as bytes:
            `uint16`, `uint32`, `int32` or `int64`.
        predownload: sequences that each rank fetches ahead; half a shuffle window by default.
        cache_limit: bytes that the cache may hold, or `200gb`; the dataset itself is never evicted.
        download_retry: further attempts after half a minute of failures; 0 for none at all.
        download_timeout: seconds for one file, all attempts together.
        storage_options: options for fsspec.
    """

    streams: Sequence[TokenStream] | None = None
    remote: str | None = None
    local: str | Path | None = None
    proportion_by: str | None = None
    proportions: Mapping[Any, float | str] | None = None
    token_dtype: str | None = None
    predownload: int | None = checked(None, integer(1))
    cache_limit: int | str | None = checked(None, lambda name, given: parse_bytes(given, name=name))
    download_retry: int = checked(2, integer(0))
    download_timeout: float = checked(60.0, positive("seconds"))
    storage_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if bool(self.streams) == bool(self.remote or self.local):
            raise UsageError("Give either streams=[...], or remote= and local=, not both.")
        if bool(self.proportion_by) != bool(self.proportions) or (
            self.streams and self.proportions
        ):
            raise UsageError(
                "`proportion_by` names a column of one dataset, given by remote= and local=, and "
                "`proportions` the proportion of each of its values. Give both, or streams with "
                "proportions of their own."
            )

    @property
    def limit(self) -> int | None:
        """Bytes that the cache may hold, None for no limit."""
        return None if self.cache_limit is None else int(self.cache_limit)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchContents:
    """The contents of a batch besides `tokens`.

    Attributes:
        extras: columns by their names, see `COLUMNS`; one name, or several.
        eot_id: the id that ends a document, if the dataset does not name it.
        domain_by: `folder` or `column:NAME`, the property by which `domain_ids` numbers tokens.
        tokenizer: the tokenizer of the model: a name, a file, or an object of tiktoken or
            Transformers. It is refused if it gives other ids to the texts of the dataset.
    """

    extras: str | Collection[str] = ()
    eot_id: int | None = None
    domain_by: str | None = None
    tokenizer: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.extras, str):
            object.__setattr__(self, "extras", (self.extras,))
        if unknown := sorted(set(self.extras) - COLUMNS.keys()):
            raise UsageError(f"`extras` may name {', '.join(COLUMNS)}; got {', '.join(unknown)}.")


Method = TypeVar("Method", bound=Callable[..., None])
Settings = tuple[OrderSettings, DataLocation, RankPosition, BatchContents]
KINDS: Final = (OrderSettings, DataLocation, RankPosition, BatchContents)
# Arguments of mosaicml-streaming's dataset that have no meaning for this one, each with advice.
_STOCK: Final = {
    "shuffle_algo": "there is one shuffle, of shards and of windows of `shuffle_block_size`. Leave "
    "it out.",
    "partition_algo": "a step holds the same sequences on any number of ranks, by "
    "`num_canonical_nodes` alone. Leave it out.",
    "sampling_method": "no sequence comes twice before all came once. Leave it out; `repeat`, "
    "`choose` or `proportion` of a TokenStream say how much of it an epoch holds.",
    "sampling_granularity": "no sequence comes twice before all came once. Leave it out.",
    "validate_hash": "every shard is compared with its xxh128, if the index has it. Leave it out.",
    "keep_zip": "compressed files are never kept in the cache, and never removed where they are "
    "published. Leave it out.",
    "allow_unsafe_types": "only token ids are read, nothing that could hold code. Leave it out.",
    "stream_name": "streams are given as TokenStream(...) in `streams`. Leave it out.",
    "stream_config": "streams are given as TokenStream(...) in `streams`. Leave it out.",
}


def settings_of(given: Mapping[str, Any], others: Collection[str]) -> Settings:
    """Make the four objects from flat arguments.

    Args:
        given: the values by their names, among others.
        others: names of given arguments that the dataset does not have.

    Raises:
        UsageError: a value is not allowed, or an argument belongs to stock StreamingDataset.
        TypeError: there is no such argument.
    """
    for name in others:
        if name in _STOCK:
            raise UsageError(f"`{name}` is an argument of stock StreamingDataset: {_STOCK[name]}")
        raise TypeError(f"StreamingTokenDataset() got an unexpected keyword argument {name!r}")
    order, location, position, contents = (
        {each.name: given[each.name] for each in fields(kind)} for kind in KINDS
    )
    return (
        OrderSettings(**order),
        DataLocation(**location),
        RankPosition(**position),
        BatchContents(**contents),
    )


def described(method: Method) -> Method:
    """Add the fields of the four objects, with their descriptions, to a method's docstring."""
    texts = [(inspect.getdoc(kind) or "").partition("Attributes:\n")[2] for kind in KINDS]
    method.__doc__ = "\n".join([method.__doc__ or "", "", "Args:", *texts])
    return method
