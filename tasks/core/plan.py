"""What a run has to do: its sources, its tokenizer, and which parts the output holds already."""

import json
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from streaming_ext.errors import (
    ConfigMismatchError,
    CorruptDatasetError,
    SourceError,
    StorageError,
    UsageError,
)
from streaming_ext.format import content_hash
from streaming_ext.layout import (
    DOCUMENTS_FOLDER,
    MANIFEST,
    PARTS_FOLDER,
    RUNS_FOLDER,
    SPLITS,
    TOKENIZER_FOLDER,
    documents_path,
    part_folder,
    record_path,
)
from streaming_ext.manifest import (
    DatasetSpec,
    Manifest,
    PartRecord,
    SourceIdentity,
    TokenizerIdentity,
    from_json,
)
from tasks.core.config import ShardConfig
from tasks.core.documents import check_column, open_parquet
from tasks.core.sources import SourceFile, identify, list_sources
from tasks.core.storage import LocalStorage
from tasks.core.tokenizer.code_points import UnsafeCodePoints, find_unsafe_code_points
from tasks.core.tokenizer.tokenizer import load_tokenizer

_UNSAFE_FILE = "unsafe_code_points.json"
_IO_THREADS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All that a run needs to know before its first job.

    Attributes:
        sources: all of them; the index is the part's number.
        todo: parts without a record on the output.
        published: the output holds this very dataset, whole.
    """

    config: ShardConfig
    spec: DatasetSpec
    sources: tuple[SourceFile, ...]
    todo: tuple[int, ...]
    published: bool
    scratch: Path

    @property
    def tokenizer_folder(self) -> Path:
        """Where the tokenizer lies that all workers load."""
        return self.scratch / TOKENIZER_FOLDER

    def part_scratch(self, part: int) -> Path:
        """The folder for a part's work in progress."""
        return self.scratch / f"{part:05}"


def scratch_folder(config: ShardConfig, storage: LocalStorage) -> Path:
    """Where work in progress goes: as configured, else beside the output, on the same disk."""
    if config.scratch is None:
        return storage.root.parent / f".{storage.root.name}.scratch"
    # Two outputs of one name may share the folder: what stands below it names the whole path.
    name = f"{storage.root.name}-{content_hash(str(storage).encode())[:8]}"
    return Path(config.scratch).expanduser().absolute() / name


def check_sources(config: ShardConfig) -> tuple[SourceFile, ...]:
    """List the sources and look into each for the text column, before any work.

    A file that cannot be read at all is left to its own part, which fails alone.

    Raises:
        UsageError: nothing matches, or a file has no such column or one of another type.
    """
    sources = list_sources(config.sources, max_files=config.max_files)

    def check(source: SourceFile) -> None:
        try:
            with open_parquet(Path(source.url)) as file:
                schema = file.schema_arrow
        except SourceError:
            return
        check_column(schema, config.text_column, where=source.url)

    with ThreadPoolExecutor(_IO_THREADS) as threads:
        for _ in threads.map(check, sources):
            pass
    return tuple(sources)


def make_plan(config: ShardConfig, storage: LocalStorage, sources: tuple[SourceFile, ...]) -> Plan:
    """Compare what is asked for with what the output holds, and prepare the scratch folder.

    The caller holds the output (`LocalStorage.exclusive`).

    Raises:
        ConfigMismatchError: the output was made with another configuration or from other sources.
        UsageError: the output is a folder of something else.
        StorageError: scratch is not writable.
        TokenizerError: the tokenizer cannot be had.
    """
    scratch = scratch_folder(config, storage)
    tokenizer = load_tokenizer(config.tokenizer, eot_token=config.eot_token, pattern=config.pattern)
    spec = config.spec(TokenizerIdentity.model_validate(tokenizer.description()))
    recorded, published = _compare_with_output(storage, spec, sources)
    if recorded:  # the same but for the name that the tokenizer was asked for by
        spec = next(iter(recorded.values())).spec
    todo = tuple(part for part in range(len(sources)) if part not in recorded)
    plan = Plan(
        config=config,
        spec=spec,
        sources=sources,
        todo=todo,
        published=published,
        scratch=scratch,
    )
    if published:
        return plan
    storage.remove_incoming()
    _remove_unrecorded(storage, recorded)
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        plan.tokenizer_folder.mkdir(parents=True)
        tokenizer.save(plan.tokenizer_folder)
        if config.engine == "auto":
            unsafe = find_unsafe_code_points(tokenizer, user_cache_path("shardmill"))
            if unsafe is not None:
                text = json.dumps(unsafe.to_json())
                (plan.tokenizer_folder / _UNSAFE_FILE).write_text(text)
    except OSError as error:
        raise StorageError(f"Cannot write to scratch {scratch}: {error.strerror}.") from error
    return plan


def read_unsafe_code_points(tokenizer_folder: Path) -> UnsafeCodePoints | None:
    """What the plan found out about the fast engine, or None where it is not to be used."""
    file = tokenizer_folder / _UNSAFE_FILE
    return UnsafeCodePoints.from_json(json.loads(file.read_text())) if file.exists() else None


