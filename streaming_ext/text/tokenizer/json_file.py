"""Tokenizers of Hugging Face: a tokenizer.json on disk or in a repository of the Hub."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

from streaming_ext.base.errors import TokenizerError
from streaming_ext.base.git_lfs import not_a_pointer
from streaming_ext.store.faults import words_of
from streaming_ext.text.tokenizer.tokenizer import (
    Marks,
    Tokenizer,
    canonical_json,
    fingerprint_of,
    read_file,
)

JSON_FILE: Final = "tokenizer.json"
_CONFIG_FILE: Final = "tokenizer_config.json"
_PARALLELISM: Final = "TOKENIZERS_PARALLELISM"
_ANSWER_SECONDS: Final = 5.0
_STAND_INS: Final = bytes.maketrans(b'"\\', b"\1\2")


@dataclass(frozen=True, kw_only=True)
class JsonTokenizer(Tokenizer):
    """A tokenizer of the library `tokenizers`.

    The file is reduced to the decoder and what decides the ids. The fingerprint covers the
    normalizer, pre-tokenizer, model and added tokens; layout and decoder do not affect ids.
    """

    kind: ClassVar = "huggingface"
    package: ClassVar = "tokenizers"
    file_name: ClassVar = JSON_FILE

    @cached_property
    def config(self) -> dict[str, Any]:
        """The parsed tokenizer.json."""
        return _parsed(self.data)

    @cached_property
    def model(self) -> Any:
        """The `Tokenizer` of the library."""
        return _reference(self.data)

    @classmethod
    def of(
        cls,
        data: bytes,
        name: str,
        *,
        where: str = "",
        eot_token: str | None = None,
        bos_token: str | None = None,
        usual_bos: str | None = None,
    ) -> "JsonTokenizer":
        """Load the content of a tokenizer.json.

        Args:
            data: the content of the file.
            name: the name of the tokenizer.
            where: the name in messages; `name` by default.
            eot_token, bos_token: the tokens around a document, if they are named.
            usual_bos: the token that the tokenizer puts before a text: empty for none, None if
                unknown.
        """
        where = where or name
        try:
            config = _parsed(data)
            model = dict(config["model"])
            added = list(config.get("added_tokens") or [])
            # A token around documents that is not marked special would be found in texts.
            added = [
                {**token, "special": token["special"] or token["content"] in (eot_token, bos_token)}
                for token in added
            ]
            vocabulary = dict(model["vocab"])  # a Unigram model has pairs with scores
            if usual_bos is None:
                usual_bos = _beginning(config.get("post_processor") or {})
        except (ValueError, KeyError, TypeError) as error:
            raise TokenizerError(f"{where} is not a tokenizer.json: {error!r}") from None
        if model.get("dropout"):
            raise TokenizerError(
                f"{where} has BPE dropout {model['dropout']}: its ids are drawn at random. Set "
                "model.dropout to null."
            )
        # These settings add or drop ids; here every id comes from the text.
        unused = dict.fromkeys(("padding", "truncation", "post_processor"))
        config = {**config, **unused, "added_tokens": added}
        values = {key: canonical_json(value) for key, value in config.items() if key != "model"}
        values["model"] = _model_json(model)
        decisive = {
            key: values.get(key, b"null") for key in ("normalizer", "pre_tokenizer", "model")
        }
        data = _object(values)
        try:
            reference = _reference(data)
        except ImportError:  # an extra is not installed
            raise
        except Exception as error:  # noqa: BLE001 - tokenizers raises plain Exception
            raise TokenizerError(f"tokenizers cannot read {where}: {error}") from None
        # Added tokens have the ids that the library gives them, whatever the file says.
        id_of = {token["content"]: reference.token_to_id(token["content"]) for token in added}
        special = {token["content"]: id_of[token["content"]] for token in added if token["special"]}
        marks = Marks(
            where=where,
            special=special,
            is_ordinary=vocabulary.__contains__,
            how='list it in `added_tokens` with "special": true, as its library does on '
            "add_special_tokens() and save()",
        ).choose(eot_token, bos_token)
        others = canonical_json([added, marks["eot_token"], marks["eot_id"]])
        identity = b"[" + _object(decisive) + b"," + others[1:]
        ids = [id_ for content, id_ in id_of.items() if content]
        is_list = isinstance(model["vocab"], list)
        ids += range(len(model["vocab"])) if is_list else model["vocab"].values()
        made = cls(
            name=name,
            vocab_size=max(ids) + 1,
            **marks,
            usual_bos=usual_bos if usual_bos in special else None,
            fingerprint=fingerprint_of(cls.kind, identity, bos_token=bos_token),
            data=data,
        )
        vars(made).update(config=config, model=reference)  # so that they are not parsed again
        made._refuse_reachable_marks(where)
        return made

    @classmethod
    def saved(cls, data: bytes, where: str, spec: Mapping[str, Any]) -> "JsonTokenizer":
        """Open what `save` wrote."""
        tokens: dict[str, Any] = {name: spec.get(name) for name in ("eot_token", "bos_token")}
        return cls.of(data, spec["name"], where=where, **tokens)

    def _refuse_reachable_marks(self, where: str) -> None:
        model = self.config["model"]
        for name, token, id_ in self.marks:
            texts = token, f" {token}", f"a{token}b", f"a {token} b"
            halves = {(token[:at], token[at:]) for at in range(1, len(token))}
            is_merged = token in model["vocab"] and not halves.isdisjoint(merged_pairs(model))
            if is_merged or any(id_ in self.encode(text) for text in texts):
                raise TokenizerError(
                    f"{where}: the text {token!r} becomes the {name} id {id_}, so documents could "
                    "not be told apart. Name another special token with --eot-token or --bos-token."
                )

    def encode(self, text: str) -> list[int]:
        """Return the library's ids; special tokens in a text count as text."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several texts."""
        if os.environ.get(_PARALLELISM) == "false":
            found = self.model.encode_batch_fast(texts, add_special_tokens=False)
        else:
            found = [self.model.encode(text, add_special_tokens=False) for text in texts]
        return [encoding.ids for encoding in found]

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """Return the text of the library's decoder."""
        text: str = self.model.decode(list(ids), skip_special_tokens=False)
        return text.encode()


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Keep the library from starting threads, which would not survive a fork.

    Batches are then fast and safe. Otherwise texts are encoded one by one, slower and by one
    thread of a process at a time.
    """
    before = os.environ.get(_PARALLELISM)
    os.environ[_PARALLELISM] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PARALLELISM]
        else:
            os.environ[_PARALLELISM] = before


def _reference(data: bytes) -> Any:
    """Load the library's `Tokenizer` so that it treats special tokens in texts as text."""
    import tokenizers

    reference = tokenizers.Tokenizer.from_buffer(data)
    reference.encode_special_tokens = True
    return reference


