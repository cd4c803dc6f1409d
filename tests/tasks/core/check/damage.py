"""What the tests of `verify` share: running it, and damage done to a dataset."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from streaming_ext.format.schema import content_hash
from streaming_ext.store import LocalStorage
from tasks.core.check.findings import Report
from tasks.core.check.verify import verify
from tests.tasks.core.build_dataset import Forger

DOCUMENTS = "documents/00001.parquet"
RECORD = "parts/00001.json"
ALL = 10**6  # a deep sample of every document


def check(root: Path, **options: Any) -> Report:
    return verify(LocalStorage(root), **{"workers": 2, **options})


def files_named(report: Report) -> set[str]:
    return {finding.file for finding in report.findings}


def listing(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): content_hash(path.read_bytes())
        for path in root.rglob("*")
        if path.is_file()
    }


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


def fix_hash_in_manifest(copy: Path, forger: Forger) -> None:
    old, data = forger.manifest.parts[1].record, (copy / RECORD).read_bytes()
    text = (copy / "manifest.json").read_text()
    text = text.replace(old.xxh128, content_hash(data))
    before, found, after = text.partition('"path": "parts/00001.json",\n    "size": ')
    assert found
    rest = after.partition(",")[2]
    (copy / "manifest.json").write_text(f"{before}{found}{len(data)},{rest}")
