"""What trying all of Unicode found, on common patterns with the pinned versions of the engines.

Trying takes seconds of all processors, on every machine anew. `python -m` this module tries it with
the versions that are installed, and renews the file that the package brings along.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tokenizers

from streaming_ext.text.tokenizer.code_points import KNOWN, key_of, try_all_code_points
from streaming_ext.text.tokenizer.fast_tokenizer import BYTE_NAMES, splitters
from streaming_ext.text.tokenizer.rank_file import rank_file_bytes
from streaming_ext.text.tokenizer.tokenizer import Tokenizer, load_tokenizer

_PATTERNS = ("gpt2", "cl100k_base", "o200k_base")


def common_tokenizers() -> Iterator[Tokenizer]:
    """A tokenizer of every common way to split text; none has merges, which do not matter here."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = Path(folder, "bytes.tiktoken")
        ranks.write_bytes(rank_file_bytes({bytes([byte]): byte for byte in range(256)}))
        for pattern in _PATTERNS:
            yield load_tokenizer(str(ranks), pattern=pattern)
        vocabulary = {name: id_ for id_, name in enumerate([*BYTE_NAMES, "<|endoftext|>"])}
        model = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
        model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.add_special_tokens(["<|endoftext|>"])
        model.save(str(Path(folder, "tokenizer.json")))
        yield load_tokenizer(str(Path(folder, "tokenizer.json")))


def _renew() -> None:
    found = {}
    for tokenizer in common_tokenizers():
        splitting = splitters(tokenizer)
        if splitting is not None:
            ranges = try_all_code_points(tokenizer).to_json()
            found[key_of(splitting)] = {"splitting": splitting.split("\n"), "ranges": ranges}
    entries = (f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in found.items())
    KNOWN.write_text("{\n" + ",\n".join(entries) + "\n}\n")


if __name__ == "__main__":
    _renew()