def in_order(config: Mapping[str, Any] | None, name: str) -> list[Any]:
    """Return the normalizers or pre-tokenizers of a configuration, in order.

    Args:
        config: one of them, a `Sequence` of several, or None if there is none.
        name: the name of the list in a `Sequence`.
    """
    if config is None:
        return []
    if config["type"] != "Sequence":
        return [config]
    return [one for each in config[name] for one in in_order(each, name)]


def merged_pairs(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the pairs of tokens that a BPE model merges; a file has them as one or two strings."""
    merges = model.get("merges") or []
    if merges and isinstance(merges[0], str):
        return [tuple(merge.split(" ", 1)) for merge in merges]
    return [*map(tuple, merges)]


def _parsed(data: bytes) -> dict[str, Any]:
    import orjson  # imported late: it belongs to an extra

    return dict(orjson.loads(data))


def _model_json(model: Mapping[str, Any]) -> bytes:
    """Return the canonical JSON of a model; with orjson, in half of the time.

    The vocabulary of a Unigram model has scores, which orjson may write differently.
    """
    import orjson

    if isinstance(model["vocab"], list):
        return canonical_json(model)
    text = orjson.dumps(model, option=orjson.OPT_SORT_KEYS)
    # Escape all as one string; other characters stand for its quotes and backslashes meanwhile.
    escaped = json.dumps(text.translate(_STAND_INS).decode())[1:-1]
    return escaped.replace(r"\u0001", '"').replace(r"\u0002", "\\").encode()


def _object(values: Mapping[str, bytes]) -> bytes:
    """Join the canonical JSON of values into an object; a large vocabulary is not encoded again."""
    return b"{%s}" % b",".join(canonical_json(key) + b":" + values[key] for key in sorted(values))


def of_json_file(path: Path, eot_token: str | None, bos_token: str | None) -> JsonTokenizer:
    """Load a tokenizer.json, with the tokenizer_config.json of its folder if there is one."""
    file = path.with_name(_CONFIG_FILE)
    config = not_a_pointer(file.read_bytes(), str(file)) if file.is_file() else b"{}"
    tokens = _tokens(config, str(file), eot_token, bos_token)
    return JsonTokenizer.of(read_file(path), path.name, where=str(path), **tokens)


def of_hub(name: str, eot_token: str | None, bos_token: str | None) -> JsonTokenizer:
    """Load the tokenizer of a repository of the Hub, from its cache if the Hub does not answer.

    Raises:
        TokenizerError: the file does not exist, or cannot be downloaded.
    """
    import httpx
    from huggingface_hub import constants, hf_hub_download  # it imports no submodule
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    unreachable = ""
    if not constants.HF_HUB_OFFLINE:  # the Hub's client would try for 23 s
        try:
            httpx.head(constants.ENDPOINT, timeout=_ANSWER_SECONDS)
        except Exception as error:  # noqa: BLE001 - a proxy's settings raise anything
            unreachable = f"{constants.ENDPOINT} does not answer ({words_of(error)})"

    def download(file: str) -> bytes:
        return read_file(Path(hf_hub_download(name, file, local_files_only=bool(unreachable))))

    try:
        data, config = download(JSON_FILE), b"{}"
        with suppress(EntryNotFoundError):
            config = download(_CONFIG_FILE)
    except Exception as error:  # noqa: BLE001 - network, authentication, repository, file
        reason = f"{constants.ENDPOINT}: {words_of(error)}"
        if unreachable and isinstance(error, LocalEntryNotFoundError):
            reason = f"{unreachable}, and its cache on this host does not hold it"
        raise TokenizerError(
            f"Cannot get {JSON_FILE} of the Hugging Face repository {name!r}: {reason}. (1) Check "
            "the name; (2) set HF_TOKEN if it is gated or private; (3) without a network, pass "
            f"the path of a {JSON_FILE}."
        ) from None
    tokens = _tokens(config, f"{name}/{_CONFIG_FILE}", eot_token, bos_token)
    return JsonTokenizer.of(data, name, **tokens)


def _tokens(
    config: bytes, where: str, eot_token: str | None, bos_token: str | None
) -> dict[str, Any]:
    """Return the tokens that the user or a tokenizer_config.json names, for `JsonTokenizer.of`."""
    try:
        values = dict(json.loads(config))
    except (ValueError, TypeError) as error:
        raise TokenizerError(f"{where} is not a tokenizer_config.json: {error!r}") from None
    eos, bos = (_content(values.get(name)) for name in ("eos_token", "bos_token"))
    adds = values.get("add_bos_token")
    return {
        "eot_token": eos or None if eot_token is None else eot_token,
        "bos_token": bos_token,
        "usual_bos": bos if adds else "" if adds is False else None,
    }


def _content(token: object) -> str | None:
    """Return a token of a configuration, given as a string or as an object with `content`."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _beginning(post_processor: Mapping[str, Any]) -> str | None:
    """Return the token that a post-processor puts before a text."""
    match post_processor:
        case {"type": "Sequence", "processors": processors}:
            return next(filter(None, map(_beginning, processors)), None)
        case {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": str(token)}}, *_]}:
            return token
        case {"type": "BertProcessing" | "RobertaProcessing", "cls": [str(token), _]}:
            return token
    return None
