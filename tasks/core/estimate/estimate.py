"""From a few looks at the sources to documents, tokens, disk, time, and how sure each is."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from streaming_ext.dataset.spec import DatasetSpec, TokenizerIdentity
from streaming_ext.errors import SourceError
from streaming_ext.text.documents.source_format import LENGTH_BYTES
from streaming_ext.text.parts.cutting import cut_evenly
from streaming_ext.text.parts.looking import can_be_cut
from streaming_ext.text.parts.part import sizes_of as sizes_of_parts
from streaming_ext.text.sources import SourceFile, is_remote
from streaming_ext.text.tokenizer.tokenizer import load_tokenizer
from tasks.core.estimate.config import EstimateConfig
from tasks.core.estimate.cost import Cost, Machines, Work, cost
from tasks.core.estimate.looking import Footer, Rows, look, read_rows, sizes_of
from tasks.core.estimate.refusals import require_few, require_output, sample_folder, sample_place
from tasks.core.estimate.sampling import Cluster, Quantity, mean_ratio, ratio
from tasks.core.estimate.shuffling import second_stage
from tasks.core.estimate.timing import Timed, time_sample
from tasks.core.planning.parts import parts_of
from tasks.core.planning.sources import check_sources

_ONE_GBIT = 125e6
_LEAST_GROUPS = 16  # row groups to read over all files, if there are
_ALL = 1 - 1e-9  # of a cluster, added up in floating point
_RECORD_BYTES = 1500  # of a part: its record, its line in the manifest
_SHARD_ENTRY_BYTES = 1000  # of a shard: in the record and in the index

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Looked:
    """What was seen of the sources; `files` and `parts` are the sizes of those to plan for."""

    files: list[int]
    parts: list[int]
    footers: list[Footer]
    unreadable: int
    sample: list[Rows]


class Sample(BaseModel):
    """What was looked at.

    Attributes:
        footers: files whose end was read, which tells rows and sizes.
        unreadable: files that were to be among them.
        files, row_groups, text_bytes: rows were read of so many.
    """

    model_config = ConfigDict(frozen=True)

    footers: int
    unreadable: int
    files: int
    row_groups: int
    text_bytes: int


class Estimate(BaseModel):
    """What a run would make and take; sizes in bytes, rates in bytes a second.

    Attributes:
        files, source_bytes: of the sources; `scaled` where they were given, not listed.
        tokens: with one end-of-text id a document, padding left out.
        worker_rate: text that a worker does while all others work, timed here.
        worker_spread: how far rounds of it lay apart from that at most, as a share.
        timed_workers: how many those were.
        link, disk: of a host; None where it does not count, or is in `worker_rate`.
    """

    model_config = ConfigDict(frozen=True)

    files: int
    source_bytes: int
    scaled: bool
    sample: Sample
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
    worker_spread: float
    timed_workers: int
    link: float | None
    disk: float | None
    cost: Cost


def estimate(
    config: EstimateConfig, report: Callable[[str], None] = lambda phase: None
) -> Estimate:
    """Look at the sources, do a sample of them, and reckon.

    Args:
        config: the run, and the machines.
        report: told what is going on.

    Raises:
        UsageError, SourceError: as a run would; no text is found.
    """
    require_output(config.output)
    place = sample_place(config.scratch)
    report("looking at the sources")
    listed = check_sources(config)
    files = _files(config, listed)
    footers, unreadable = look(
        listed, config.read_options, seed=config.sample_seed, least=config.sample_files
    )
    report("reading a sample")
    sample = _sample(config, footers, whole=len(footers) == len(files))
    if not any(piece.text_bytes for piece in sample):
        raise SourceError(f"{footers[0].source.url}: no text in the rows that were looked at.")
    tokenizer = load_tokenizer(config.tokenizer, eot_token=config.eot_token, pattern=config.pattern)
    spec = config.spec(TokenizerIdentity.model_validate(tokenizer.description()))
    report("tokenizing the sample")
    here = min(config.workers, os.cpu_count() or 1)
    with sample_folder(place) as folder:
        timed = time_sample(
            sample,
            like=footers[0],
            config=config,
            tokenizer=tokenizer,
            spec=spec,
            workers=here,
            folder=folder,
        )
    looked = _Looked(
        footers=footers,
        unreadable=unreadable,
        sample=sample,
        files=files,
        parts=_parts(config, listed, files),
    )
    return _reckon(config, spec, looked, timed, here)


def _files(config: EstimateConfig, listed: Sequence[SourceFile]) -> list[int]:
    """Sizes of the source files to plan for."""
    sizes = [source.size for source in listed]
    if config.total_size is None:
        return sizes
    mean = sum(sizes) / len(sizes)
    count = config.total_files or max(1, round(config.total_size / max(mean, 1)))
    require_few(count, "files")
    return [config.total_size // count] * count


def _parts(config: EstimateConfig, listed: Sequence[SourceFile], files: list[int]) -> list[int]:
    """Sizes of the parts that these files become."""
    if config.total_size is None:
        return sizes_of_parts(parts_of(listed, config))
    if files[0] > config.part_size:
        require_few(sum(files) // int(config.part_size), "parts")
    return parts_of_alike(
        files[0], len(files), part_size=int(config.part_size),
        min_part_size=int(config.min_part_size),
        may_be_cut=can_be_cut(listed[0], config.read_options),
    )  # fmt: skip


def parts_of_alike(
    size: int, count: int, *, part_size: int, min_part_size: int, may_be_cut: bool
) -> list[int]:
    """Sizes of the parts that `arrange` makes of files of one size, which may be millions."""
    if size > part_size and may_be_cut:
        return [end - start for start, end in cut_evenly(size, part_size)] * count
    together = max(1, min(-(-min_part_size // max(size, 1)), part_size // max(size, 1)))
    whole, rest = divmod(count, together)
    return [together * size] * whole + [rest * size] * (rest > 0)


def _sample(config: EstimateConfig, footers: Sequence[Footer], *, whole: bool) -> list[Rows]:
    """Rows of some of the files; all there are where they are few."""
    chosen = footers[: config.sample_files]
    total = sum(sum(footer.column_bytes) for footer in chosen)
    if whole and len(chosen) == len(footers) and total <= config.sample_size:
        groups, text_bytes = max(len(footer.rows) for footer in chosen), config.sample_size + 1
    else:
        groups = max(2, -(-_LEAST_GROUPS // len(chosen)))
        text_bytes = config.sample_size // (len(chosen) * groups)
    return list(
        read_rows(chosen, config.read_options, groups=groups, text_bytes=text_bytes,
                  seed=config.sample_seed)
    )  # fmt: skip


def _reckon(
    config: EstimateConfig,
    spec: DatasetSpec,
    looked: "_Looked",
    timed: Timed,
    here: int,
) -> Estimate:
    files, footers, sample = looked.files, looked.footers, looked.sample
    source_bytes = sum(files)
    sizes = np.array([float(footer.source.size) for footer in footers])

    def of_footers(values: list[int]) -> Quantity:
        per_byte = mean_ratio(np.array(values, float), sizes, population=len(files))
        return per_byte.times(float(source_bytes))

    column = of_footers([sum(footer.column_bytes) for footer in footers])
    fetched = of_footers([_fetched(footer, config) for footer in footers])
    grouped = _Clusters(footers, sample, population=len(files))
    lengths = [sizes_of(piece.texts) for piece in sample]
    counts = [tokens.astype(float) for tokens in timed.tokens]
    text = grouped.ratio(lengths).times(column)
    tokens = grouped.ratio(counts).times(column)
    rows = [footer.num_rows for footer in footers if footer.num_rows is not None]
    if len(rows) == len(footers):
        filled = sum(piece.filled for piece in sample) / max(1, sum(piece.rows for piece in sample))
        documents = of_footers(rows).times(filled)
    else:
        documents = grouped.ratio([(sizes > 0).astype(float) for sizes in lengths]).times(column)
    stored = tokens.times(timed.stored_a_token)
    shards = _shards(looked.parts, tokens.value, spec)
    remote = is_remote(config.output) and not config.output.startswith("file://")
    link = config.link or (_ONE_GBIT if remote or fetched.value else None)
    work = Work(
        files=looked.parts,
        text_a_byte=text.value / source_bytes,
        fetched_a_byte=fetched.value / source_bytes,
        tokens=tokens.value,
        stored=stored.value,
        documents_bytes=timed.documents_a_token * tokens.value
        + _RECORD_BYTES * len(looked.parts)
        + _SHARD_ENTRY_BYTES * shards,
        shards=shards,
        uploads=remote,
        in_pieces=not footers[0].source.url.startswith(("hf://", "http://", "https://")),
        second=second_stage(looked.parts, tokens.value, documents.value, spec, remote=remote),
    )
    machines = Machines(
        hosts=config.hosts,
        workers=config.workers,
        text_rate=timed.rate,
        link=link or _ONE_GBIT,
        disk=config.disk,
        request_rate=config.request_rate,
    )
    without_ends = [np.maximum(tokens - 1, 0) for tokens in counts]  # of texts: their own tokens
    per_token = grouped.ratio(lengths, per=without_ends)
    return Estimate(
        files=len(files),
        source_bytes=source_bytes,
        scaled=config.total_size is not None,
        sample=Sample(
            footers=len(footers),
            unreadable=looked.unreadable,
            files=len({piece.source.url for piece in sample}),
            row_groups=len(sample),
            text_bytes=sum(piece.text_bytes for piece in sample),
        ),
        documents=documents,
        text_bytes=text,
        tokens=tokens,
        bytes_per_token=per_token,
        samples=Quantity(
            value=tokens.value / spec.sequence_length + len(looked.parts) * len(spec.splits) / 2,
            error=tokens.error,
        ),
        shard_bytes=stored,
        shards=shards,
        hosts=config.hosts,
        workers=config.workers,
        worker_rate=timed.rate,
        worker_spread=timed.spread,
        timed_workers=here,
        link=link,
        disk=config.disk,
        cost=cost(work, machines),
    )


def _fetched(footer: Footer, config: EstimateConfig) -> int:
    """Bytes of a file that come over the link."""
    if config.remote_sources is None:
        return footer.fetched
    return (footer.fetched or footer.source.size) if config.remote_sources else 0


def _shards(files: list[int], tokens: float, spec: DatasetSpec) -> int:
    """Files of shards: full ones, and a last one of each part and split."""
    a_shard = spec.shard_format.samples_per_shard * spec.sequence_length
    held_out = tokens * spec.holdout_fraction
    sizes = np.array(files, float)
    splits = [of_split for of_split in (tokens - held_out, held_out) if of_split]
    return sum(int(np.ceil(sizes * (each / sizes.sum() / a_shard)).sum()) for each in splits)


class _Clusters:
    """The sample as clusters: files, or the row groups of the only one."""

    def __init__(self, footers: list[Footer], sample: list[Rows], *, population: int) -> None:
        by_url = {footer.source.url: footer for footer in footers}
        urls = list(dict.fromkeys(piece.source.url for piece in sample))
        self._single = len(urls) == 1 and population == 1
        keys = [piece.group if self._single else urls.index(piece.source.url) for piece in sample]
        self._members = [
            [number for number, key in enumerate(keys) if key == wanted]
            for wanted in dict.fromkeys(keys)
        ]
        self._totals = [
            float(by_url[sample[members[0]].source.url].column_bytes[sample[members[0]].group])
            if self._single
            else float(sum(by_url[sample[members[0]].source.url].column_bytes))
            for members in self._members
        ]
        self._population = (
            sum(rows != 0 for rows in footers[0].rows) if self._single else population
        )
        # bytes of the column that each text takes, and that it stands for: (texts,) a piece
        self._taken = [(sizes_of(piece.texts) + LENGTH_BYTES) * piece.stored for piece in sample]
        self._sizes = [
            taken
            if piece.draws is None
            else piece.draws
            * (by_url[piece.source.url].column_bytes[piece.group] / piece.draws.sum())
            for piece, taken in zip(sample, self._taken, strict=True)
        ]

    def ratio(self, counts: list[Floats], per: list[Floats] | None = None) -> Quantity:
        """`counts` of all clusters per byte of the column, or per unit of another count."""
        clusters = []
        for members, total in zip(self._members, self._totals, strict=True):
            sizes = np.concatenate([self._sizes[number] for number in members])
            taken = np.concatenate([self._taken[number] for number in members])
            share = float(taken.sum()) / total if total else 1.0
            share = 1.0 if share > _ALL else share
            stands_for = sizes / taken  # times what was counted in a text
            mine = np.concatenate([counts[number] for number in members]) * stands_for
            size = total
            if per is not None:
                sizes = np.concatenate([per[number] for number in members]) * stands_for
                size = total * float(sizes.sum()) / max(float((taken * stands_for).sum()), 1.0)
            if sizes.sum():
                clusters.append(Cluster(size=size, sizes=sizes, counts=mine, share=share))
        return ratio(clusters, population=self._population)
