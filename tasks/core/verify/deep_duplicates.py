"""Comparing all texts of a dataset's sources again: no copy is left, and each that went was one."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from streaming_ext.dataset.deduplicated.duplicates import duplicates_path
from streaming_ext.dataset.layout import DIGESTS_FOLDER, DUPLICATES_FOLDER
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.provenance import documents_limit, read_provenance
from streaming_ext.dataset.record import PartRecord, PieceRecord
from streaming_ext.dataset.shuffled.keys import KEY_BITS, Ints
from streaming_ext.dataset.shuffled.source_table import Source
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import ShardmillError, StoppedError, StorageDownError
from streaming_ext.text.normal_form import compared_texts
from streaming_ext.text.text_digests import text_digests
from tasks.core.deduplicate.compare import compared
from tasks.core.deduplicate.digest_runs import DigestRuns
from tasks.core.reading.dataset_files import DatasetFiles
from tasks.core.reading.part_documents import PartDocuments, PieceHere
from tasks.core.shuffle.run_index import RunIndex
from tasks.core.shuffle.run_record import Run
from tasks.core.storage import LocalStorage
from tasks.core.verify.deep import size_of, source_here
from tasks.core.verify.digests import fingerprint, fingerprint_of_kept
from tasks.core.verify.duplicates import codes, duplicates_of, told
from tasks.core.verify.findings import Outcome

_MOST_ROWS = 2**22  # of sources whose documents are looked up together
_MAX_SHOWN = 3

_ALL: Final[int] = 2**KEY_BITS - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """A part, or a source of a shuffled dataset, and what it is made of."""

    number: int
    rows: int
    pieces: tuple[PieceRecord, ...]


def verify_all_texts(
    manifest: Manifest,
    records: Mapping[int, PartRecord],
    sources: Sequence[Source] | None,
    files: DatasetFiles,
    *,
    report: Callable[[int], None],
) -> Outcome:
    """Read all sources again; compare hashes of their texts with lists of copies and kept hashes.

    Memory does not depend on how many there are; the hashes lie in the temporary folder meanwhile.

    Args:
        manifest: of the dataset.
        records: of all parts, whose lists are sound.
        sources: of a shuffled dataset, by number.
        files: of the dataset.
        report: called now and then; what it raises ends the check.
    """
    out = Outcome()
    spec = next(iter(records.values())).spec
    what = "part" if sources is None else "source"
    with tempfile.TemporaryDirectory(prefix="shardmill-verify-") as name:
        storage = LocalStorage(Path(name) / "hashes")
        storage.create()
        runs: list[tuple[int, Sequence[Run]]] = []
        for groups in _windows(records, sources):
            listed = _listed(groups, records, files, sources is not None)
            for group in groups:
                report(0)
                try:
                    found = _hash(group, listed[group.number], spec, storage.root)
                except (StoppedError, StorageDownError):
                    raise
                except (ShardmillError, OSError) as error:
                    url = group.pieces[0].source.url
                    out.found(url, str(error).removeprefix(f"{url}: "))
                    return out
                runs.append((group.number, found))
        if not any(found for _, found in runs):
            return out
        index = RunIndex.of_runs(runs)
        whole = _compare(storage, index, what, out, report)
        if manifest.digests and not out.findings and whole != fingerprint_of_kept(manifest, files):
            out.found(DIGESTS_FOLDER, "the hashes are not those of the texts of the sources")
    return out


def _windows(
    records: Mapping[int, PartRecord], sources: Sequence[Source] | None
) -> Iterator[list[_Group]]:
    """All groups in order, some at a time."""
    if sources is None:
        for record in records.values():
            yield [_Group(number=record.part, rows=record.rows, pieces=record.made_of)]
        return
    some: list[_Group] = []
    for number, source in enumerate(sources):
        piece = PieceRecord(source=source.identity, span=source.span, rows=source.rows)
        some.append(_Group(number=number, rows=source.rows, pieces=(piece,)))
        if sum(group.rows for group in some) >= _MOST_ROWS:
            yield some
            some = []
    if some:
        yield some


def _listed(
    groups: Sequence[_Group],
    records: Mapping[int, PartRecord],
    files: DatasetFiles,
    shuffled: bool,
) -> dict[int, tuple[Ints, Ints]]:
    """Rows of each group that are documents or copies, and 0 or what names their first copy."""
    none = np.empty(0, np.int64)
    found: dict[int, tuple[list[Ints], list[Ints]]] = {g.number: ([none], [none]) for g in groups}

    def add(of: Ints, rows: Ints, claims: Ints) -> None:
        for number in np.intersect1d(of, list(found)).tolist():
            own = of == number
            found[number][0].append(rows[own])
            found[number][1].append(claims[own])

    for record in records.values() if shuffled else [records[group.number] for group in groups]:
        data = files.read(
            record.documents, limit=documents_limit(record.rows, len(record.spec.keep_columns))
        )
        for batch in read_provenance(data):
            of = np.full(len(batch.rows), record.part) if batch.sources is None else batch.sources
            add(of, batch.rows, np.zeros(len(batch.rows), np.int64))
        for copies in duplicates_of(record, files):
            claims = codes(copies.first_groups, copies.first_rows) + 1
            add(copies.groups, copies.rows, claims)
    joined = {}
    for number, pieces in found.items():
        rows, claims = (np.concatenate(column) for column in pieces)
        order = np.argsort(rows)
        joined[number] = rows[order], claims[order]
    return joined


def _hash(
    group: _Group, listed: tuple[Ints, Ints], spec: DatasetSpec, folder: Path
) -> tuple[Run, ...]:
    """Write sorted hashes of the documents and copies of a group."""
    rows, claims = listed
    runs = DigestRuns(folder, group.number)
    options = spec.read_options
    with tempfile.TemporaryDirectory(prefix="shardmill-verify-") as name:
        here = [
            PieceHere(
                piece.source.url, source_here(_whole(piece, spec), Path(name), options), piece.span,
                size_of(piece),
            )
            for piece in group.pieces
        ]  # fmt: skip
        for batch in PartDocuments(here, options).batches():
            places = np.searchsorted(rows, batch.rows)
            chosen = places < len(rows)
            chosen[chosen] = rows[places[chosen]] == batch.rows[chosen]
            digests = text_digests(compared_texts(batch.texts, spec.deduplicate, spec.unicode))
            runs.add(digests[chosen], batch.rows[chosen], claims[places[chosen]].astype(np.uint64))
    return runs.finish()


def _whole(piece: PieceRecord, spec: DatasetSpec) -> PieceRecord:
    """What pins the bytes of a piece: in a shuffled dataset those of the whole file."""
    return piece if spec.shuffle is None else piece.model_copy(update={"span": None})


def _compare(
    storage: LocalStorage, index: RunIndex, what: str, out: Outcome, report: Callable[[int], None]
) -> int:
    """Find copies that are listed otherwise; returns the fingerprint of all that are none."""
    shown = whole = 0
    for found in compared(storage, index):
        report(0)
        first = found.firsts
        claims = codes(found.parts[first], found.rows[first]) + 1
        claims[first == np.arange(len(first))] = 0
        out.count(compared=len(first))
        whole = (whole + fingerprint(found.kept)) & _ALL
        for place in np.flatnonzero(found.keys.astype(np.int64) != claims).tolist():
            if shown == _MAX_SHOWN:
                return whole
            shown += 1
            own = told(int(codes(found.parts[place], found.rows[place])), what)
            listed, right = (
                "no copy" if not claim else f"a copy of {told(int(claim) - 1, what)}"
                for claim in (int(found.keys[place]), int(claims[place]))
            )
            file = duplicates_path(int(found.parts[place])) if what == "part" else DUPLICATES_FOLDER
            out.found(file, f"{own} is {right} by the texts of the sources, here it is {listed}")
    return whole
