"""The part of each stream in an epoch, and in what training received."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from streaming_ext.base.errors import UsageError
from streaming_ext.order.mixing import Mixing
from streaming_ext.order.settings import OrderSettings
from streaming_ext.order.steps import Schedule
from streaming_ext.training.arguments import TokenStream


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamUsage:
    """The part of one stream in what training received.

    Attributes:
        stream: the number of the stream.
        domain: the domain of the stream, or its location.
        sequences: received sequences, over all ranks.
        tokens: tokens of these sequences, including padding.
        fraction: the fraction of all received sequences.
        passes: passes over the stream.
        tokens_by_domain: tokens of each domain by its name, without padding; only with
            `domain_by`.
    """

    stream: int
    domain: str
    sequences: int
    tokens: int
    fraction: float
    passes: float
    tokens_by_domain: Mapping[str, int] = field(default_factory=dict)


def mixing_of(streams: Sequence[TokenStream], order: OrderSettings) -> Mixing | None:
    """Collect changing proportions and limits; return None if there are neither.

    Args:
        streams: the streams of a run.
        order: the settings of the order.

    Raises:
        UsageError: not all streams have a proportion, or there is no other stream.
    """
    limits = [stream.max_repeats for stream in streams]
    schedules = _schedules(streams)
    if all(each.constant for each in schedules) and not any(limits):
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
        max_repeats=tuple(None if limit is None else Fraction(str(limit)) for limit in limits),
    )


def _schedules(streams: Sequence[TokenStream]) -> list[Schedule]:
    """Return the proportions of the streams that have one."""
    given = (stream.proportion for stream in streams)
    return [Schedule.of_proportions(each, name="proportion") for each in given if each is not None]


def sequences_an_epoch(
    streams: Sequence[TokenStream], sizes: list[int], *, epoch_size: int | None
) -> list[int]:
    """Compute the sequences per epoch of each stream.

    Args:
        streams: the streams, all relative (`proportion`) or all absolute (`repeat`, `choose` or
            neither).
        sizes: sequences of each stream.
        epoch_size: sequences per epoch; None for all of them, or as many as the streams name.

    Raises:
        UsageError: streams mix proportions and absolute amounts, or amounts contradict epoch_size.
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
            f"`epoch_size` is {epoch_size}, the streams give {sum(counts)} sequences per epoch. "
            "Leave epoch_size out, or give proportions."
        )
    return [epoch_size]
