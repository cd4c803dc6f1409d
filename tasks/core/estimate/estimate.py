"""From a sample of the sources to documents, tokens, disk, time, and how sure each is."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict

from streaming_ext.dataset.spec import DatasetSpec, TokenizerIdentity
from streaming_ext.errors import ScratchError, SourceError, UsageError
from streaming_ext.storage.dialects.choice import OBJECT_STORES
from streaming_ext.storage.local_paths import local_path, require_writable_name
from streaming_ext.text.parts.looking import can_be_cut
from streaming_ext.text.parts.part import sizes_of
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.tokenizer import load_tokenizer
from tasks.core.estimate.config import MOST_PARTS, EstimateConfig
from tasks.core.estimate.cost import Cost, Work, cost
from tasks.core.estimate.ratio import Quantity, ratio
from tasks.core.estimate.sample import LookedInto, Sample, look_into, read_texts, work_on
from tasks.core.planning.parts import parts_of
from tasks.core.planning.sources import check_sources
from tasks.core.storage import LocalStorage, open_storage
from tasks.core.storage.scratch import temporary_folder

Floats = npt.NDArray[np.float64]

_ONE_GBIT = 125e6
_RECORD_BYTES = 1500  # of a part: its record, its line in the manifest
_SHARD_ENTRY_BYTES = 1000  # of a shard: in the record and in the index


class Estimate(BaseModel):
    """What a run would make and take; sizes in bytes, rates in bytes a second.

    Attributes:
        files, parts, source_bytes: of the sources; `scaled` where they were given, not listed.
        sample_files, sample_bytes: files that were looked into, and text of them that was read.
        unreadable: files that were to be among them.
        tokens: with one end-of-text id a document, padding left out.
        bytes_per_token: of text, for a token of it.
        worker_rate: text that a worker does while all others work, timed here.
        link, disk: of a host; None where it does not count, or is in `worker_rate`.
    """

    model_config = ConfigDict(frozen=True)

    files: int
    parts: int
    source_bytes: int
    scaled: bool
    sample_files: int
    sample_bytes: int
    unreadable: int
    documents: Quantity
    text_bytes: Quantity
    tokens: Quantity
    bytes_per_token: Quantity
    samples: Quantity
    shard_bytes: Quantity
    shards: int
    hosts: int
    workers: int
    worker_rate: float
    link: float | None
    disk: float | None
    cost: Cost


def estimate(
    config: EstimateConfig, report: Callable[[str], None] = lambda phase: None
) -> Estimate:
    """Look at the sources, work on a sample of them, and scale.

    Args:
        config: the run, and the machines.
        report: called with what is going on.

    Raises:
        UsageError, SourceError, ScratchError: as a run would; no text is found.
    """
    remote = _is_remote(config.output)
    scratch = temporary_folder() if config.scratch is None else _writable(config.scratch)
    report("looking at the sources")
    listed = check_sources(config)
    sizes, parts = _planned_for(config, listed)
    looked, unreadable = look_into(
        listed, config.read_options, files=config.sample_files, seed=config.sample_seed
    )
    report("reading a sample")
    texts = read_texts(looked, config)
    if not any(pc.max(pc.binary_length(each.texts)).as_py() for each in texts):
        raise SourceError(f"{looked[0].source.url}: no text in the rows that were looked at.")
    tokenizer = load_tokenizer(config.tokenizer, eot_token=config.eot_token, pattern=config.pattern)
    spec = config.spec(TokenizerIdentity.model_validate(tokenizer.description()))
    report("tokenizing the sample")
    workers = min(config.workers, os.cpu_count() or 1)
    try:
        folder = tempfile.TemporaryDirectory(prefix="shardmill-plan-", dir=scratch)
    except OSError as error:
        raise ScratchError(f"Cannot write to scratch {scratch}: {error.strerror}.") from error
    with folder as name:
        sample = work_on(
            texts, config=config, tokenizer=tokenizer, spec=spec, workers=workers, folder=Path(name)
        )
    return _scaled(
        config,
        spec,
        sizes=sizes,
        parts=parts,
        looked=looked,
        sample=sample,
        unreadable=unreadable,
        remote=remote,
    )


def _is_remote(output: str) -> bool:
    """Whether an output is object storage, which is asked nothing: plans need no credentials.

    Raises:
        UsageError: no run could write there.
    """
    if output.partition("://")[0] in OBJECT_STORES:
        return True
    storage = open_storage(output)
    if isinstance(storage, LocalStorage):
        storage.require_no_file()
    return storage.remote


def _writable(scratch: str) -> Path:
    require_writable_name(scratch)
    return local_path(scratch)


def _planned_for(
    config: EstimateConfig, listed: Sequence[SourceFile]
) -> tuple[Sequence[int], Sequence[int]]:
    """Sizes of the source files to plan for, and of the parts that they become."""
    sizes = [source.size for source in listed]
    if config.total_size is None:
        return sizes, sizes_of(parts_of(listed, config))
    total = int(config.total_size)
    files = config.total_files or max(1, round(total / max(1, sum(sizes) / len(sizes))))
    size = max(1, total // files)
    if size > config.part_size and can_be_cut(listed[0], config.read_options):
        parts = files * -(-size // int(config.part_size))
    else:
        together = min(-(-int(config.min_part_size) // size), int(config.part_size) // size)
        parts = -(-files // max(1, together))
    if max(files, parts) > MOST_PARTS:
        raise UsageError(
            f"--total-size makes {files:,} files and {parts:,} parts; `plan` takes "
            f"{MOST_PARTS:,} at most. Give a smaller one, or fewer --total-files and a larger "
            "--part-size."
        )
    return [size] * files, [total // parts] * parts


def _scaled(
    config: EstimateConfig,
    spec: DatasetSpec,
    *,
    sizes: Sequence[int],
    parts: Sequence[int],
    looked: Sequence[LookedInto],
    sample: Sample,
    unreadable: int,
    remote: bool,
) -> Estimate:
    source = sum(sizes)
    read = sum(texts.source_bytes for texts, _, _ in sample.made) / source
    size, *counts = _drawn(looked, sample, by_file=len(sizes) > 1).T
    documents, text, tokens = (ratio(count, size, read=read).times(source) for count in counts)
    rows = [file.rows for file in looked if file.rows is not None]
    if len(rows) == len(looked):  # counted in each of these files, but for rows without a token
        sizes_looked = [file.source.size for file in looked]
        read_rows = sum(texts.rows for texts, _, _ in sample.made)
        kept = sum(made.documents for _, made, _ in sample.made) / read_rows
        documents = ratio(rows, sizes_looked, read=sum(sizes_looked) / source).times(kept * source)
    stored = sum(written.shard_bytes for _, _, written in sample.made)
    shard_bytes = tokens.times(stored / max(1, sum(made.tokens for _, made, _ in sample.made)))
    shards = _shards(parts, tokens.value, spec)
    if config.remote_sources is None:
        fetched = sum(file.fetched for file in looked)
    else:
        fetched = sum(file.source.size for file in looked) if config.remote_sources else 0
    link = config.link or (_ONE_GBIT if remote or fetched else None)
    work = Work(
        parts=parts,
        text=text.value,
        fetched=source * fetched / sum(file.source.size for file in looked),
        output=shard_bytes.value
        + sample.table_bytes * tokens.value
        + _RECORD_BYTES * len(parts)
        + _SHARD_ENTRY_BYTES * shards,
        documents=documents.value,
        tokens=tokens.value,
        uploads=remote,
    )
    return Estimate(
        files=len(sizes),
        parts=len(parts),
        source_bytes=source,
        scaled=config.total_size is not None,
        sample_files=len(looked),
        sample_bytes=sum(made.text_bytes for _, made, _ in sample.made),
        unreadable=unreadable,
        documents=documents,
        text_bytes=text,
        tokens=tokens,
        bytes_per_token=ratio(counts[1], counts[2] - counts[0], read=read),
        samples=tokens.times(1 / spec.sequence_length),
        shard_bytes=shard_bytes,
        shards=shards,
        hosts=config.hosts,
        workers=config.workers,
        worker_rate=sample.rate,
        link=link,
        disk=config.disk,
        cost=cost(work, config, spec, rate=sample.rate, link=link or _ONE_GBIT),
    )


def _drawn(looked: Sequence[LookedInto], sample: Sample, *, by_file: bool) -> Floats:
    """Source bytes, documents, text bytes and tokens of what was drawn: (drawn, 4).

    That is each file, as far as its sample tells; or each block, where there is only one file.
    """
    counts = np.array(
        [
            (texts.source_bytes, made.documents, made.text_bytes, made.tokens)
            for texts, made, _ in sample.made
        ],
        float,
    )
    if not by_file:
        return counts
    rows = []
    for file in looked:
        own = counts[[texts.file is file for texts, _, _ in sample.made]].sum(axis=0)
        size = float(file.source.size)
        rows.append(own * (size / own[0]) if own[0] else np.array([size, 0.0, 0.0, 0.0]))
    return np.stack(rows)


def _shards(parts: Sequence[int], tokens: float, spec: DatasetSpec) -> int:
    """Files of shards: full ones, and a last one of each part and split."""
    a_shard = spec.shard_format.samples_per_shard * spec.sequence_length
    held_out = tokens * spec.holdout_fraction
    sizes = np.asarray(parts, float)
    splits = [of_split for of_split in (tokens - held_out, held_out) if of_split]
    return sum(int(np.ceil(sizes * (each / sizes.sum() / a_shard)).sum()) for each in splits)
