"""From a sample of the sources to documents, tokens, disk, time, and how sure each is."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict

from streaming_ext.base.errors import ScratchError, SourceError, UsageError
from streaming_ext.format.spec import DatasetSpec, TokenizerIdentity
from streaming_ext.store import LocalStorage, open_storage
from streaming_ext.store.client import OBJECT_STORES
from streaming_ext.store.locations import local_path, require_writable_name
from streaming_ext.store.scratch import temporary_folder
from streaming_ext.text.formats import can_be_cut
from streaming_ext.text.parts.part import sizes_of
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.load import load_tokenizer
from tasks.core.estimate.config import MOST_PARTS, EstimateConfig
from tasks.core.estimate.cost import Cost, Quantity, Work, cost, ratio
from tasks.core.estimate.sample import LookedInto, Texts, look_into, read_texts, work_on
from tasks.core.shard.sources import check_sources, parts_of

_ONE_GBIT = 125e6
_RECORD_BYTES = 1500  # of a part: its record, its line in the manifest
_ENTRY_BYTES = 1000  # of a shard: in the record and in the index


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
    uploads = _is_remote(config.output)
    scratch = temporary_folder()
    if config.scratch is not None:
        require_writable_name(config.scratch)
        scratch = local_path(config.scratch)
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
    try:
        folder = tempfile.TemporaryDirectory(prefix="shardmill-plan-", dir=scratch)
    except OSError as error:
        raise ScratchError(f"Cannot write to scratch {scratch}: {error.strerror}.") from error
    with folder as name:
        sample = work_on(texts, config=config, tokenizer=tokenizer, spec=spec, folder=Path(name))

    source, source_looked = sum(sizes), sum(file.source.size for file in looked)
    read = sample.counts["source_bytes"].sum() / source
    drawn = sample.counts if len(sizes) == 1 else _by_file(looked, texts, sample.counts)
    documents, text, tokens = (
        ratio(drawn[name], drawn["source_bytes"], read=read).times(source)
        for name in ("documents", "text_bytes", "tokens")
    )
    rows = [file.rows for file in looked if file.rows is not None]
    if len(rows) == len(looked):  # counted in each of these files, but for rows without a token
        kept = source * sample.counts["documents"].sum() / sum(each.rows for each in texts)
        file_sizes = [file.source.size for file in looked]
        documents = ratio(rows, file_sizes, read=source_looked / source).times(kept)
    counted = max(1, sample.counts["tokens"].sum())
    shard_bytes = tokens.times(sample.counts["shard_bytes"].sum() / counted)
    shards = _shards(parts, tokens.value, spec)
    fetched = source_looked if config.remote_sources else 0
    if config.remote_sources is None:
        fetched = sum(file.fetched for file in looked)
    link = config.link or (_ONE_GBIT if uploads or fetched else None)
    tables = sample.table_bytes * tokens.value
    work = Work(
        parts=parts,
        text=text.value,
        fetched=source * fetched / source_looked,
        output=shard_bytes.value + tables + _RECORD_BYTES * len(parts) + _ENTRY_BYTES * shards,
        documents=documents.value,
        tokens=tokens.value,
        uploads=uploads,
    )
    return Estimate(
        files=len(sizes),
        parts=len(parts),
        source_bytes=source,
        scaled=config.total_size is not None,
        sample_files=len(looked),
        sample_bytes=sample.counts["text_bytes"].sum(),
        unreadable=unreadable,
        documents=documents,
        text_bytes=text,
        tokens=tokens,
        bytes_per_token=ratio(drawn["text_bytes"], drawn["tokens"] - drawn["documents"], read=read),
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


def _by_file(
    looked: Sequence[LookedInto], texts: Sequence[Texts], counts: npt.NDArray[np.void]
) -> npt.NDArray[np.void]:
    """The counts of each file, as far as its sample shows: (files,)."""
    found = np.zeros(len(looked), counts.dtype)
    for number, file in enumerate(looked):
        own = counts[[each.file is file for each in texts]]
        read = own["source_bytes"].sum()
        for name in counts.dtype.names or ():
            found[name][number] = own[name].sum() * file.source.size / read if read else 0
        found["source_bytes"][number] = file.source.size
    return found


def _shards(parts: Sequence[int], tokens: float, spec: DatasetSpec) -> int:
    """Files of shards: full ones, and a last one of each part and split."""
    a_shard = spec.shard_format.samples_per_shard * spec.sequence_length
    held_out = tokens * spec.holdout_fraction
    sizes = np.asarray(parts, float)
    splits = [of_split for of_split in (tokens - held_out, held_out) if of_split]
    return sum(int(np.ceil(sizes * (each / sizes.sum() / a_shard)).sum()) for each in splits)
