"""One dataset among several that a run trains on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streaming_ext.base.errors import UsageError
from streaming_ext.base.kinds import check_fields, checked, integer, positive
from streaming_ext.order.steps import Schedule
from streaming_ext.store.locations import absolute


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
    """A dataset and how much of an epoch it makes; the words are mosaicml-streaming's.

    Attributes:
        remote: the location of the published dataset; None if all of it is local.
        local: cache, or the dataset itself.
        split: a split in place of the dataset's one.
        proportion: the part of the epoch, relative to the other streams; also as a schedule in
            tokens of training, "0:0.9 900B:0.9->0.2 1T:0.2".
        repeat: the number of times that an epoch holds this stream.
        choose: sequences of this stream per epoch.
        where: the condition on kept columns, `tokens` or `source` that its documents meet, as
            `shardmill shard --where` takes it: "score >= 4"; all documents unless given.
        domain: a name for the kind of text; streams of one count together in `domain_ids`.
        max_repeats: passes over this stream in all of training, at most; with a proportion.
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
        """The domain, also if none was named."""
        return self.domain or self.name

    def made(
        self, *, split: str | None, sequence_length: int | None, limit: int | None
    ) -> "TokenStream":
        """The stream of an existing dataset: this one; the dataset of a text is made first.

        Args:
            split: the split to read.
            sequence_length: tokens of the longest sequences; None if the user named none.
            limit: bytes that its cache may hold.
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
