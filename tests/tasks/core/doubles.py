"""A tokenizer whose ids are the bytes of the text, and parts made with it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.format.compression import decompress
from streaming_ext.format.layout import Split, record_path
from streaming_ext.format.record import PartRecord, SplitPart
from streaming_ext.format.schema import from_json
from streaming_ext.format.spec import DatasetSpec, TokenizerIdentity
from streaming_ext.store import Storage
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.engine import ReferenceEngine
from streaming_ext.text.tokenizer.rank_file import RankTokenizer
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.reporting.report import ReportedCounts
from tasks.core.workers.messages import JobProgress, Report, WorkerCache
from tasks.core.workers.move_part import RECORD_FILE, WriteJob, WrittenPart
from tasks.core.workers.tokenize_part import TokenizeJob, tokenize_part

EOT = 256


class ByteReference:
    """Stands in for a tiktoken encoding: one id per byte."""

    def encode_ordinary(self, text: str) -> list[int]:
        return list(text.encode())


def byte_tokenizer(*, vocab_size: int = 257, eot_id: int = EOT) -> Tokenizer:
    made = RankTokenizer(
        name="bytes",
        vocab_size=vocab_size,
        eot_id=eot_id,
        eot_token="<|endoftext|>",
        fingerprint="bytes",
        pattern="gpt2",
        data=b"",
        special_tokens={},
    )
    vars(made).update(encoding=ByteReference())
    return made


def make_spec(*, tokenizer: Tokenizer | None = None, **changes: Any) -> DatasetSpec:
    """Return a spec: samples of 4 tokens, 3 per full shard, no compression, no holdout."""
    values: dict[str, Any] = {
        "text_column": "text",
        "sequence_length": 4,
        "holdout_fraction": 0.0,
        "holdout_seed": 0,
        "shard_size": 230,
        "compression": "none",
    }
    chosen = tokenizer or byte_tokenizer()
    identity = TokenizerIdentity.model_validate(chosen.description())
    return DatasetSpec(tokenizer=identity, **(values | changes))


def write_source(path: Path, texts: Sequence[str | None] | pa.Array, **options: Any) -> SourceFile:
    """Write a Parquet file with the column `text`."""
    kept = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": kept}), path, **options)
    return SourceFile(url=str(path), size=path.stat().st_size)


def tokenize_job(
    source: SourceFile, scratch: Path, spec: DatasetSpec, *, part: int = 0
) -> TokenizeJob:
    return TokenizeJob(
        part=Part.whole(part, source),
        scratch=scratch,
        tokenizer_folder=Path("not used"),
        engine="reference",
        spec=spec,
    )


def tokenized(
    source: SourceFile,
    scratch: Path,
    spec: DatasetSpec,
    *,
    tokenizer: Tokenizer | None = None,
    part: int = 0,
) -> tuple[PartRecord, list[JobProgress]]:
    """Tokenize one part into `scratch`; return its record and the reported progress."""
    chosen = tokenizer or byte_tokenizer()
    reports: list[JobProgress] = []
    job = tokenize_job(source, scratch, spec, part=part)
    packed = tokenize_part(job, chosen, ReferenceEngine(chosen), reports.append)
    record = record_in(scratch)
    assert packed.counts == ReportedCounts.of(record)
    return record, reports


def record_in(scratch: Path) -> PartRecord:
    """Return the record of the part that was tokenized into a folder."""
    return from_json(PartRecord, (scratch / RECORD_FILE).read_bytes(), where=str(scratch))


def write_job(scratch: Path, output: Path | str, *, part: int = 0) -> WriteJob:
    """Return the job that writes the part tokenized into `scratch`."""
    return WriteJob(scratch=scratch, output=str(output), record=record_path(part))


def write_part(
    job: WriteJob, storage: Storage, report: Report = lambda progress: None
) -> WrittenPart:
    """Write a part to a storage that a test watches."""
    cache = WorkerCache()
    cache.storage = lambda url: storage
    return job.do(cache, report)


def stream_in(root: Path, spec: DatasetSpec, split: Split, packed: SplitPart) -> npt.NDArray[Any]:
    """Return all ids of a part's split, padding included, from shards below `root`."""
    arrays = [np.empty(0, spec.dtype)]
    for shard in packed.shards:
        data = (root / split / shard.name).read_bytes()
        if shard.zip_name is not None:
            data = decompress(data, codec=spec.compression, raw_size=shard.raw_bytes)
        arrays.append(spec.shard_format.tokens_of(data, shard.samples).reshape(-1))
    return np.concatenate(arrays)


def ids_in(root: Path, spec: DatasetSpec, split: Split, packed: SplitPart) -> list[int]:
    """Return all ids of a part's split without padding."""
    ids: list[int] = stream_in(root, spec, split, packed).tolist()
    assert len(ids) == packed.tokens + packed.padding
    assert set(ids[packed.tokens :]) <= {spec.tokenizer.eot_id}
    return ids[: packed.tokens]