def read_records(storage: LocalStorage) -> dict[int, PartRecord]:
    """Every part record on the output, by part.

    Raises:
        CorruptDatasetError: a record is damaged.
    """

    def read(path: str) -> PartRecord:
        return from_json(PartRecord, storage.read(path), where=f"{storage}/{path}")

    with ThreadPoolExecutor(_IO_THREADS) as threads:
        records = threads.map(read, storage.list(PARTS_FOLDER))
        return {record.part: record for record in records}


def _compare_with_output(
    storage: LocalStorage, spec: DatasetSpec, sources: tuple[SourceFile, ...]
) -> tuple[dict[int, PartRecord], bool]:
    """The records of the parts that are done, and whether the dataset is published."""
    records = read_records(storage)
    try:
        manifest = from_json(Manifest, storage.read(MANIFEST), where=f"{storage}/{MANIFEST}")
    except FileNotFoundError:
        manifest = None
    if manifest is None and not records:
        foreign = [path for path in storage.list() if not _is_ours(path)]
        if foreign:
            raise UsageError(
                f"{storage} holds other files ({', '.join(foreign[:3])}"
                f"{', ...' if len(foreign) > 3 else ''}). Use an empty folder as --output."
            )
        return {}, False
    for made in [manifest, *records.values()]:
        if made is not None:
            made.spec.require_same(spec, where=str(storage))
    records = _without_lost_files(storage, records, published=manifest is not None)
    recorded = {part: record.source for part, record in records.items()}
    if manifest is not None:
        if lost := [part.part for part in manifest.parts if part.part not in recorded]:
            raise ConfigMismatchError(
                f"{storage} is published, but the records of parts {lost[:5]} are gone. "
                f"Remove {MANIFEST} to have them made again."
            )
        if len(sources) != len(manifest.parts):
            raise ConfigMismatchError(
                f"{storage} is a whole dataset of {len(manifest.parts)} source files, this run "
                f"asks for {len(sources)}. Use another --output."
            )
    _require_same_sources(storage, recorded, sources)
    return records, manifest is not None


def _without_lost_files(
    storage: LocalStorage, records: dict[int, PartRecord], *, published: bool
) -> dict[int, PartRecord]:
    """The records whose files are all there; the other parts are done again."""
    sizes = storage.list()
    whole = {}
    for part, record in records.items():
        lost = [file.path for file in record.files() if sizes.get(file.path) != file.size]
        if not lost:
            whole[part] = record
        elif published:
            raise CorruptDatasetError(
                f"{storage} is published, but {lost[0]} is missing or cut short. `shardmill verify "
                f"{storage}` tells all; remove {MANIFEST} to have what is lost made again."
            )
    return whole


def _require_same_sources(
    storage: LocalStorage, recorded: dict[int, SourceIdentity], sources: tuple[SourceFile, ...]
) -> None:
    differences = []
    to_hash = []
    for part, identity in sorted(recorded.items()):
        if part >= len(sources):
            differences.append(f"part {part:05}: the output has {identity.url}, this run has none")
        elif sources[part].url != identity.url:
            differences.append(
                f"part {part:05}: the output has {identity.url}, this run {sources[part].url}"
            )
        elif sources[part].size != identity.size:
            differences.append(
                f"{identity.url}: {identity.size} bytes in the output's record, "
                f"{sources[part].size} now"
            )
        else:
            to_hash.append((sources[part], identity))
    with ThreadPoolExecutor(_IO_THREADS) as threads:
        now = threads.map(lambda pair: identify(pair[0], Path(pair[0].url)), to_hash)
        for (source, before), after in zip(to_hash, now, strict=True):
            if after.version != before.version:
                differences.append(
                    f"{source.url}: content {before.version} in the output's record, "
                    f"{after.version} now"
                )
    if differences:
        raise ConfigMismatchError(
            f"{storage} was made from other sources:\n  "
            + "\n  ".join(differences[:20])
            + (f"\n  ... and {len(differences) - 20} more" if len(differences) > 20 else "")
            + "\nUse the old sources, or another --output."
        )


def _is_ours(path: str) -> bool:
    # Before its first record a killed run leaves only what these folders hold.
    top = path.split("/", 1)[0]
    return top in {*SPLITS, DOCUMENTS_FOLDER, RUNS_FOLDER, TOKENIZER_FOLDER}


def _remove_unrecorded(storage: LocalStorage, recorded: Iterable[int]) -> None:
    """Remove what killed runs wrote of parts that were never recorded."""
    folders = {part_folder(split, part) for part in recorded for split in SPLITS}
    files = {name(part) for part in recorded for name in (documents_path, record_path)}
    for top in (*SPLITS, DOCUMENTS_FOLDER, PARTS_FOLDER):
        for path in storage.list(top):
            if path not in files and path.rsplit("/", 1)[0] not in folders:
                storage.remove(path)


def remove_scratch(plan: Plan) -> None:
    """Remove the folder for work in progress."""
    shutil.rmtree(plan.scratch, ignore_errors=True)
