"""Conversion of a SentencePiece model to a tokenizer.json, if one gives the same ids."""

import struct
from collections.abc import Iterator
from typing import Any, Final

SPACE: Final = "\u2581"  # stands for a space in the vocabularies of SentencePiece
REPLACE: Final = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
PREPEND: Final = {"type": "Prepend", "prepend": SPACE}
# From the library's sentencepiece_model.proto: the parts of a model; then, by name, the part, the
# number of the field, its default, and the value for which the ids are known to be the same.
_ENTRY, _TRAINER, _NORMALIZER = 1, 2, 3
_SETTINGS: Final[dict[str, tuple[int, int, Any, Any]]] = {
    "model_type": (_TRAINER, 3, 1, 2),  # BPE
    "treat_whitespace_as_suffix": (_TRAINER, 24, 0, 0),
    "byte_fallback": (_TRAINER, 35, 0, 1),
    "precompiled_charsmap": (_NORMALIZER, 2, b"", b""),
    "remove_extra_whitespaces": (_NORMALIZER, 4, 1, 0),
    "escape_whitespaces": (_NORMALIZER, 5, 1, 1),
}
_ADD_DUMMY_PREFIX: Final = 3
_NORMAL, _USER_DEFINED, _UNUSED, _BYTE = 1, 4, 5, 6


def json_of_model(data: bytes) -> dict[str, Any] | str:
    """Return the tokenizer.json of a model, or the reason why there is none.

    The library joins the two neighbours that make the piece with the highest score. So two pieces
    merge if their concatenation is a piece, in the order of the scores.
    """
    parts = list(_fields(data))
    specs = {number: dict(_fields(value)) for number, value in parts if number != _ENTRY}
    for name, (part, field, default, plain) in _SETTINGS.items():
        if (found := specs.get(part, {}).get(field, default)) != plain:
            return f"its {name} is {found!r:.20}, and not {plain!r}"
    entries = [dict(_fields(value)) for number, value in parts if number == _ENTRY]
    kinds = [entry.get(3, _NORMAL) for entry in entries]
    names = [entry[1].decode() for entry in entries]
    if not {_USER_DEFINED, _UNUSED}.isdisjoint(kinds):
        return "it has pieces that are found before others, or unused ones"
    vocab = {
        name: id_
        for id_, (name, kind) in enumerate(zip(names, kinds, strict=True))
        if kind in (_NORMAL, _BYTE)  # no text gives the others
    }
    scores = {
        name: struct.unpack("<f", entry[2])[0]
        for name, kind, entry in zip(names, kinds, entries, strict=True)
        if kind == _NORMAL
    }
    joined = [name for name in scores if len(name) > 1]
    uneven = [scores[name] for name in joined if {*name} != {SPACE}]
    even = {scores[name] for name in joined if {*name} == {SPACE}}
    if len({*uneven} - even) < len(uneven) or not {*"".join(joined)} <= scores.keys():
        return "it has pieces of the same score, or characters that are no pieces"
    merges = [
        (name[:at], name[at:])
        for name in joined
        for at in range(1, len(name))
        if name[:at] in scores and name[at:] in scores
    ]
    # Runs of spaces have the same score: the library joins the first two again and again.
    merges.sort(key=lambda pair: (-scores["".join(pair)], -len(pair[0])))
    prefix = [PREPEND] if specs[_NORMALIZER].get(_ADD_DUMMY_PREFIX, 1) else []
    return {
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, REPLACE]},
        "pre_tokenizer": None,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": True},
    }


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the numbers and values of the fields of a protobuf message."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        value: int | bytes
        if key & 7 == 0:
            value = number()
        else:
            size = {1: 8, 5: 4}.get(key & 7) or number()
            value, at = data[at : at + size], at + size
        yield key >> 3, value
