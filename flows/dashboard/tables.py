"""The tables of a run that is going on: its parts and its hosts, as rows for people."""

import time
from collections.abc import Sequence

from pydantic import TypeAdapter

from flows.terminal.printing import count_text, counted, plain, shortened
from tasks.core.reporting.progress import Snapshot, WorkingFile
from tasks.core.reporting.report import FailedFile, PartTimes

PROGRESS = "shard-progress"  # key of the artifact that shows the counters
METADATA = "snapshot"  # of it: the counters, for `shardmill submit`
SNAPSHOT = TypeAdapter(Snapshot)

Rows = list[dict[str, str]]
Result = PartTimes | FailedFile

# Together some hundred rows: more of them slow a browser down, and nobody reads them.
_MOST_ROWS = 60  # of parts in hand, of failed ones, and of the latest
_MOST_LETTERS = 100
_MOST_REASON = 300


def parts_table(working: Sequence[WorkingFile], results: Sequence[Result]) -> Rows:
    """The parts in hand, the failed and the latest that are done, in that order; each once."""
    failed = [result for result in results if isinstance(result, FailedFile)]
    done = [result for result in results if isinstance(result, PartTimes)]
    now = time.monotonic()
    return [
        *(_working(file, now) for file in working[:_MOST_ROWS]),
        *(
            _row(part, f"failed: {part.step}", reason=plain(part.reason_alone)[:_MOST_REASON])
            for part in failed[: -_MOST_ROWS - 1 : -1]
        ),
        *(_done(part) for part in done[: -_MOST_ROWS - 1 : -1]),
    ]


def describe_parts(working: Sequence[WorkingFile], results: Sequence[Result]) -> str:
    """One line about the table of parts."""
    failed = sum(isinstance(result, FailedFile) for result in results)
    done = len(results) - failed
    latest = f"; the latest {_MOST_ROWS} of each" if done > _MOST_ROWS else ""
    return f"{len(working):,} in hand, {failed:,} failed, {done:,} done{latest}"


def hosts_table(working: Sequence[WorkingFile], results: Sequence[Result]) -> Rows:
    """The work of each host; its rate is that since its first part."""
    hosts = {file.host for file in working} | {result.host for result in results}
    return [_host(host, working, results) for host in sorted(hosts - {""})]


def describe_hosts(rows: Rows) -> str:
    """One line about the table of hosts."""
    rate = sum(float(row["MB/s"].replace(",", "") or 0) for row in rows)
    return f"{counted(len(rows), 'host')}, {rate:,.1f} MB/s"


def _host(host: str, working: Sequence[WorkingFile], results: Sequence[Result]) -> dict[str, str]:
    ended = [result for result in results if result.host == host]
    done = [part for part in ended if isinstance(part, PartTimes)]
    in_hand = [file for file in working if file.host == host]
    all_parts: list[PartTimes | WorkingFile] = [*done, *in_hand]
    now, clock = time.time(), time.monotonic()
    ages = [now - part.began_at for part in done if part.tokenized_at]
    seconds = max([*ages, *(clock - file.since for file in in_hand)], default=0.0)
    text = sum(part.text_bytes for part in all_parts)
    return {
        "host": plain(host),
        "parts done": f"{len(done):,}",
        "failed": f"{len(ended) - len(done):,}",
        "in hand": f"{len(in_hand):,}",
        "tokens": count_text(sum(part.tokens for part in all_parts)),
        "MB/s": _rate(text, seconds),
    }


def _working(file: WorkingFile, now: float) -> dict[str, str]:
    state, rate, seconds = file.step, "", now - file.since
    if file.step == "tokenize":
        rate = _rate(file.text_bytes - file.first_bytes, seconds)
        state = state if file.text_bytes else "waiting"
    return _row(file, state, tokens=file.tokens, rate=rate, seconds=f"{seconds:,.0f}")


def _done(part: PartTimes) -> dict[str, str]:
    rate = _rate(part.text_bytes, part.seconds)
    return _row(part, "done", tokens=part.tokens, rate=rate, seconds=f"{part.seconds:,.1f}")


def _row(
    part: WorkingFile | Result,
    state: str,
    *,
    tokens: int = 0,
    rate: str = "",
    seconds: str = "",
    reason: str = "",
) -> dict[str, str]:
    # The file and its folder: the end of a path tells parts apart.
    name = plain("/".join(part.source.split("/")[-2:]))
    return {
        "part": shortened(name, _MOST_LETTERS),
        "state": state,
        "tokens": count_text(tokens) if tokens else "",
        "MB/s": rate,
        "host": plain(part.host),
        "seconds": seconds,
        "reason": reason,
    }


def _rate(num_bytes: int, seconds: float) -> str:
    return f"{num_bytes / 1e6 / seconds:,.1f}" if num_bytes and seconds > 0 else ""
