"""Opening a text for training: its files, its units, and what the scan finds in them."""

import json
import os
import tempfile
from pathlib import Path
from typing import Final

from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.spec import DatasetSpec, TokenizerIdentity
from streaming_ext.errors import StorageError, UsageError
from streaming_ext.from_text.engines import Engines
from streaming_ext.from_text.scan import Scan
from streaming_ext.from_text.text_cache import TextCache
from streaming_ext.from_text.text_index import text_index
from streaming_ext.from_text.text_stream import TextStream
from streaming_ext.from_text.unit_reader import UnitReader
from streaming_ext.from_text.units import unit_bytes_of, units_of
from streaming_ext.text.listing import list_sources
from streaming_ext.text.parts.cutting import arrange
from streaming_ext.text.parts.looking import those_that_can_be_cut
from streaming_ext.text.parts.part import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.prepared import save_tokenizer
from streaming_ext.text.tokenizer.tokenizer import Tokenizer, load_tokenizer

_FETCHING: Final = 4  # threads a core, where bytes of remote files are waited for
_VERSION: Final = 1  # of what lies in a text's folder of the cache


def open_text(
    stream: TextStream,
    *,
    split: str | None,
    limit: int | None,
    timeout: float,
    sequence_length: int | None,
) -> TextCache:
    """List the files of a text, and count their tokens where nobody did before.

    Args:
        stream: the text.
        split: `train` or `holdout`.
        limit: bytes that its tokens may take in the cache, None for no limit.
        timeout: seconds for one unit of a remote file.
        sequence_length: tokens of a row.

    Raises:
        UsageError: a setting is not allowed, or there are no such files.
        SourceError: a file is damaged; names it.
        StorageError: storage refuses, or the local disk does.
    """
    if sequence_length is None:
        raise UsageError("Text has no length of its own: give sequence_length=, in tokens.")
    text = stream.text
    tokenizer = load_tokenizer(text.tokenizer, eot_token=text.eot_token, pattern=text.pattern)
    spec = stream.spec(TokenizerIdentity.model_validate(tokenizer.description()), sequence_length)
    if split not in spec.splits:
        raise UsageError(
            f"Text has the splits {', '.join(spec.splits)}, got {split!r}. Give holdout_fraction= "
            "for a holdout."
        )
    sources = list_sources(
        text.sources,
        max_files=text.max_files,
        hub_config=text.hub_config,
        any_name=text.format is not None,
    )
    part_size, least = int(text.part_size), int(text.min_part_size)
    unit_bytes = unit_bytes_of(sum(source.size for source in sources))
    can = those_that_can_be_cut(sources, spec.read_options, above=min(part_size, unit_bytes))
    parts = arrange(sources, part_size=part_size, min_part_size=least, may_be_cut=can)
    units = units_of(parts, unit_bytes=unit_bytes, may_be_cut=can)
    folder = _folder(stream, spec, sources, parts, unit_bytes=unit_bytes)
    prepared = folder / f"tokenizer-{text.engine}"
    _save_once(tokenizer, prepared, stream)
    reader = UnitReader(spec, Engines(prepared, engine=text.engine), folder / "incoming")
    remote = any(source.remote for source in sources)
    found = Scan(
        folder,
        reader,
        parts=parts,
        units=units,
        keep=limit,
        threads=text.scan_threads or (os.cpu_count() or 1) * (_FETCHING if remote else 1),
    ).run()
    index = text_index(spec, parts, units, found, split=split)
    if not index.names:
        raise UsageError(f"{stream.place}: no document of split {split!r} has a token.")
    return TextCache(index, reader, place=stream.place, folder=folder, limit=limit, timeout=timeout)


def _folder(
    stream: TextStream,
    spec: DatasetSpec,
    sources: list[SourceFile],
    parts: tuple[Part, ...],
    *,
    unit_bytes: int,
) -> Path:
    """Where the cache keeps this text; a text of which a file changed lies elsewhere."""
    if stream.local is not None:
        local = Path(stream.local)
    else:
        from platformdirs import user_cache_path

        local = user_cache_path("shardmill") / "text"
    decides = spec.model_dump(mode="json", exclude={"shard_size", "compression"})
    del decides["sequence_length"]  # where rows begin is told by counts alone
    told = {
        "version": _VERSION,
        "spec": decides,
        "unit_bytes": unit_bytes,
        "sources": [[one.url, one.size, one.version, one.modified] for one in sources],
        "parts": [[piece.span for piece in part.pieces] for part in parts],
    }
    return local / f"text-{content_hash(json.dumps(told, sort_keys=True).encode())[:16]}"


def _save_once(tokenizer: Tokenizer, folder: Path, stream: TextStream) -> None:
    """Put the tokenizer where all processes load it from; the same bytes, whoever does."""
    if folder.exists():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tokenizer-", dir=folder.parent) as name:
            temporary = Path(name) / "made"
            save_tokenizer(tokenizer, temporary, engine=stream.text.engine)
            try:
                temporary.rename(folder)
            except OSError:
                if not folder.exists():  # another process may have been first
                    raise
    except OSError as error:
        raise StorageError(
            f"The cache {folder.parent} cannot be used: {error}. Give local= a folder that this "
            "user may write."
        ) from error
