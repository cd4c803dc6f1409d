"""One dataset among several that a run trains on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from streaming_ext.base.errors import UsageError
from streaming_ext.base.kinds import check_fields, checked, integer, positive
from streaming_ext.order.mixing import Mixing
from streaming_ext.order.settings import OrderSettings
from streaming_ext.order.steps import Schedule
from streaming_ext.store.locations import absolute


def _proportion(name: str, value: Any) -> float | str:
    if not isinstance(value, str):
        return positive("a number")(name, value)
    Schedule.of_proportions(value, name=name)
    return value


@dataclass(frozen=True, kw_only=True)
class TokenStream:
    """A dataset and how much of an epoch it makes; the words are mosaicml-streaming's.

    Attributes:
        remote: where the dataset is published, None if it is all local.
        local: cache, or the dataset itself.
        split: in place of the dataset's one.
        proportion: of the epoch, relative to the other streams; also as a schedule in tokens
            of training, "0:0.9 900B:0.9->0.2 1T:0.2".
        repeat: times this stream is seen an epoch.
        choose: sequences of this stream an epoch.
        domain: what kind of text it is; streams of one domain count together in `domain_ids`.
        max_repeats: passes over this stream in all of training, at most; with a proportion.
        generation: of a dataset that was extended: how the hash of its manifest begins; the newest
            unless given.
    """

    remote: str | None = None
    local: str | Path | None = None
    split: str | None = None
    proportion: float | str | None = checked(None, _proportion)
    repeat: float | None = checked(None, positive("a number"))
    choose: int | None = checked(None, integer(1))
    domain: str | None = None
    max_repeats: float | None = checked(None, positive("a number"))
    generation: str | None = None

    @property
    def url(self) -> str:
        """The location of the data, for messages."""
        return str(self.remote or self.local)

    def made(
        self, *, split: str | None, sequence_length: int | None, limit: int | None
    ) -> "TokenStream":
        """The stream of an existing dataset: this one; the dataset of a text is made first.

        Args:
            split: that is read.
            sequence_length: tokens of a sequence, the longest; None if the user named none.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamUsage:
    """What training received of one stream.

    Attributes:
        stream: its number.
        domain: its own, or its location.
        sequences: over all ranks.
        tokens: of these sequences, padding counted.
        fraction: of all sequences.
        passes: passes over the stream.
        tokens_by_domain: of these tokens those of each domain by its name, padding left out; with
            `domain_by` only.
    """

    stream: int
    domain: str
    sequences: int
    tokens: int
    fraction: float
    passes: float
    tokens_by_domain: Mapping[str, int] = field(default_factory=dict)


def domains_of(streams: Sequence[TokenStream]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The domains by their numbers, and the number of each stream's domain."""
    names = [stream.domain or stream.url for stream in streams]
    domains = tuple(dict.fromkeys(names))
    return domains, tuple(domains.index(name) for name in names)


def mixing_of(streams: Sequence[TokenStream], order: OrderSettings) -> Mixing | None:
    """How proportions change during training; None if they do not, and nothing is limited.

    Args:
        streams: of a run.
        order: what decides it besides.

    Raises:
        UsageError: not all streams have a proportion, or there is no other stream.
    """
    limits = [stream.max_repeats for stream in streams]
    schedules = _schedules(streams)
    if all(each.constant for each in schedules) and not any(limits):
        if order.at_max_repeats != "error":
            raise UsageError("`at_max_repeats` goes with `max_repeats` of a TokenStream.")
        return None
    if len(schedules) < len(streams) or len(streams) < 2:
        raise UsageError(
            "Schedules of proportions and max_repeats mix several streams: give two or more, each "
            "with a proportion."
        )
    if order.batching_method == "stratified":
        raise UsageError(
            "batching_method='stratified' holds one mixture in every step: give constant "
            "proportions without max_repeats, or batching_method='random'."
        )
    return Mixing(
        proportions=tuple(schedules),
        at_limit=order.at_max_repeats,
        max_repeats=tuple(None if limit is None else Fraction(str(limit)) for limit in limits),
    )


def _schedules(streams: Sequence[TokenStream]) -> list[Schedule]:
    """The proportions of the streams that have one."""
    given = (stream.proportion for stream in streams)
    return [Schedule.of_proportions(each, name="proportion") for each in given if each is not None]


def sequences_an_epoch(
    streams: list[TokenStream], sizes: list[int], *, epoch_size: int | None
) -> list[int]:
    """How many sequences each stream gives an epoch.

    Args:
        streams: all relative (`proportion`) or all absolute (`repeat`, `choose` or neither).
        sizes: sequences of each stream.
        epoch_size: sequences an epoch; None for all of them, or what the streams say.

    Raises:
        UsageError: proportions beside absolute amounts, or amounts that contradict epoch_size.
    """
    relative = [float(schedule.at(0)) for schedule in _schedules(streams)]
    if relative and len(relative) < len(streams):
        raise UsageError(
            "Some streams have a proportion and some do not. Give all of them one, or none."
        )
    if relative:
        total = sum(sizes) if epoch_size is None else epoch_size
        exact = [proportion / sum(relative) * total for proportion in relative]
        counts = [int(count) for count in exact]
        by_rest = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
        for i in by_rest[: total - sum(counts)]:
            counts[i] += 1
        return counts
    counts = [
        stream.choose or int(size * (1 if stream.repeat is None else stream.repeat))
        for stream, size in zip(streams, sizes, strict=True)
    ]
    if epoch_size is None or epoch_size == sum(counts):
        return counts
    if len(streams) > 1 or streams[0].choose is not None or streams[0].repeat is not None:
        raise UsageError(
            f"`epoch_size` is {epoch_size}, the streams give {sum(counts)} sequences an epoch. "
            "Leave epoch_size out, or give proportions."
        )
    return [epoch_size]
