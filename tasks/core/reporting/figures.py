"""The figures of a report: the numbers behind its charts and lists."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from streaming_ext.base.errors import option_name
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.writing.evaluation_texts import evaluation_texts
from tasks.core.reporting.lengths import Lengths
from tasks.core.reporting.report import ReportedCounts, RunReport

_MOST_BAD = 5  # documents that the report names
_MOST_BINS = 60
_MOST_GROUPS = 16


class Group(NamedTuple):
    """Parts that a chart shows as one.

    Attributes:
        rows: all rows of the sources, including those that were left out.
        tokens: the tokens, with end-of-text ids.
        marked_documents: see `PartCounts`.
    """

    name: str
    parts: int
    rows: int
    documents: int
    tokens: int
    text_bytes: int
    marked_documents: int = 0

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text per token, without end-of-text ids."""
        tokens = self.tokens - self.documents
        return self.text_bytes / tokens if tokens else 0.0


class Throughput(NamedTuple):
    """Text per second over the time of a run.

    Attributes:
        edges: the edges of the bins, in seconds since the first part began, (bins + 1,).
        rates: the text per second, in bytes, (bins,).
    """

    edges: npt.NDArray[np.float64]
    rates: npt.NDArray[np.float64]


class Figures(NamedTuple):
    """The figures of a report.

    Attributes:
        total: all finished parts, of this run and earlier ones.
        groups: the finished parts in groups, by name.
        lengths: the tokens per document, in a sample of the parts if there are many.
        throughput: the text per second of this run.
        left_out: the numbers of rows and documents that are not in the dataset, and why.
        evaluation_texts: the evaluation texts that were found, each with its number of documents,
            the largest number first.
    """

    report: RunReport
    total: Group
    groups: tuple[Group, ...]
    lengths: Lengths
    throughput: Throughput | None
    left_out: tuple[tuple[str, str], ...]
    evaluation_texts: tuple[tuple[str, int], ...] = ()


def make_figures(
    report: RunReport, earlier: Sequence[ReportedCounts], spec: DatasetSpec, lengths: Lengths
) -> Figures:
    """Collect the figures of a report.

    Args:
        report: the report of the run.
        earlier: the parts that earlier runs did.
        spec: the specification of the dataset.
        lengths: the lengths of documents.
    """
    parts = sorted([*earlier, *report.parts], key=lambda part: part.part)
    return Figures(
        report=report,
        total=_sum("all", parts),
        groups=tuple(group_by_source(parts)),
        lengths=lengths,
        throughput=throughput(report),
        left_out=tuple(_left_out(report, parts, spec)),
        evaluation_texts=tuple(_evaluation_texts(parts, spec)),
    )


def _evaluation_texts(
    parts: Sequence[ReportedCounts], spec: DatasetSpec
) -> Iterator[tuple[str, int]]:
    counts = Counter[int]()
    for part in parts:
        counts.update(part.evaluation_texts)
    if spec.exclude is not None and counts:
        names = evaluation_texts(spec.exclude, spec.unicode).names
        for number in sorted(counts, key=lambda number: (-counts[number], number)):
            yield names[number], counts[number]


def group_by_source(parts: Sequence[ReportedCounts]) -> list[Group]:
    """Group parts by the first folder in which their sources differ, or else by file.

    If there are more groups than a chart can show, neighbours are joined.
    """
    if not parts:
        return []
    paths = [urlsplit(part.source).path if "://" in part.source else part.source for part in parts]
    folders = [path.split("/")[:-1] for path in paths]
    levels = zip(*folders, strict=False)
    depth = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, levels))
    named: dict[str, list[ReportedCounts]] = {}
    for part, path, folder in zip(parts, paths, folders, strict=True):
        name = "/".join(folder[depth : depth + 1]) or path.rsplit("/", 1)[-1]
        named.setdefault(name, []).append(part)
    names = sorted(named)
    bounds = np.linspace(0, len(names), min(len(names), _MOST_GROUPS) + 1).astype(int)
    groups = []
    for start, end in pairwise(bounds):
        first, last = names[start], names[end - 1]
        members = [part for name in names[start:end] for part in named[name]]
        groups.append(_sum(first if first == last else f"{first} … {last}", members))
    return groups


def throughput(report: RunReport) -> Throughput | None:
    """Spread the text of each part over the time of its tokenization; None if no part has any."""
    parts = [part for part in report.parts if part.tokenized_at and part.text_bytes]
    if not parts or report.seconds <= 0:
        return None
    edges = np.linspace(0.0, report.seconds, int(min(_MOST_BINS, max(8, report.seconds))) + 1)
    done = np.zeros(len(edges))
    for part in parts:
        took = max(part.tokenize_seconds, 1e-3)
        # Clocks of hosts may differ: a time that seems to lie outside the run is moved to its edge.
        end = part.tokenized_at - report.began.timestamp()
        end = max(took, min(end, report.seconds))
        done += np.interp(edges, [end - took, end], [0.0, float(part.text_bytes)])
    return Throughput(edges=edges, rates=np.diff(done) / np.diff(edges))


def _sum(name: str, parts: Sequence[ReportedCounts]) -> Group:
    return Group(
        name=name,
        parts=len(parts),
        rows=sum(part.rows for part in parts),
        documents=sum(part.documents for part in parts),
        tokens=sum(part.tokens for part in parts),
        text_bytes=sum(part.text_bytes for part in parts),
        marked_documents=sum(part.marked_documents for part in parts),
    )


def _left_out(
    report: RunReport, parts: Sequence[ReportedCounts], spec: DatasetSpec
) -> Iterator[tuple[str, str]]:
    bad = sum(part.bad_documents for part in parts)
    listed = [str(one) for part in parts for one in part.bad_listed][:_MOST_BAD]
    more = f"; and {bad - len(listed):,} more" if bad > len(listed) else ""
    columns = spec.read_options.columns
    null = f"null in the column{'s' * (len(columns) > 1)} {', '.join(columns)}"
    copies = f"copies of earlier ones ({spec.deduplicate}), {report.duplicate_tokens:,} tokens"
    counts = [
        (sum(part.null_documents for part in parts), "row", null),
        (bad, "row", f"unreadable: {'; '.join(listed)}{more}"),
        *(
            (
                sum(part.dropped_documents.get(name, 0) for part in parts),
                "row",
                f"dropped by {option_name(name)} {value}",
            )
            for name, value in spec.drops.items()
        ),
        (sum(part.empty_documents for part in parts), "row", "their text gives no token"),
        (report.duplicate_documents, "document", copies),
    ]
    for number, what, why in counts:
        if number or why.startswith("dropped"):
            yield f"{number:,} {what}{'' if number == 1 else 's'}", why
