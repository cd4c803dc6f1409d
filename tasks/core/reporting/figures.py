"""What a report shows: the figures behind its pictures, from counts that are at hand anyway."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from streaming_ext.format.filters import option
from streaming_ext.format.spec import DatasetSpec
from tasks.core.reporting.lengths import Lengths
from tasks.core.reporting.report import PartCounts, PartTimes, RunReport

_MOST_BAD = 5  # documents that are named
_MOST_BINS = 60
_MOST_HOSTS = 6  # that a picture tells apart
_MOST_GROUPS = 16
_MOST_SLOWEST = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Parts that a picture shows as one.

    Attributes:
        tokens: their end-of-text ids included.
    """

    name: str
    parts: int
    documents: int
    tokens: int
    text_bytes: int

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text a token, end-of-text ids left out."""
        tokens = self.tokens - self.documents
        return self.text_bytes / tokens if tokens else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Throughput:
    """Text a second over the time of a run.

    Attributes:
        edges: of the bins, in seconds since the first part was begun, (bins + 1,).
        rates: host -> bytes a second in each bin, (bins,); the busiest host first.
    """

    edges: npt.NDArray[np.float64]
    rates: dict[str, npt.NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """Something that is not in the dataset, or was not done in this run, and why."""

    what: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """All that a report shows.

    Attributes:
        total: the parts that are done, whichever run did them.
        groups: the same, split up; in the order of their names.
        lengths: tokens a document, of some parts where there are many.
        throughput, slowest: of this run.
    """

    report: RunReport
    total: Group
    groups: tuple[Group, ...]
    lengths: Lengths
    throughput: Throughput | None
    slowest: tuple[PartTimes, ...]
    skipped: tuple[Skipped, ...]


def make_figures(
    report: RunReport,
    earlier: Sequence[PartCounts],
    spec: DatasetSpec,
    lengths: Lengths,
) -> Figures:
    """Put together what a report shows.

    Args:
        report: of the run.
        earlier: the parts that were done before it.
        spec: of the dataset.
        lengths: of documents, of some parts where there are many.
    """
    parts = sorted([*earlier, *report.parts], key=lambda part: part.part)
    return Figures(
        report=report,
        total=_sum("all", parts),
        groups=tuple(group_by_source(parts)),
        lengths=lengths,
        throughput=throughput(report),
        slowest=tuple(sorted(report.parts, key=lambda part: -part.seconds)[:_MOST_SLOWEST]),
        skipped=tuple(_skipped(report, earlier, parts, spec)),
    )


def group_by_source(parts: Sequence[PartCounts]) -> list[Group]:
    """Split parts by the first folder in which their sources differ, else by file.

    More groups than a picture can show become runs of neighbours.
    """
    if not parts:
        return []
    paths = [urlsplit(part.source).path if "://" in part.source else part.source for part in parts]
    folders = [path.split("/")[:-1] for path in paths]
    levels = zip(*folders, strict=False)
    depth = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, levels))
    named: dict[str, list[PartCounts]] = {}
    several = len({tuple(folder) for folder in folders}) > 1
    for part, path, folder in zip(parts, paths, folders, strict=True):
        name = "/".join(folder[depth : depth + 1]) if several else path.rsplit("/", 1)[-1]
        named.setdefault(name or path.rsplit("/", 1)[-1], []).append(part)
    if len(named) <= _MOST_GROUPS:
        return [_sum(name, members) for name, members in sorted(named.items())]
    groups = []
    for start, end in pairwise(np.linspace(0, len(named), _MOST_GROUPS + 1).astype(int)):
        names = sorted(named)[start:end]
        name = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
        groups.append(_sum(name, [part for each in names for part in named[each]]))
    return groups


def throughput(report: RunReport) -> Throughput | None:
    """Spread the text of each part over the time that tokenizing it took; None without any."""
    parts = [part for part in report.parts if part.tokenized_at and part.text_bytes]
    if not parts or report.seconds <= 0:
        return None
    began = report.began.timestamp()
    bins = int(min(_MOST_BINS, max(8, report.seconds)))
    edges = np.linspace(0.0, report.seconds, bins + 1)
    totals: dict[str, int] = {}
    for part in parts:
        totals[part.host] = totals.get(part.host, 0) + part.text_bytes
    busiest = sorted(totals, key=lambda host: (-totals[host], host))
    named = busiest if len(busiest) <= _MOST_HOSTS + 1 else busiest[:_MOST_HOSTS]
    others = f"{len(busiest) - len(named)} others"
    rates: dict[str, npt.NDArray[np.float64]] = {}
    for part in sorted(parts, key=lambda part: busiest.index(part.host)):
        name = part.host if part.host in named else others
        took = max(part.tokenize_seconds, 1e-3)
        # Clocks of hosts may differ: what seems to lie outside the run counts at its edge.
        end = float(np.clip(part.tokenized_at - began, took, max(report.seconds, took)))
        done = np.interp(edges, [end - took, end], [0.0, float(part.text_bytes)])
        rates[name] = rates.get(name, np.zeros(bins)) + np.diff(done) / np.diff(edges)
    return Throughput(edges=edges, rates=rates)


def _sum(name: str, parts: Sequence[PartCounts]) -> Group:
    return Group(
        name=name,
        parts=len(parts),
        documents=sum(part.documents for part in parts),
        tokens=sum(part.tokens for part in parts),
        text_bytes=sum(part.text_bytes for part in parts),
    )


def _skipped(
    report: RunReport, earlier: Sequence[PartCounts], parts: Sequence[PartCounts], spec: DatasetSpec
) -> Iterable[Skipped]:
    bad = sum(part.bad_documents for part in parts)
    listed = [str(one) for part in parts for one in part.bad_listed][:_MOST_BAD]
    more = f"; and {bad - len(listed):,} more" if bad > len(listed) else ""
    columns = spec.read_options.columns
    null = f"null in the column{'s' * (len(columns) > 1)} {', '.join(columns)}"
    copies = f"copies of earlier ones ({spec.deduplicate}), {report.duplicate_tokens:,} tokens"
    dropped = (
        (
            sum(part.dropped_documents.get(name, 0) for part in parts),
            "row",
            f"dropped by {option(name)} {wanted}",
        )
        for name, wanted in spec.filters.given().items()
    )
    counted = (
        (len(earlier), "part", "done by an earlier run"),
        (len(report.failed), "part", "failed; the next run tries again"),
        (sum(part.null_documents for part in parts), "row", null),
        (bad, "row", f"cannot be read: {'; '.join(listed)}{more}"),
        *dropped,
        (sum(part.empty_documents for part in parts), "row", "their text gives no token"),
        (report.duplicate_documents, "document", copies),
    )
    for number, what, why in counted:
        if number or why.startswith("dropped"):
            yield Skipped(what=f"{number:,} {what}{'' if number == 1 else 's'}", why=why)
    if not report.published:
        yield Skipped(
            what="the manifest", why="not written: the dataset is published when no part is missing"
        )
