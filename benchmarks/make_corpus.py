"""Make a corpus of Parquet files by sampling passages of real documents.

Lengths are log-normal around 4.5 KB, columns those of FineWeb-Edu. Passages drawn with replacement
from few documents repeat their words more than web text does, which flatters tokenizers that cache
words. `--mutate 0.005` replaces one lower-case letter in about 200 by another: on 31 MB of source
that gives a 100 MB file as many distinct words (340 thousand) as the source's own growth of
vocabulary would (300 thousand, exponent 0.65), instead of 140 thousand.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.common import default_documents

DOCUMENTS_A_ROW_GROUP = 1000
_LOG_MEAN, _LOG_SIGMA = 8.05, 0.85  # of characters
_MEAN_BYTES = 4300  # of a passage: some documents end before the length wanted


def mutate(
    text: npt.NDArray[np.uint8], share: float, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Replace a share of the lower-case letters by others."""
    places = rng.integers(0, len(text), rng.binomial(len(text), share))
    places = places[(text[places] >= ord("a")) & (text[places] <= ord("z"))]
    text = text.copy()
    text[places] = rng.integers(ord("a"), ord("z") + 1, len(places))
    return text


@functools.cache
def _source(documents: tuple[Path, ...]) -> tuple[pa.Table, list[str], npt.NDArray[np.int64]]:
    table = pa.concat_tables(pq.read_table(path) for path in documents)
    texts = table["text"].to_pylist()
    return table, texts, np.array([len(text) for text in texts])


def sample(
    documents: tuple[Path, ...], count: int, share: float, rng: np.random.Generator
) -> pa.Table:
    """Passages of random documents, the longer ones more often, with their other columns."""
    table, texts, lengths = _source(documents)
    rows = rng.choice(len(texts), count, p=lengths / lengths.sum())
    wanted = rng.lognormal(_LOG_MEAN, _LOG_SIGMA, count).astype(int) + 1
    passages = []
    for row, length in zip(rows.tolist(), wanted.tolist(), strict=True):
        start = int(rng.integers(0, max(1, lengths[row] - length)))
        passage = texts[row][start : start + length]
        if share:
            letters = np.frombuffer(passage.encode(), np.uint8)
            passage = mutate(letters, share, rng).tobytes().decode()
        passages.append(passage)
    column = table.schema.get_field_index("text")
    return table.take(pa.array(rows)).set_column(column, "text", pa.array(passages))


def write_file(
    path: Path, *, number: int, documents: tuple[Path, ...], megabytes: float, share: float
) -> int:
    """Write one file of about so many MB of text; returns the bytes."""
    rng = np.random.default_rng(number)
    written = 0
    with pq.ParquetWriter(path, _source(documents)[0].schema, compression="zstd") as writer:
        while written < 0.995 * megabytes * 1e6:
            left = int((megabytes * 1e6 - written) / _MEAN_BYTES) + 1
            table = sample(documents, min(left, DOCUMENTS_A_ROW_GROUP), share, rng)
            writer.write_table(table)
            written += pc.sum(pc.binary_length(table["text"])).as_py()
    return written


def make_corpus(
    folder: Path,
    *,
    files: int,
    megabytes: float,
    share: float = 0.0,
    documents: list[Path] | None = None,
) -> list[Path]:
    """Make the files that the folder does not hold yet, and return all."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:05}.parquet" for number in range(files)]
    jobs = [(number, path) for number, path in enumerate(paths) if not path.exists()]
    write = functools.partial(
        _write_job,
        documents=tuple(documents or default_documents()),
        megabytes=megabytes,
        share=share,
    )
    if jobs:
        with multiprocessing.Pool(min(len(jobs), multiprocessing.cpu_count())) as pool:
            total = sum(pool.imap_unordered(write, jobs))
        print(f"{folder}: {len(jobs)} files, {total / 1e6:.0f} MB of text", file=sys.stderr)
    return paths


def _write_job(job: tuple[int, Path], **facts: Any) -> int:
    number, path = job
    unfinished = path.with_suffix(".tmp")
    written = write_file(unfinished, number=number, **facts)
    unfinished.rename(path)
    return written


def main() -> None:
    """Read the command line and make the corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--mb-per-file", type=float, default=130, help="MB of text")
    parser.add_argument("--mutate", type=float, default=0.0, help="share of letters to change")
    parser.add_argument("--documents", type=Path, nargs="*", help="Parquet files to sample")
    args = parser.parse_args()
    make_corpus(
        args.folder,
        files=args.files,
        megabytes=args.mb_per_file,
        share=args.mutate,
        documents=args.documents,
    )


if __name__ == "__main__":
    main()
