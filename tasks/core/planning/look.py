"""Looking at the output before it is taken, so that what is refused stays as it is."""

from collections.abc import Callable
from dataclasses import dataclass

from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.layout import EXTENDING, MANIFEST, PARTS_FOLDER, SHUFFLE_FOLDER
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.config import ShardConfig
from tasks.core.planning.plan import compare_with_output, prepare
from tasks.core.planning.room import require_room
from tasks.core.planning.run_plan import RunPlan
from tasks.core.storage import Storage


@dataclass(frozen=True, kw_only=True, slots=True)
class _There:
    """What tells whether another run wrote to the output.

    Attributes:
        records: names and sizes of them.
        published: content hash of the manifest; an extension publishes what was recorded before.
        extending: content hash of what says that an extension is under way.
    """

    records: tuple[tuple[str, int], ...]
    published: str | None
    extending: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What a run found before it took the output.

    Attributes:
        plan: of what to do.
        tokenizer: the one that it names.
        seen: what was there.
    """

    plan: RunPlan
    tokenizer: Tokenizer
    seen: _There


def look(config: ShardConfig, storage: Storage, sources: tuple[SourceFile, ...]) -> Look:
    """Compare what is asked for with what the output holds; nothing is written anywhere.

    Raises:
        ShardmillError: as `compare_with_output`.
    """
    seen = _there(storage, config)
    plan, tokenizer = compare_with_output(config, storage, sources)
    return Look(plan=plan, tokenizer=tokenizer, seen=seen)


def take_up(
    found: Look,
    storage: Storage,
    sources: tuple[SourceFile, ...],
    tell: Callable[[str], None] = lambda words: None,
) -> RunPlan:
    """The plan, after another look where the output changed since, and a scratch folder for it.

    The caller holds the output (`Storage.exclusive`).

    Args:
        found: what `look` saw before.
        storage: the output.
        sources: of the run.
        tell: called with what is waited for.

    Raises:
        ShardmillError: as `look`.
        StorageError: scratch is not writable, or the output has no room for a shuffle.
    """
    if _there(storage, found.plan.config) != found.seen:  # by a run that ended meanwhile
        found = look(found.plan.config, storage, sources)
    if found.plan.published:
        return found.plan
    if found.plan.stage == "scatter":
        require_room(found.plan, storage)
    return prepare(found.plan, storage, found.tokenizer, tell)


def _there(storage: Storage, config: ShardConfig) -> _There:
    two_stages = config.shuffle is not None or config.deduplicate is not None
    runs = storage.list(SHUFFLE_FOLDER) if two_stages else {}
    return _There(
        records=(*storage.list(PARTS_FOLDER).items(), *runs.items()),
        published=_hash_of(storage, MANIFEST),
        extending=_hash_of(storage, EXTENDING),
    )


def _hash_of(storage: Storage, path: str) -> str | None:
    try:
        return content_hash(storage.read(path))
    except FileNotFoundError:
        return None
