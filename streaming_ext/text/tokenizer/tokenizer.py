"""What a tokenizer is: where it comes from, how it is saved, what its fingerprint covers."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from streaming_ext.errors import TokenizerError
from streaming_ext.format_version import FormatVersion, refuse_newer
from streaming_ext.storage.local_paths import local_path
from streaming_ext.text.tokenizer.end_of_text import choose_eot, eos_of_config, refuse_reachable_eot
from streaming_ext.text.tokenizer.hub_files import hub_files
from streaming_ext.text.tokenizer.long_text import encode_without_stack
from streaming_ext.text.tokenizer.rank_file import (
    ENDOFTEXT,
    KNOWN_ENCODINGS,
    parse_rank_file,
    rank_file_bytes,
)

RANKS_FILE = "ranks.tiktoken"
JSON_FILE = "tokenizer.json"
SPEC_FILE = "tokenizer_spec.json"
TOKENIZER_FILES = {
    "tiktoken": (RANKS_FILE, SPEC_FILE),
    "huggingface": (JSON_FILE, SPEC_FILE),
}
SPEC_VERSION = 1

# A rank file is about 3.5 MB at 200,000 tokens and the largest tokenizer.json are about 40 MB.
MAX_FILE_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer:
    """A tokenizer that treats special tokens in a text as text and adds none of its own.

    `fingerprint` covers what decides the ids: ranks, pattern and special tokens, or the
    normalizer, pre-tokenizer, model and added tokens of a tokenizer.json, and the end-of-text id.
    It leaves out the name (two names of one vocabulary are one tokenizer) and, of a
    tokenizer.json, its padding, truncation, post-processor, decoder and layout, none of which
    reaches an id here.
    """

    kind: Literal["tiktoken", "huggingface"]
    name: str
    vocab_size: int
    eot_id: int
    eot_token: str
    fingerprint: str
    # tiktoken only
    pattern: str | None = None
    ranks: dict[bytes, int] = field(default_factory=dict, repr=False, compare=False)
    special_tokens: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    # huggingface only: the parsed tokenizer.json, reduced to what decides the ids, and its decoder
    config: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    # tiktoken.Encoding or tokenizers.Tokenizer
    reference: Any = field(default=None, repr=False, compare=False)

    def encode(self, text: str) -> list[int]:
        """The reference ids of `text`, without an end-of-text id."""
        if self.kind == "tiktoken":
            return self._encode_tiktoken(text)
        ids: list[int] = self.reference.encode(text, add_special_tokens=False).ids
        return ids

    def _encode_tiktoken(self, text: str) -> list[int]:
        try:
            ids: list[int] = self.reference.encode_ordinary(text)
        except BaseException as error:
            if not is_panic(error):
                raise
            return encode_without_stack(self.reference, self.pattern or "", text)
        return ids

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The text that `ids` stand for; an end-of-text id gives its token."""
        if self.kind == "tiktoken":
            return bytes(self.reference.decode_bytes(list(ids)))
        text: str = self.reference.decode(list(ids), skip_special_tokens=False)
        return text.encode()

    def save(self, folder: Path) -> None:
        """Write the files named in TOKENIZER_FILES; the same tokenizer gives the same bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        spec: dict[str, Any] = {"version": SPEC_VERSION, **self.description()}
        if self.kind == "tiktoken":
            spec["special_tokens"] = self.special_tokens
            (folder / RANKS_FILE).write_bytes(rank_file_bytes(self.ranks))
        else:
            (folder / JSON_FILE).write_bytes(_canonical_json(self.config))
        (folder / SPEC_FILE).write_bytes(_canonical_json(spec) + b"\n")

    def description(self) -> dict[str, Any]:
        """What the manifest says about the tokenizer."""
        description: dict[str, Any] = {
            "kind": self.kind,
            "name": self.name,
            "vocab_size": self.vocab_size,
            "eot_id": self.eot_id,
            "eot_token": self.eot_token,
            "fingerprint": self.fingerprint,
        }
        if self.pattern is not None:
            description["pattern"] = self.pattern
        return description


def load_tokenizer(
    name: str, *, eot_token: str | None = None, pattern: str | None = None
) -> Tokenizer:
    """Load by tiktoken encoding name, path of a .tiktoken or .json file, or Hub repository.

    A rank file holds neither pattern nor special tokens. Both are known where the file is named
    after a known encoding (`r50k_base.tiktoken`); otherwise `pattern` is needed, as the name of an
    encoding or as a regular expression, and the one special token is `eot_token`, by default
    `<|endoftext|>`, with the first id above all ranks.
    """
    path = local_path(name)
    if name.endswith(".tiktoken"):
        return _from_rank_file(path, eot_token, pattern)
    if pattern is not None:
        raise TokenizerError(
            f"`pattern` belongs to a .tiktoken file; {name!r} brings its own. Leave it out."
        )
    if name.endswith(".json"):
        sibling = path.with_name("tokenizer_config.json")
        named = eos_of_config(sibling.read_bytes()) if sibling.is_file() else None
        return _from_json(_read_file(path), path.name, str(path), eot_token, named)
    if name in KNOWN_ENCODINGS or re.fullmatch(r"[\w.-]+", name):
        return _from_encoding_name(name, eot_token)
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        return _from_hub(name, eot_token)
    raise TokenizerError(
        f"`tokenizer` names nothing that can be loaded: {name!r}. Pass (1) a tiktoken encoding "
        f"({', '.join(KNOWN_ENCODINGS)}), (2) a path that ends in .tiktoken, (3) a path to a "
        "tokenizer.json, or (4) a Hugging Face repository such as org/name."
    )


def tokenizer_of_json(data: bytes, *, name: str, eot_token: str | None) -> Tokenizer:
    """Load what a tokenizer.json holds; `name` is what messages call it."""
    return _from_json(data, name, name, eot_token, None)


def open_saved(folder: Path) -> Tokenizer:
    """Open what `Tokenizer.save` wrote, from disk alone, and check that it is what it was."""
    where = str(folder / SPEC_FILE)
    try:
        spec = json.loads(_read_file(folder / SPEC_FILE))
        version, kind, name = spec["version"], spec["kind"], spec["name"]
        eot_token, fingerprint = spec["eot_token"], spec["fingerprint"]
        of_ranks = None
        if kind == "tiktoken":
            of_ranks = str(spec["pattern"]), dict(spec["special_tokens"])
    except (ValueError, KeyError, TypeError) as error:
        raise TokenizerError(f"{where} is not a saved tokenizer's description: {error!r}") from None
    refuse_newer(version, FormatVersion(SPEC_VERSION), what=where)
    if version != SPEC_VERSION:
        raise TokenizerError(f"{where} has version {version!r}; this release reads {SPEC_VERSION}.")
    if of_ranks is not None:
        ranks = parse_rank_file(_read_file(folder / RANKS_FILE), str(folder / RANKS_FILE))
        tokenizer = _from_ranks(name, ranks, *of_ranks, eot_token)
    else:
        data = _read_file(folder / JSON_FILE)
        tokenizer = _from_json(data, name, str(folder / JSON_FILE), eot_token, None)
    if tokenizer.fingerprint != fingerprint:
        raise TokenizerError(
            f"The tokenizer saved in {folder} is damaged: its files have the fingerprint "
            f"{tokenizer.fingerprint}, its description says {fingerprint}. Save it again."
        )
    return tokenizer


def is_panic(error: BaseException) -> bool:
    """Whether a Rust extension panicked; the type is no Exception and cannot be imported."""
    return type(error).__name__ == "PanicException"


def _from_rank_file(path: Path, eot_token: str | None, pattern: str | None) -> Tokenizer:
    ranks = parse_rank_file(_read_file(path), str(path))
    known = KNOWN_ENCODINGS.get(path.name.removesuffix(".tiktoken"))
    if pattern is None and known is None:
        raise TokenizerError(
            f"{path} holds ranks only, and its name is none of {', '.join(KNOWN_ENCODINGS)}: which "
            "pattern splits the text? Pass `pattern` as one of these names or as a regular "
            "expression."
        )
    if pattern is None and known is not None:
        pattern, special_tokens = known
    else:
        assert pattern is not None  # noqa: S101 - for the type checker
        pattern = KNOWN_ENCODINGS[pattern][0] if pattern in KNOWN_ENCODINGS else pattern
        special_tokens = {eot_token or ENDOFTEXT: max(ranks.values()) + 1}
    return _from_ranks(path.name, ranks, pattern, special_tokens, eot_token)


def _from_encoding_name(name: str, eot_token: str | None) -> Tokenizer:
    import tiktoken

    try:
        encoding = tiktoken.get_encoding(name)
    except Exception as error:  # noqa: BLE001 - tiktoken lets every kind of failure through
        raise TokenizerError(
            f"tiktoken cannot provide the encoding {name!r}: {type(error).__name__}: {error}. "
            f"It is one of {', '.join(KNOWN_ENCODINGS)}, downloaded on first use. Without a "
            "network: (1) pass the path of a rank file, such as r50k_base.tiktoken, or (2) point "
            "TIKTOKEN_CACHE_DIR at a folder that tiktoken filled before."
        ) from None
    # The pattern is this module's own where it has one: see GPT2_PATTERN.
    pattern = KNOWN_ENCODINGS[name][0] if name in KNOWN_ENCODINGS else encoding._pat_str
    special_tokens = dict(encoding._special_tokens)
    return _from_ranks(name, dict(encoding._mergeable_ranks), pattern, special_tokens, eot_token)


def _from_ranks(
    name: str,
    ranks: dict[bytes, int],
    pattern: str,
    special_tokens: dict[str, int],
    eot_token: str | None,
) -> Tokenizer:
    import tiktoken

    eot_token = choose_eot(name, special_tokens, eot_token, None)
    taken = set(ranks.values())
    clash = sorted(token for token, id_ in special_tokens.items() if id_ in taken)
    if clash:
        raise TokenizerError(
            f"{name}: the special tokens {clash} have ids that are ranks of ordinary tokens: text "
            "would produce them. Is this the rank file of another encoding?"
        )
    try:
        reference = tiktoken.Encoding(
            name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special_tokens
        )
    except Exception as error:  # noqa: BLE001 - a bad pattern raises ValueError or a Rust error
        raise TokenizerError(f"tiktoken refuses {name}, pattern {pattern!r}: {error}") from None
    digest = hashlib.sha256(b"shardmill tokenizer 1: tiktoken\n")
    digest.update(_canonical_json([pattern, special_tokens, eot_token]) + b"\n")
    digest.update(rank_file_bytes(ranks))
    return Tokenizer(
        kind="tiktoken",
        name=name,
        vocab_size=max([*taken, *special_tokens.values()]) + 1,
        eot_id=special_tokens[eot_token],
        eot_token=eot_token,
        fingerprint=digest.hexdigest(),
        pattern=pattern,
        ranks=ranks,
        special_tokens=special_tokens,
        reference=reference,
    )


def _from_json(
    data: bytes, name: str, where: str, eot_token: str | None, named: str | None
) -> Tokenizer:
    import tokenizers

    try:
        config = json.loads(data)
        model = dict(config["model"])
        added = list(config.get("added_tokens") or [])
        specials = {token["content"]: int(token["id"]) for token in added if token["special"]}
        contents = {token["content"]: int(token["id"]) for token in added}
    except (ValueError, KeyError, TypeError) as error:
        raise TokenizerError(f"{where} is not a tokenizer.json: {error!r}") from None
    if model.get("dropout"):
        raise TokenizerError(
            f"{where} has BPE dropout {model['dropout']}: its ids are drawn at random. Set "
            "model.dropout to null."
        )
    eot_token = choose_eot(where, contents if eot_token in contents else specials, eot_token, named)
    # Padding, truncation and the post-processor add or drop ids; here every id is the text's own.
    config = {
        **config,
        "padding": None,
        "truncation": None,
        "post_processor": None,
        # An end-of-text that is not marked special would be found in texts.
        "added_tokens": [
            {**token, "special": token["special"] or token["content"] == eot_token}
            for token in added
        ],
    }
    try:
        reference = tokenizers.Tokenizer.from_str(json.dumps(config))
    except Exception as error:  # noqa: BLE001 - tokenizers raises plain Exception
        raise TokenizerError(f"tokenizers cannot read {where}: {error}") from None
    reference.encode_special_tokens = True
    eot_id = contents[eot_token]
    refuse_reachable_eot(where, model, reference, eot_token, eot_id)
    decisive = {key: config.get(key) for key in ("normalizer", "pre_tokenizer", "model")}
    digest = hashlib.sha256(b"shardmill tokenizer 1: huggingface\n")
    digest.update(_canonical_json([decisive, config["added_tokens"], eot_token, eot_id]))
    return Tokenizer(
        kind="huggingface",
        name=name,
        vocab_size=max(reference.get_vocab(with_added_tokens=True).values()) + 1,
        eot_id=eot_id,
        eot_token=eot_token,
        fingerprint=digest.hexdigest(),
        config=config,
        reference=reference,
    )


def _from_hub(name: str, eot_token: str | None) -> Tokenizer:
    path, config = hub_files(name, JSON_FILE, "tokenizer_config.json")
    named = None if config is None else eos_of_config(_read_file(config))
    return _from_json(_read_file(path), name, name, eot_token, named)


def _read_file(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if not 0 < size <= MAX_FILE_BYTES:
            raise TokenizerError(
                f"{path} has {size} bytes; a tokenizer file has between 1 and {MAX_FILE_BYTES}."
            )
        return path.read_bytes()
    except OSError as error:
        raise TokenizerError(
            f"Cannot read the tokenizer file {path}: {os.strerror(error.errno or 0)}."
        ) from None


def _canonical_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()
