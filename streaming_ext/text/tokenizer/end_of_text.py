"""Which token ends a text, and that no text can produce it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from streaming_ext.errors import TokenizerError
from streaming_ext.text.tokenizer.rank_file import ENDOFTEXT

# Tried in this order where nobody says which token ends a text.
EOT_NAMES = (
    ENDOFTEXT,
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|im_end|>",
    "<EOS>",
    "[EOS]",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001 - DeepSeek writes it with these characters
    "[SEP]",
)


def refuse_reachable_eot(
    where: str, model: Mapping[str, Any], reference: Any, eot_token: str, eot_id: int
) -> None:
    merges = model.get("merges") or []
    pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges)
    reachable = any("".join(pair) == eot_token for pair in pairs)
    for text in (eot_token, f" {eot_token}", f"a{eot_token}b", f"a {eot_token} b"):
        reachable |= eot_id in reference.encode(text, add_special_tokens=False).ids
    if reachable:
        raise TokenizerError(
            f"{where}: the text {eot_token!r} becomes the end-of-text id {eot_id}, so documents "
            "could not be told apart. Pass `eot_token` to name another special token."
        )


def eos_of_config(data: bytes) -> str | None:
    """The eos_token of a tokenizer_config.json, which is a string or an object with `content`."""
    try:
        token = json.loads(data).get("eos_token")
    except (ValueError, AttributeError):
        return None
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def choose_eot(
    where: str, special_tokens: Iterable[str], eot_token: str | None, named: str | None
) -> str:
    special_tokens = list(special_tokens)
    wanted = [eot_token] if eot_token is not None else [*([named] if named else []), *EOT_NAMES]
    for token in wanted:
        if token in special_tokens:
            return token
    reason = (
        f"has no special token {eot_token!r}" if eot_token else "has no known end-of-text token"
    )
    shown = ", ".join(map(repr, special_tokens[:40])) or "none"
    more = f" and {len(special_tokens) - 40} more" if len(special_tokens) > 40 else ""
    raise TokenizerError(
        f"{where} {reason}. Its special tokens: {shown}{more}. Pass `eot_token` as one of them."
    )
