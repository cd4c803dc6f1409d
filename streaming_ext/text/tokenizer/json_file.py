"""Tokenizers of Hugging Face: a tokenizer.json on disk or in a repository of the Hub."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from streaming_ext.base.errors import TokenizerError, one_line
from streaming_ext.text.tokenizer.tokenizer import (
    Tokenizer,
    canonical_json,
    choose_eot,
    fingerprint_of,
    read_file,
)

JSON_FILE: Final = "tokenizer.json"
_CONFIG_FILE: Final = "tokenizer_config.json"
_ANSWER_SECONDS: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class JsonTokenizer(Tokenizer):
    """One of the library `tokenizers`.

    The fingerprint covers the normalizer, pre-tokenizer, model and added tokens. It leaves out
    padding, truncation, post-processor, decoder and layout, which decide no id here.
    """

    kind: ClassVar = "huggingface"
    package: ClassVar = "tokenizers"
    file_name: ClassVar = JSON_FILE

    # the parsed tokenizer.json, reduced to what decides the ids, and its decoder
    config: dict[str, Any] = field(repr=False, compare=False)
    model: Any = field(repr=False, compare=False)  # tokenizers.Tokenizer

    @classmethod
    def of(
        cls,
        data: bytes,
        name: str,
        *,
        where: str = "",
        eot_token: str | None = None,
        named: str | None = None,
    ) -> "JsonTokenizer":
        """Load the content of a tokenizer.json.

        Args:
            data: its content.
            name: of the tokenizer.
            where: its name in messages, by default the same.
            eot_token: the end-of-text token, if the user names one.
            named: the end-of-text token that the tokenizer's own configuration names.
        """
        import tokenizers

        where = where or name
        try:
            config = json.loads(data)
            model = dict(config["model"])
            added = list(config.get("added_tokens") or [])
            ids = {token["content"]: int(token["id"]) for token in added}
            specials = [token["content"] for token in added if token["special"]]
        except (ValueError, KeyError, TypeError) as error:
            raise TokenizerError(f"{where} is not a tokenizer.json: {error!r}") from None
        if model.get("dropout"):
            raise TokenizerError(
                f"{where} has BPE dropout {model['dropout']}: its ids are drawn at random. Set "
                "model.dropout to null."
            )
        eot_token = choose_eot(where, ids if eot_token in ids else specials, eot_token, named)
        # An end-of-text token that is not marked special would be found in texts.
        added = [
            {**token, "special": token["special"] or token["content"] == eot_token}
            for token in added
        ]
        # These add or drop ids; here every id comes from the text.
        unused = dict.fromkeys(("padding", "truncation", "post_processor"))
        config = {**config, **unused, "added_tokens": added}
        try:
            reference = tokenizers.Tokenizer.from_str(json.dumps(config))
        except Exception as error:  # noqa: BLE001 - tokenizers raises plain Exception
            raise TokenizerError(f"tokenizers cannot read {where}: {error}") from None
        reference.encode_special_tokens = True
        decisive = {key: config.get(key) for key in ("normalizer", "pre_tokenizer", "model")}
        identity = canonical_json([decisive, added, eot_token, ids[eot_token]])
        made = cls(
            name=name,
            vocab_size=max(reference.get_vocab(with_added_tokens=True).values()) + 1,
            eot_id=ids[eot_token],
            eot_token=eot_token,
            fingerprint=fingerprint_of(cls.kind, identity),
            config=config,
            model=reference,
        )
        made._refuse_reachable_eot(where)
        return made

    @classmethod
    def saved(cls, data: bytes, where: str, spec: Mapping[str, Any]) -> "JsonTokenizer":
        """The inverse of `save`."""
        return cls.of(data, spec["name"], where=where, eot_token=spec["eot_token"])

    def _refuse_reachable_eot(self, where: str) -> None:
        token = self.eot_token
        merges = self.config["model"].get("merges") or []
        reachable = any(
            (merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)) == token
            for merge in merges
        )
        texts = (token, f" {token}", f"a{token}b", f"a {token} b")
        if reachable or any(self.eot_id in self.encode(text) for text in texts):
            raise TokenizerError(
                f"{where}: the text {token!r} becomes the end-of-text id {self.eot_id}, so "
                "documents could not be told apart. Pass `eot_token` to name another special token."
            )

    def encode(self, text: str) -> list[int]:
        """The ids of the library; special tokens are text."""
        ids: list[int] = self.model.encode(text, add_special_tokens=False).ids
        return ids

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The text of the library's decoder."""
        text: str = self.model.decode(list(ids), skip_special_tokens=False)
        return text.encode()

    def file_bytes(self) -> bytes:
        """A tokenizer.json."""
        return canonical_json(self.config)


def of_json_file(path: Path, eot_token: str | None) -> JsonTokenizer:
    """A tokenizer.json, with the tokenizer_config.json of its folder if there is one."""
    config = path.with_name(_CONFIG_FILE)
    named = _eos_of(config.read_bytes()) if config.is_file() else None
    return JsonTokenizer.of(
        read_file(path), path.name, where=str(path), eot_token=eot_token, named=named
    )


def of_hub(name: str, eot_token: str | None) -> JsonTokenizer:
    """The tokenizer of a repository of the Hub, or of its cache if the Hub does not answer.

    Raises:
        TokenizerError: the file does not exist, or cannot be downloaded.
    """
    import httpx
    from huggingface_hub import constants, hf_hub_download  # no submodule comes with the package
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    unreachable = ""
    if not constants.HF_HUB_OFFLINE:  # its own client would try for 23 s
        try:
            httpx.head(constants.ENDPOINT, timeout=_ANSWER_SECONDS)
        except Exception as error:  # noqa: BLE001 - a proxy's settings raise anything
            reason = one_line(error) or type(error).__name__
            unreachable = f"{constants.ENDPOINT} does not answer ({reason})"

    def download(file: str) -> bytes:
        return read_file(Path(hf_hub_download(name, file, local_files_only=bool(unreachable))))

    try:
        data = download(JSON_FILE)
        try:
            named = _eos_of(download(_CONFIG_FILE))
        except EntryNotFoundError:
            named = None
    except Exception as error:  # noqa: BLE001 - network, authentication, repository, file
        reason = one_line(error)
        if unreachable and isinstance(error, LocalEntryNotFoundError):
            reason = f"{unreachable}, and its cache on this host does not hold it"
        raise TokenizerError(
            f"Cannot get {JSON_FILE} of the Hugging Face repository {name!r}: {reason}. (1) Check "
            "the name; (2) set HF_TOKEN if it is gated or private; (3) without a network, pass "
            f"the path of a {JSON_FILE}."
        ) from None
    return JsonTokenizer.of(data, name, eot_token=eot_token, named=named)


def _eos_of(config: bytes) -> str | None:
    """The eos_token of a tokenizer_config.json, which is a string or an object with `content`."""
    try:
        token = json.loads(config).get("eos_token")
    except (ValueError, AttributeError):
        return None
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None
