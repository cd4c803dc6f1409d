"""Loading of tokenizers, by the name that the user gives, or as saved with a dataset."""

import json
import re
from pathlib import Path
from typing import Final

from streaming_ext.base.errors import TokenizerError, UsageError, one_line
from streaming_ext.format.schema import refuse_newer
from streaming_ext.format.spec import TokenizerIdentity
from streaming_ext.store.locations import local_path
from streaming_ext.text.tokenizer.json_file import JsonTokenizer, of_hub, of_json_file
from streaming_ext.text.tokenizer.model_file import ModelTokenizer
from streaming_ext.text.tokenizer.rank_file import (
    KNOWN_ENCODINGS,
    RankTokenizer,
    is_rank_file,
    of_encoding,
    of_rank_file,
    of_tekken,
    parse_rank_file,
)
from streaming_ext.text.tokenizer.tokenizer import (
    SPEC_FILE,
    SPEC_VERSION,
    Tokenizer,
    panics_as_errors,
    read_file,
    without_collecting,
)

_KINDS: Final = {kind.kind: kind for kind in (RankTokenizer, JsonTokenizer, ModelTokenizer)}
TOKENIZER_FILES: Final = {name: (kind.file_name, SPEC_FILE) for name, kind in _KINDS.items()}


@without_collecting()
def load_tokenizer(
    name: str,
    *,
    eot_token: str | None = None,
    bos_token: str | None = None,
    pattern: str | None = None,
) -> Tokenizer:
    """Load a tiktoken encoding, a .tiktoken, .json or .model file, or a tokenizer of the Hub.

    A rank file holds neither pattern nor special tokens. Both are known if the file is named after
    a known encoding (`r50k_base.tiktoken`), or has the content of a known file (Llama 3 and 4,
    Qwen). Otherwise `pattern` is needed: the name of a known pattern, or a regular expression. With
    an expression or the name of an encoding, the special tokens are `eot_token`, by default
    `<|endoftext|>`, with the first id above all ranks, and `bos_token` with the next id.
    """
    marks = eot_token, bos_token
    path = local_path(name)
    if name.endswith(".tiktoken") or (
        name.endswith(".model") and is_rank_file(read_file(path))  # as Meta names rank files
    ):
        return of_rank_file(path, pattern, *marks)
    if pattern is not None:
        raise TokenizerError(
            f"`pattern` belongs to a rank file; {name!r} brings its own. Leave it out."
        )
    if path.name.startswith("tekken") and name.endswith(".json"):
        return of_tekken(path, *marks)
    if name.endswith(".json"):
        return of_json_file(path, *marks)
    if name.endswith(".model"):
        data = read_file(path)
        return ModelTokenizer.of(
            data, path.name, where=str(path), eot_token=eot_token, bos_token=bos_token
        )
    if name not in KNOWN_ENCODINGS and path.exists():
        inside = [*path.glob("tokenizer.json"), *path.glob("*.model"), *path.glob("*.tiktoken")]
        if path.is_file() or inside:
            raise TokenizerError(
                f"`tokenizer` {name!r} is a {'folder' if inside else 'file'} on this host. The "
                "name of a tokenizer's file ends in .tiktoken, .json or .model: pass "
                f"{inside[0] if inside else 'one of these'}."
            )
    if re.fullmatch(r"[\w.-]+", name):
        return of_encoding(name, *marks)
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        return of_hub(name, *marks)
    raise TokenizerError(
        f"`tokenizer` names nothing that can be loaded: {name!r}. Pass (1) a tiktoken encoding "
        f"({', '.join(KNOWN_ENCODINGS)}), (2) a path that ends in .tiktoken, (3) a path to a "
        "tokenizer.json, (4) a path to a SentencePiece .model file, or (5) a Hugging Face "
        "repository such as org/name."
    )


def load_like(
    name: str,
    identity: TokenizerIdentity,
    *,
    eot_token: str | None = None,
    bos_token: str | None = None,
    pattern: str | None = None,
) -> Tokenizer:
    """Load a tokenizer to compare it with a dataset's, which supplies arguments that are left out.

    A rank file holds neither pattern nor special tokens, so both come from the dataset.
    """
    path, own = local_path(name), identity.pattern if pattern is None else None
    eot_token, bos_token = eot_token or identity.eot_token, bos_token or identity.bos_token
    if own and name.endswith((".tiktoken", ".model")) and is_rank_file(data := read_file(path)):
        ranks, special = parse_rank_file(data, name), identity.marks
        return RankTokenizer.of(
            path.name, ranks, own, special, eot_token=eot_token, bos_token=bos_token
        )
    return load_tokenizer(name, eot_token=eot_token, bos_token=bos_token, pattern=pattern)


@without_collecting()
def open_saved(folder: Path, *, trusted: bool = False) -> Tokenizer:
    """Open what `Tokenizer.save` wrote, from disk alone, and check that it is unchanged.

    Args:
        folder: the folder that holds it.
        trusted: true if this run wrote it, so that it is not checked again.
    """
    where = folder / SPEC_FILE
    try:
        spec = json.loads(read_file(where))
        refuse_newer(spec["version"], SPEC_VERSION, what=str(where))
        kind, fingerprint = _KINDS[spec["kind"]], spec["fingerprint"]
    except (ValueError, KeyError, TypeError) as error:
        raise TokenizerError(f"{where} is not a saved tokenizer's description: {error!r}") from None
    path = folder / kind.file_name
    try:
        with panics_as_errors():
            data = read_file(path)
            tokenizer = kind.trusted(data, spec) if trusted else kind.saved(data, str(path), spec)
    except (UsageError, ImportError):
        raise
    except Exception as error:  # noqa: BLE001 - tokenizer libraries raise anything on damaged files
        raise TokenizerError(
            f"The tokenizer saved in {folder} is damaged: {type(error).__name__}: "
            f"{one_line(error)}."
        ) from None
    if tokenizer.fingerprint != fingerprint:
        raise TokenizerError(
            f"The tokenizer saved in {folder} is damaged: its files have the fingerprint "
            f"{tokenizer.fingerprint}, its description says {fingerprint}. Save it again."
        )
    return tokenizer
