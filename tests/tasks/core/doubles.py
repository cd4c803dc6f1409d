"""A tokenizer whose ids are the bytes of the text, and parts made with it, all in a few lines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.format.compression import decompress
from streaming_ext.format.layout import Split
from streaming_ext.format.record import SplitPart
from streaming_ext.format.spec import DatasetSpec, TokenizerIdentity
from streaming_ext.store import Storage
from streaming_ext.text.parts.part import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.engine import ReferenceEngine
from streaming_ext.text.tokenizer.load import open_saved
from streaming_ext.text.tokenizer.rank_file import RankTokenizer
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.shard.run_plan import RunPlan
from tasks.core.workers.jobs import RESULT_FILE, TokenizedPart
from tasks.core.workers.messages import JobProgress
from tasks.core.workers.tokenize_part import TokenizeJob, tokenize_part
from tasks.core.workers.write_part import WriteJob, write_part

EOT = 256


class ByteReference:
    """Stands in for a tiktoken encoding: one id a byte."""

    def encode_ordinary(self, text: str) -> list[int]:
        return list(text.encode())


def byte_tokenizer(*, vocab_size: int = 257, eot_id: int = EOT) -> Tokenizer:
    return RankTokenizer(
        name="bytes",
        vocab_size=vocab_size,
        eot_id=eot_id,
        eot_token="<|endoftext|>",
        fingerprint="bytes",
        pattern="gpt2",
        ranks={},
        special_tokens={},
        encoding=ByteReference(),
    )


def make_spec(*, tokenizer: Tokenizer | None = None, **changes: Any) -> DatasetSpec:
    """Samples of 4 tokens, 3 in a full shard that is not compressed, no holdout."""
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
    """A Parquet file with the column `text`."""
    kept = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": kept}), path, **options)
    return SourceFile(url=str(path), size=path.stat().st_size)


def tokenize_job(
    source: SourceFile, scratch: Path, spec: DatasetSpec, *, part: int = 0
) -> TokenizeJob:
    return TokenizeJob(
        part=Part.whole(part, source),
        scratch=str(scratch),
        tokenizer_folder="not used",
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
) -> tuple[TokenizedPart, list[JobProgress]]:
    """Tokenize one part into `scratch`; also what was reported on the way."""
    chosen = tokenizer or byte_tokenizer()
    reports: list[JobProgress] = []
    job = tokenize_job(source, scratch, spec, part=part)
    return tokenize_part(job, chosen, ReferenceEngine(chosen), reports.append), reports


def write_job(
    scratch: Path,
    output: Path | str,
    spec: DatasetSpec,
    *,
    part: int = 0,
    source_url: str | None = None,
) -> WriteJob:
    """The job that goes with what was tokenized into `scratch`, if anything was."""
    result = scratch / RESULT_FILE
    if source_url is None and result.exists():
        source_url = TokenizedPart.model_validate_json(result.read_bytes()).source.url
    return WriteJob(
        part=Part.whole(part, SourceFile(url=source_url or "nowhere", size=0)),
        scratch=str(scratch),
        output=str(output),
        spec=spec,
    )


def ids_in(root: Path, spec: DatasetSpec, split: Split, packed: SplitPart) -> list[int]:
    """The token stream of a part's split, without its padding, from shards below `root`."""
    ids: list[int] = []
    for shard in packed.shards:
        data = (root / split / shard.name).read_bytes()
        if shard.zip_name is not None:
            data = decompress(data, codec=spec.compression, raw_size=shard.raw_bytes)
        ids += spec.shard_format.tokens_of(data, shard.samples).reshape(-1).tolist()
    assert len(ids) == packed.tokens + packed.padding
    assert set(ids[packed.tokens :]) <= {spec.tokenizer.eot_id}
    return ids[: packed.tokens]


def do(plan: RunPlan, storage: Storage, *parts: int) -> None:
    """Make some parts of a plan, as workers would."""
    for part in parts:
        scratch = plan.part_scratch(part)
        tokenizer = open_saved(plan.tokenizer_folder)
        source = plan.parts[part].spans[0].source
        tokenized(source, scratch, plan.spec, tokenizer=tokenizer, part=part)
        write_part(write_job(scratch, str(storage), plan.spec, part=part), storage)
