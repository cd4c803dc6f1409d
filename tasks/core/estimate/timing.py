"""Doing the sample as a run would: the real workers, engine and codec, on all workers at once.

Every worker does the first half of the sample to get warm, since engines remember words, and then
all of them together the second half, some times over, which is timed. Both halves are counted.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.dataset.layout import documents_path
from streaming_ext.dataset.provenance import read_provenance
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.text.documents.formats import format_of
from streaming_ext.text.filters.filters import NO_FILTERS
from streaming_ext.text.parts.part import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.prepared import save_tokenizer
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.config import ShardConfig
from tasks.core.estimate.looking import Footer, Rows
from tasks.core.storage import LocalStorage
from tasks.core.workers.jobs import TokenizedPart, TokenizeJob, WriteJob, WrittenPart
from tasks.core.workers.pool import WorkerPool

_ROUNDS = 3  # timed; their median is taken, since other work may disturb one
Ints = npt.NDArray[np.int64]
Done = list[tuple[TokenizedPart, WrittenPart]]  # of one worker: the first half, then the rounds


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """What the workers made of the sample.

    Attributes:
        tokens: of each text, its end-of-text id counted, 0 where it gives none; one array a piece
            of the sample, (texts,).
        seconds: of each timed round, a mean over the workers, to tokenize and write the half.
        text_bytes: of that half.
        stored_a_token: bytes of shards.
        documents_a_token: bytes of the table of documents.
    """

    tokens: list[Ints]
    seconds: tuple[float, ...]
    text_bytes: int
    stored_a_token: float
    documents_a_token: float

    @property
    def rate(self) -> float:
        """Text a worker does while all of them work, in bytes a second."""
        return self.text_bytes / float(np.median(self.seconds))

    @property
    def spread(self) -> float:
        """How far the rounds lie from their median at most, as a share of it."""
        return float(np.abs(np.array(self.seconds) / np.median(self.seconds) - 1).max())


def time_sample(
    sample: Sequence[Rows],
    *,
    like: Footer,
    config: ShardConfig,
    tokenizer: Tokenizer,
    spec: DatasetSpec,
    workers: int,
    folder: Path,
) -> Timed:
    """Tokenize and write the sample in `workers` processes at once.

    Args:
        sample: pieces of the sources.
        like: one of the sources; the sample becomes a file of its format.
        config: of the run that is planned.
        tokenizer: its tokenizer.
        spec: what decides the bytes of its dataset.
        workers: processes, all of which do the same.
        folder: an empty folder, for the sample and what is made of it.
    """
    tokenizer_folder = folder / "tokenizer"
    save_tokenizer(tokenizer, tokenizer_folder, engine=config.engine)
    storage = LocalStorage(folder / "output")
    storage.create()
    halves = [[piece.texts[: len(piece.texts) // 2] for piece in sample],
              [piece.texts[len(piece.texts) // 2 :] for piece in sample]]  # fmt: skip
    # What is timed was chosen by the filters already, and has no columns but those of its text.
    # A second stage only puts off the packing, which is in the time so.
    spec = spec.model_copy(
        update={"filters": NO_FILTERS, "keep_columns": (), "shuffle": None, "deduplicate": None}
    )
    source, options = like.source, spec.read_options
    reads = format_of(source.url, options)
    suffix = reads.sample_suffix
    files = [folder / f"{half}-{source.name[-64:]}{suffix}" for half in ("warm", "timed")]
    if suffix:
        spec = spec.model_copy(update={"source_format": None})
    for file, half in zip(files, halves, strict=True):
        texts = pa.chunked_array(half, pa.large_string())
        reads.write(file, texts, options, codec=like.codec)
    together = threading.Barrier(workers)

    with WorkerPool(workers) as pool:
        pool.prepare(tokenizer_folder, config.engine)

        def one(worker: int) -> Done:
            done: Done = []
            for number in range(1 + _ROUNDS):
                together.wait()
                file = files[min(number, 1)]
                scratch = folder / f"{worker}-{number}"
                part = Part.whole(
                    worker * (1 + _ROUNDS) + number,
                    SourceFile(url=str(file), size=file.stat().st_size),
                )
                tokenized = pool.run(
                    TokenizeJob(
                        part=part,
                        scratch=str(scratch),
                        tokenizer_folder=str(tokenizer_folder),
                        engine=config.engine,
                        spec=spec,
                    )
                )
                written = pool.run(
                    WriteJob(
                        part=part,
                        scratch=str(scratch),
                        output=str(storage),
                        spec=spec,
                    )
                )
                done.append((tokenized, written))
            return done

        def guarded(worker: int) -> Done:
            try:
                return one(worker)
            except BaseException:
                together.abort()  # or the others would wait for ever
                raise

        with ThreadPoolExecutor(workers) as threads:
            futures = [threads.submit(guarded, worker) for worker in range(workers)]
        done = _results(futures)
    tables = [folder / f"0-{number}" / documents_path(number) for number in range(len(files))]
    counts = [_tokens_of_pieces(table, half) for table, half in zip(tables, halves, strict=True)]
    halves_done = done[0][: len(files)]
    tokens = sum(part.tokens for part, _ in halves_done)
    return Timed(
        tokens=[np.concatenate(both) for both in zip(*counts, strict=True)],
        seconds=tuple(
            float(np.mean([part.seconds + written.seconds for part, written in of_round]))
            for of_round in zip(*(each[1:] for each in done), strict=True)
        ),
        text_bytes=halves_done[1][0].text_bytes,
        stored_a_token=sum(written.shard_bytes for _, written in halves_done) / max(tokens, 1),
        documents_a_token=sum(table.stat().st_size for table in tables) / max(tokens, 1),
    )


def _results(futures: list[Future[Done]]) -> list[Done]:
    """What all threads made; the first fault where there is one, not that the others gave up."""
    faults = [fault for future in futures if (fault := future.exception()) is not None]
    for fault in faults:
        if not isinstance(fault, threading.BrokenBarrierError):
            raise fault
    return [future.result() for future in futures]


def _tokens_of_pieces(table: Path, texts: Sequence[pa.LargeStringArray]) -> list[Ints]:
    """Tokens of each text of each piece, from what tokenizing noted of the pieces end to end."""
    tokens = np.zeros(sum(len(piece) for piece in texts), np.int64)
    for documents in read_provenance(table.read_bytes()):
        tokens[documents.rows] = documents.tokens.astype(np.int64) + 1
    return np.split(tokens, np.cumsum([len(piece) for piece in texts])[:-1])
