"""A folder that all workers load: the tokenizer, and what its fast engine must not be given."""

import json
from pathlib import Path
from typing import Literal

from platformdirs import user_cache_path

from streaming_ext.text.tokenizer.code_points import UnsafeCodePoints, find_unsafe_code_points
from streaming_ext.text.tokenizer.tokenizer import Tokenizer

_UNSAFE_FILE = "unsafe_code_points.json"


def save_tokenizer(
    tokenizer: Tokenizer, folder: Path, *, engine: Literal["auto", "reference"]
) -> None:
    """Write the folder; finding out what is unsafe takes a while, once a tokenizer and machine."""
    tokenizer.save(folder)
    if engine == "auto":
        unsafe = find_unsafe_code_points(tokenizer, user_cache_path("shardmill"))
        write_unsafe_code_points(folder, unsafe)


def write_unsafe_code_points(folder: Path, unsafe: UnsafeCodePoints | None) -> None:
    """Put what was found out where workers look for it; None leaves the fast engine unused."""
    if unsafe is not None:
        (folder / _UNSAFE_FILE).write_text(json.dumps(unsafe.to_json()))


def read_unsafe_code_points(folder: Path) -> UnsafeCodePoints | None:
    """What was found out about the fast engine, or None where it is not to be used."""
    file = folder / _UNSAFE_FILE
    return UnsafeCodePoints.from_json(json.loads(file.read_text())) if file.exists() else None
