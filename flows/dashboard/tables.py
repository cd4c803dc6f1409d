"""The tables of a running run: its parts and its hosts, as rows for people."""

import time
from collections.abc import Sequence
from itertools import islice

from flows.terminal.visible import count_text, plain
from tasks.core.reporting.progress import WorkingFile
from tasks.core.reporting.report import FailedFile, PartTimes

Rows = list[dict[str, str]]
Result = PartTimes | FailedFile

# Together some hundred rows: a browser takes thousands badly, and nobody reads them.
_MOST_WORKING = 60
_MOST_FAILED = 60
_MOST_LATEST = 60
_MOST_SLOWEST = 20
_MOST_LETTERS = 100
_MOST_REASON = 300


def parts_table(working: Sequence[WorkingFile], results: Sequence[Result]) -> Rows:
    """The parts in hand, the failed, the latest and the slowest, in that order; each once."""
    failed = [result for result in results if isinstance(result, FailedFile)]
    done = [result for result in results if isinstance(result, PartTimes)]
    latest = done[: -_MOST_LATEST - 1 : -1]
    slowest = sorted(done[:-_MOST_LATEST], key=lambda part: -part.seconds)[:_MOST_SLOWEST]
    now = time.monotonic()
    return [
        *(_working(file, now) for file in islice(working, _MOST_WORKING)),
        *(_failed(file) for file in failed[: -_MOST_FAILED - 1 : -1]),
        *(_done(part, "done") for part in latest),
        *(_done(part, "done, slow") for part in slowest),
    ]


def describe_parts(working: Sequence[WorkingFile], results: Sequence[Result]) -> str:
    """One line on what the table of parts holds."""
    failed = sum(isinstance(result, FailedFile) for result in results)
    done = len(results) - failed
    rest = f"; of the {done:,} that are done, the latest {_MOST_LATEST} and the slowest" * (
        done > _MOST_LATEST
    )
    return f"{len(working):,} in hand, {failed:,} failed, {done:,} done{rest}"


def hosts_table(working: Sequence[WorkingFile], results: Sequence[Result]) -> Rows:
    """What each host has done and does; its rate is since its first part."""
    hosts = {file.host for file in working} | {result.host for result in results}
    return [_host(host, working, results) for host in sorted(hosts - {""})]


def describe_hosts(rows: Rows) -> str:
    """One line on the table of hosts."""
    rate = sum(float(row["MB/s"].replace(",", "") or 0) for row in rows)
    return f"{len(rows)} host{'s' if len(rows) > 1 else ''}, {rate:,.1f} MB/s"


def _host(host: str, working: Sequence[WorkingFile], results: Sequence[Result]) -> dict[str, str]:
    ended = [result for result in results if result.host == host]
    done = [part for part in ended if isinstance(part, PartTimes)]
    in_hand = [file for file in working if file.host == host]
    counted: list[PartTimes | WorkingFile] = [*done, *in_hand]
    now, clock = time.time(), time.monotonic()
    ago = [now - part.began_at for part in done if part.tokenized_at]
    seconds = max([*ago, *(clock - file.since for file in in_hand)], default=0.0)
    text = sum(item.text_bytes for item in counted)
    return {
        "host": plain(host),
        "parts done": f"{len(done):,}",
        "failed": f"{len(ended) - len(done):,}",
        "in hand": f"{len(in_hand):,}",
        "tokens": count_text(sum(item.tokens for item in counted)),
        "MB/s": _rate(text / seconds if seconds > 0 else 0.0),
    }


def _working(file: WorkingFile, now: float) -> dict[str, str]:
    tokenizes = file.step == "tokenize"
    state = "waiting" if tokenizes and not file.text_bytes else file.step
    rate = file.bytes_per_second(now) if tokenizes else 0.0
    tokens = count_text(file.tokens) if file.tokens else ""
    return _row(file, state, tokens, rate, f"{now - file.since:,.0f}")


def _done(part: PartTimes, state: str) -> dict[str, str]:
    rate = part.text_bytes / part.seconds if part.seconds else 0.0
    return _row(part, state, count_text(part.tokens), rate, f"{part.seconds:,.1f}")


def _failed(file: FailedFile) -> dict[str, str]:
    return _row(file, f"failed: {file.step}") | {"reason": plain(file.reason_alone)[:_MOST_REASON]}


def _row(
    part: WorkingFile | Result, state: str, tokens: str = "", rate: float = 0.0, seconds: str = ""
) -> dict[str, str]:
    return {
        "part": _name(part.source),
        "state": state,
        "tokens": tokens,
        "MB/s": _rate(rate),
        "host": plain(part.host),
        "seconds": seconds,
        "reason": "",
    }


def _name(source: str) -> str:
    """The end of a path that tells parts apart: the file and its folder."""
    name = plain("/".join(source.split("/")[-2:]))
    return name if len(name) <= _MOST_LETTERS else f"…{name[1 - _MOST_LETTERS :]}"


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e6:,.1f}" if bytes_per_second else ""
