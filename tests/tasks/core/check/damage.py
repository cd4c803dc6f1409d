"""Helpers for the tests of `verify` and `inspect`: they run, print and damage."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from streaming_ext.format.schema import content_hash
from streaming_ext.store import LocalStorage
from tasks.core.check.findings import Report
from tasks.core.check.verify import verify
from tests.tasks.core.build_dataset import Forger, as_written

DOCUMENTS = "documents/00001.parquet"
RECORD = "parts/00001.json"
ALL = 10**6  # a deep sample of every document


def check(root: Path, **options: Any) -> Report:
    return verify(LocalStorage(root), **{"workers": 2, **options})


def files_named(report: Report) -> set[str]:
    return {finding.file for finding in report.findings}


def printed(show: Callable[..., None], value: object) -> str:
    """Return what a function prints on a wide terminal."""
    console = Console(file=io.StringIO(), record=True, width=200)
    show(value, console)
    return console.export_text()


def flip(path: Path, position: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[position if position >= 0 else len(data) // 2] ^= 1
    path.write_bytes(data)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def forged(copy: Path, change: Callable[[Forger], None], **options: Any) -> set[str]:
    forger = Forger(copy)
    change(forger)
    forger.seal()
    return files_named(check(copy, **options))


def with_record(copy: Path, data: bytes) -> set[str]:
    """Put other data in place of a record, list it in the manifest, and return the files named."""
    (copy / RECORD).write_bytes(data)
    manifest = json.loads((copy / "manifest.json").read_bytes())
    manifest["parts"][1]["record"] |= {"size": len(data), "xxh128": content_hash(data)}
    (copy / "manifest.json").write_bytes(as_written(manifest))
    return files_named(check(copy))
