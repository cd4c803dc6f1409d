"""Work that was done more than once, as Prefect's task runs and the datasets' records tell."""

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import httpx

from streaming_ext.format.record import PartRecord

_PAGE = 200
_QUIET_SECONDS = 3.0  # task runs are recorded behind the run's back


@dataclass(frozen=True, slots=True)
class Redone:
    """Work that was begun more than once.

    A task counts as begun while it waits for a worker, so these are upper bounds; but for what a
    server that was killed had not yet recorded.

    Attributes:
        files: files that were begun more than once.
        attempts: attempts beyond the first, of all files.
        text_bytes: bytes of text of those attempts, as if each had come to its end.
        share: their part of the text of all files.
        unknown: files of which Prefect knows no attempt.
    """

    files: int
    attempts: int
    text_bytes: int
    share: float
    unknown: int


def work_redone(api: str, run_name: str, dataset: Path) -> Redone:
    """Find the work that runs with `run_name` in their names did more than once for a dataset."""
    texts = {}
    for file in (dataset / "parts").iterdir():
        record = PartRecord.model_validate_json(file.read_bytes())
        texts[record.part] = record.text_bytes
    attempts = _settled(api, run_name)
    again = {part: count - 1 for part, count in attempts.items() if count > 1}
    redone = sum(texts[part] * count for part, count in again.items())
    return Redone(
        files=len(again),
        attempts=sum(again.values()),
        text_bytes=redone,
        share=redone / sum(texts.values()),
        unknown=len(texts.keys() - attempts.keys()),
    )


def _settled(api: str, run_name: str) -> Counter[int]:
    before, now = None, _attempts(api, run_name)
    while before != now:
        time.sleep(_QUIET_SECONDS)
        before, now = now, _attempts(api, run_name)
    return now


def _attempts(api: str, run_name: str) -> Counter[int]:
    """Count the beginnings of the task `tokenize`, by part."""
    attempts: Counter[int] = Counter()
    wanted = {
        "task_runs": {"name": {"like_": "tokenize"}},
        "flow_runs": {"name": {"like_": run_name}},
        "sort": "ID_DESC",
        "limit": _PAGE,
    }
    offset = 0
    while True:
        asked = httpx.post(f"{api}/task_runs/filter", json={**wanted, "offset": offset}, timeout=60)
        found = asked.raise_for_status().json()
        for task in found:
            attempts[int(task["name"].split()[1])] += task["run_count"]
        offset += len(found)
        if len(found) < _PAGE:
            return +attempts
