"""Tokenizers whose ids gigatoken is known to give, and the data from which it loads them."""

import importlib.util
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from streaming_ext.base.errors import TokenizerError
from streaming_ext.text.tokenizer.json_file import JsonTokenizer, in_order, merged_pairs
from streaming_ext.text.tokenizer.model_file import ModelTokenizer
from streaming_ext.text.tokenizer.model_json import PREPEND, REPLACE, SPACE, json_of_model
from streaming_ext.text.tokenizer.rank_file import (
    CL100K_PATTERN,
    GPT2_PATTERN,
    LLAMA3_PATTERN,
    O200K_PATTERN,
    QWEN2_PATTERN,
    QWEN35_PATTERN,
    TEKKEN_PATTERN,
    RankTokenizer,
)
from streaming_ext.text.tokenizer.tokenizer import (
    Tokenizer,
    canonical_json,
    panics_as_errors,
)

# gigatoken splits text with its own code, one scheme per pattern, and knows a pattern by its text
# in a tokenizer.json. Tests try every code point with the patterns below. This table maps the
# pattern of a rank file to the text that gigatoken knows; an empty one means GPT-2's own splitter.
RANK_SPLITS: Final = {
    GPT2_PATTERN: (),
    CL100K_PATTERN: (CL100K_PATTERN + "+",),
    O200K_PATTERN: (O200K_PATTERN,),
    LLAMA3_PATTERN: (LLAMA3_PATTERN,),
    QWEN2_PATTERN: (QWEN2_PATTERN,),
    QWEN35_PATTERN: (QWEN35_PATTERN,),
    TEKKEN_PATTERN: (TEKKEN_PATTERN,),
}
# Splits of a tokenizer.json, one after another, by the models that have them; an empty tuple means
# GPT-2's own. cl100k's is missing: what is a group of three digits in tiktoken is a run of any
# length in a tokenizer.json.
JSON_SPLITS: Final[dict[str, tuple[str, ...]]] = {
    "byte_level": (),
    "gpt2": (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",),
    "llama3": (LLAMA3_PATTERN,),
    "olmo": (LLAMA3_PATTERN.replace(r"\s*[\r\n]+|", r"\s*[\r\n]|"),),
    "qwen2": (QWEN2_PATTERN,),
    "qwen35": (QWEN35_PATTERN,),
    "o200k": (O200K_PATTERN,),
    "tekken": (TEKKEN_PATTERN,),
    "deepseek": (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        "".join(
            (
                r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|""",
                "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|",
                "\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
            )
        ),
    ),
}
# Changes to spaces, as normalizers and pre-tokenizer, in a tokenizer.json with a vocabulary of
# SentencePiece.
SPACES: Final[dict[str, tuple[list[Any], Any]]] = {
    "llama2": ([PREPEND, REPLACE], None),
    "replaced": ([REPLACE], None),
    "gemma": (
        [REPLACE],
        {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
    ),
    **{
        f"{scheme}_{split}".lower(): (
            [],
            {
                "type": "Metaspace",
                "replacement": SPACE,
                "prepend_scheme": scheme,
                "split": split,
            },
        )
        for scheme in ("always", "first", "never")
        for split in (False, True)
    },
}
_FAST_FILE: Final = "gigatoken.json"
_BYTE_TOKEN: Final = re.compile("<0x..>", re.DOTALL)


def _byte_names() -> list[str]:
    """Return the characters that stand for the 256 bytes in a byte-level vocabulary."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in shown]
    return [chr(byte if byte in shown else 256 + others.index(byte)) for byte in range(256)]


BYTE_NAMES = _byte_names()
_BYTE_LEVEL: Final = re.compile(f"[{re.escape(''.join(BYTE_NAMES))}]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class FastModel:
    """A tokenizer as gigatoken loads it, and where it may differ from the reference.

    Attributes:
        data: the content of a tokenizer.json, or of a rank file without a gap.
        scheme: gigatoken's name for the pattern of a rank file.
        reserved: the ids that gigatoken gives for texts that are plain text to the reference.
        by_class: true if text is split by the classes that Unicode gives to code points.
        at_ends: true if white space at the end of a text is split differently.
        composes: true if text is normalized with NFC.
    """

    data: bytes
    scheme: str | None = None
    reserved: frozenset[int] = frozenset()
    by_class: bool = True
    at_ends: bool = False
    composes: bool = False

    def load(self) -> Any:
        """Make a new gigatoken tokenizer, with empty caches."""
        import gigatoken

        if self.scheme is None:
            return gigatoken.Tokenizer.from_json(self.data)
        with tempfile.NamedTemporaryFile(suffix=".tiktoken") as file:
            file.write(self.data)
            file.flush()
            return gigatoken.Tokenizer.from_tiktoken(file.name, self.scheme, {})


def fast_model(tokenizer: Tokenizer) -> FastModel | str:
    """Return the model that gigatoken loads for a tokenizer, or the reason why it is not used."""
    if importlib.util.find_spec("gigatoken") is None:
        return "gigatoken is not installed"
    made: FastModel | str = f"gigatoken is not used for {tokenizer.package}"
    if isinstance(tokenizer, RankTokenizer):
        made = _of_ranks(tokenizer)
    elif isinstance(tokenizer, ModelTokenizer):
        config = json_of_model(tokenizer.data)
        made = (
            config if isinstance(config, str) else _of_sentencepiece(config, partial(_json, config))
        )
    elif isinstance(tokenizer, JsonTokenizer):
        made = _of_json(tokenizer)
    return made


def save_fast_model(made: FastModel | str, folder: Path) -> None:
    """Write the result of `fast_model` beside the saved tokenizer, for other processes of a run."""
    head: Any = (
        {"reason": made}
        if isinstance(made, str)
        else {**asdict(made), "data": "", "reserved": [*made.reserved]}
    )
    data = b"" if isinstance(made, str) else made.data
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(_json(head) + b"\n" + data)
    Path(file.name).replace(folder / _FAST_FILE)  # another process may be reading or writing it


def saved_fast_model(folder: Path) -> FastModel | str | None:
    """Read what `save_fast_model` wrote to a folder; None if it wrote nothing."""
    path = folder / _FAST_FILE
    if not path.exists():
        return None
    head, _, data = path.read_bytes().partition(b"\n")
    found = json.loads(head)
    if "reason" in found:
        return str(found["reason"])
    return FastModel(**{**found, "data": data, "reserved": frozenset(found["reserved"])})


def _of_json(tokenizer: JsonTokenizer) -> FastModel | str:
    model = tokenizer.config["model"]
    if model.get("type") != "BPE":
        return "it is no BPE model"
    if len({*merged_pairs(model)}) < len(model["merges"]):
        return "it has a merge twice"
    if not model.get("byte_fallback"):
        return _of_byte_level(tokenizer)
    added = _added_tokens(tokenizer, moved=partial(_in_changed_spaces, tokenizer.config))
    if isinstance(added, str):
        return added
    return _of_sentencepiece(
        {**tokenizer.config, "added_tokens": added}, partial(_with_added, tokenizer, added)
    )


def _of_ranks(tokenizer: RankTokenizer) -> FastModel | str:
    """Build a tokenizer.json with the ids of a rank file.

    Two tokens merge if their concatenation is a token, the one of least rank first.
    """
    splits = RANK_SPLITS.get(tokenizer.pattern or "")
    if splits is None:
        return "gigatoken has no scheme for this pattern"
    if tokenizer.pattern == O200K_PATTERN and max(tokenizer.ranks.values()) < len(tokenizer.ranks):
        # gigatoken makes 200,000 merges itself in a fourth of the time, but it panics if a token
        # has none, as in the rank file of Qwen 3.6.
        made = FastModel(data=tokenizer.data, scheme="o200k")
        with suppress(TokenizerError), panics_as_errors():
            made.load()
            return made
    ordered = sorted(tokenizer.ranks.items(), key=itemgetter(1))
    names = dict(enumerate(BYTE_NAMES))
    vocab = {token.decode("latin-1").translate(names): rank for token, rank in ordered}
    merges = [
        (left, right)
        for name in vocab
        for at in range(1, len(name))
        if (left := name[:at]) in vocab and (right := name[at:]) in vocab
    ]
    of_bytes = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": not splits}
    isolated = [{"type": "Split", "pattern": {"Regex": split}} for split in splits]
    # A word that is a token becomes this token, whether merges lead to it or not.
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": True}
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [*isolated, of_bytes]}
    return FastModel(
        data=_json({"model": model, "pre_tokenizer": pre_tokenizer if splits else of_bytes})
    )


def _of_byte_level(tokenizer: JsonTokenizer) -> FastModel | str:
    config, model = tokenizer.config, tokenizer.config["model"]
    others = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    if any(map(model.get, others)) or not all(name in model["vocab"] for name in BYTE_NAMES):
        return "it is no plain byte-level BPE model"
    normalizers = in_order(config.get("normalizer"), "normalizers")
    if any(normalizer != {"type": "NFC"} for normalizer in normalizers):
        return "it normalizes text in another way than NFC"
    splits = _splits(config.get("pre_tokenizer") or {})
    if splits not in JSON_SPLITS.values():
        return "gigatoken has no scheme for its pre-tokenizer"
    # NFC makes `;`, a backtick and K from other characters, as it makes characters beyond ASCII. It
    # may also join the last character of a token to what follows.
    added = _added_tokens(
        tokenizer,
        moved=lambda token: (
            bool(normalizers)
            and bool(
                re.search(r"[^\x00-\x7f]|[;`K]", token["content"])
                or (token["normalized"] and re.search(r"[A-Za-z<=>]\Z", token["content"]))
            )
        ),
    )
    if isinstance(added, str):
        return added
    if any(len(token["content"].encode()) == 1 for token in added):
        return "an added token is a single byte"
    # Other names are special tokens that no text gives; gigatoken would treat them as text.
    vocab = {name: id_ for name, id_ in model["vocab"].items() if _BYTE_LEVEL.fullmatch(name)}
    data = _with_added(tokenizer, added)
    if len(vocab) < len(model["vocab"]):
        data = _json({**config, "model": {**model, "vocab": vocab}, "added_tokens": added})
    at_ends = splits == JSON_SPLITS["olmo"]
    return FastModel(
        data=data,
        # If ends matter, every added token counts: the text before it has an end, too.
        reserved=frozenset(token["id"] for token in added if token["special"] or at_ends),
        at_ends=at_ends,
        composes=bool(normalizers),
    )


def _of_sentencepiece(config: Mapping[str, Any], data: Callable[[], bytes]) -> FastModel | str:
    model, normalizers = config["model"], in_order(config.get("normalizer"), "normalizers")
    if (normalizers, config.get("pre_tokenizer")) not in SPACES.values():
        return "it normalizes or splits text in a way that gigatoken is not tried with"
    others = ("ignore_merges", "continuing_subword_prefix", "end_of_word_suffix")
    if any(map(model.get, others)):
        return "it is no plain BPE model with byte fallback"
    vocab, pairs = model["vocab"], merged_pairs(model)
    usual = {f"<0x{byte:02X}>": chr(byte) for byte in range(256)}
    of_bytes = {name for name in vocab if len(name) == 6 and _BYTE_TOKEN.fullmatch(name)}
    if (
        any(
            name not in vocab and (char > "\x7f" or char not in vocab)
            for name, char in usual.items()
        )
        or not of_bytes <= usual.keys()
        or not usual.keys().isdisjoint(chain(chain.from_iterable(pairs), map("".join, pairs)))
    ):
        return "its tokens of single bytes are not the usual ones"
    return FastModel(
        data=data(),
        reserved=frozenset(token["id"] for token in config["added_tokens"] if token["special"]),
        by_class=False,
    )


def _in_changed_spaces(config: Mapping[str, Any], token: Mapping[str, Any]) -> bool:
    """Return whether an added token is searched for in text with a changed beginning or spaces."""
    normalizers = in_order(config.get("normalizer"), "normalizers")
    return bool(token["normalized"]) and (
        PREPEND in normalizers or not {" ", SPACE}.isdisjoint(token["content"])
    )


def _added_tokens(
    tokenizer: JsonTokenizer, *, moved: Callable[[Mapping[str, Any]], bool]
) -> list[dict[str, Any]] | str:
    """Return the added tokens that gigatoken looks for; none if the reference finds none in texts.

    To the reference a special token is text, but it hides the added tokens that overlap it. So
    gigatoken finds all of them, and a document that holds a special one goes to the reference.

    Args:
        tokenizer: the reference.
        moved: a function that returns whether normalizers may change where a token is found.
    """
    added = [token for token in tokenizer.config["added_tokens"] if token["content"]]
    found = [token for token in added if not token["special"]]
    if any(token[flag] for token in found for flag in ("single_word", "lstrip", "rstrip")):
        return "it has added tokens that are words or strip spaces"
    if any(map(moved, found)):
        return "it looks for added tokens in normalized text"
    # The reference finds these before the others, at any position.
    first = [token["content"] for token in found if not token["normalized"]]
    then = [token["content"] for token in found if token["normalized"]]
    if any(
        before in after or any(after.endswith(before[:size]) for size in range(1, len(before)))
        for before in first
        for after in then
    ):
        return "it has added tokens that overlap, and finds some before the others"
    id_of = tokenizer.model.token_to_id  # the model's ids, whatever the file says
    return [
        {**token, "id": id_of(token["content"]), "normalized": False} for token in added if found
    ]


def _with_added(tokenizer: JsonTokenizer, added: list[dict[str, Any]]) -> bytes:
    """Put other added tokens into a tokenizer.json; the rest is large and not written anew."""
    first = b'{"added_tokens":'
    before = first + canonical_json(tokenizer.config["added_tokens"])
    if not tokenizer.data.startswith(before):
        return _json({**tokenizer.config, "added_tokens": added})
    return first + canonical_json(added) + tokenizer.data.removeprefix(before)


def _json(config: Mapping[str, Any]) -> bytes:
    return json.dumps(config).encode()


def _splits(pre_tokenizer: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the patterns that split text before it becomes bytes, none for GPT-2's own splitter.

    gigatoken knows the patterns by their text, but ignores the settings beside them.
    """
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, **others}:
            return () if others.get("use_regex", True) is True else None
        case {
            "type": "Sequence",
            "pretokenizers": [
                *splits,
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            usual = {"type": "Split", "behavior": "Isolated", "invert": False}
            if splits and all({**split, **usual} == split for split in splits):
                return tuple(split["pattern"].get("Regex", "") for split in splits)
    return None
