"""A corpus of Parquet files, sampled from passages of real documents.

Lengths are log-normal around 4.5 KB, and columns are those of FineWeb-Edu. Passages drawn with
replacement from few documents repeat words more often than web text does, which favours tokenizers
that cache words. So about one lower-case letter in 200 is replaced by another. From a source of 31
MB, a file of 100 MB gets 340 thousand distinct words, not 140 thousand; the growth of the source's
own vocabulary (exponent 0.65) predicts 300 thousand.
"""

from __future__ import annotations

import functools
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.common import SCRATCH, default_documents

DOCUMENTS_A_ROW_GROUP = 1000
_LOG_MEAN, _LOG_SIGMA = 8.05, 0.85  # of characters
_CHANGED = 0.005  # of the letters
_MEAN_BYTES = 4300  # per passage: some documents end before the wanted length


def mutate(
    text: npt.NDArray[np.uint8], share: float, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Replace a fraction of the lower-case letters, `share`, by others."""
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
    """Return passages of random documents, weighted by length, with their other columns."""
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


def write_file(path: Path, documents: tuple[Path, ...], megabytes: float) -> None:
    """Write a file with about `megabytes` MB of text; the number in its name is the seed."""
    rng = np.random.default_rng(int(path.stem))
    written, unfinished = 0, path.with_suffix(".tmp")
    with pq.ParquetWriter(unfinished, _source(documents)[0].schema, compression="zstd") as writer:
        while written < 0.995 * megabytes * 1e6:
            left = int((megabytes * 1e6 - written) / _MEAN_BYTES) + 1
            table = sample(documents, min(left, DOCUMENTS_A_ROW_GROUP), _CHANGED, rng)
            writer.write_table(table)
            written += pc.sum(pc.binary_length(table["text"])).as_py()
    unfinished.rename(path)


def make_corpus(megabytes: float, files: int) -> list[Path]:
    """Return `files` files with `megabytes` MB of text in total; make those that do not exist."""
    folder = SCRATCH / f"corpus-{files}-{megabytes:g}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:05}.parquet" for number in range(files)]
    missing = [path for path in paths if not path.exists()]
    sizes = {"documents": tuple(default_documents()), "megabytes": megabytes / files}
    with ProcessPoolExecutor() as pool:
        list(pool.map(functools.partial(write_file, **sizes), missing))
    return paths
