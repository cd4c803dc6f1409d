"""Synthetic text: pseudo-English documents, and a vocabulary trained on them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from streaming_ext.text.tokenizer.fast_tokenizer import BYTE_NAMES
from streaming_ext.text.tokenizer.rank_file import rank_file_bytes

_ONSETS = "b br c ch d f g gr h l m n p pr r s st t th tr v w"  # or none
_RIMES = "a ai an ar e ea en er i ing ion o on ou u y"
_COMMON = "the of and to in a is that it for was on as with"
_TRAINING_CHARACTERS = 2_000_000
_NUM_WORDS = 4_000
_NUM_SENTENCES = 3_000
# Lengths, in sentences of about 75 bytes, and their weights. The mean is about 4.5 KB, with a long
# tail, as in web text.
_LENGTHS = {1: 3, 4: 8, 10: 18, 20: 22, 35: 20, 60: 14, 110: 9, 200: 4, 500: 1.5, 1500: 0.3}
_ODDITIES = (
    "It's 3.14159 or 2,718,281; they're sure we'd've said \"I'll\" -- or O'Neill's?",
    "Café naïve façade: señor Müller paid 1 234,50 € for Ærøskøbing\u2019s “smørrebrød”…",
    "Москва и Санкт-Петербург; Ελλάδα; 東京と大阪、서울; नमस्ते दुनिया; שלום עולם; ไทย.",
    "😀 👩‍👩‍👧‍👦 🇩🇪 e\u0301 a\u0328\u0301 \u200bzero\u00a0width\u3000wide ﬁ ½ ² ① Ⅷ ٣٤٥",
    "def f(x: int) -> dict[str, int]:\n    return {str(i): i ** 2 for i in range(x)}  # O(n)",
    '<div class="a">\n\t<p>if (x != y && z >= 0) { return x[0]; }</p>\r\n</div>',
    "$ make -j8 && ./run --seed=42 > /dev/null 2>&1",
    "https://example.org/a/b?c=d&e=%20f#g  user@example.org   <|endoftext|>  \\frac{a}{b}",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n\n* one\n* two\n   - three\n\n",
    "AAAAAAAAAAAAAAAA zzzzzzzzzzzzzzzzzzzzzz 00000000000000000000 ----------------------",
)


def make_documents(num_documents: int, seed: int) -> list[str]:
    """Return documents with the lengths of web text; they depend on the arguments alone."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    words = _words(random.Random(0))  # noqa: S311 - same words for all seeds
    weights = [1 / (rank + 3) for rank in range(len(words))]
    drawn = iter(rng.choices(words, weights, k=_NUM_SENTENCES * 20))
    sentences = []
    for _ in range(_NUM_SENTENCES):
        text = " ".join(next(drawn) for _ in range(rng.randint(5, 20)))
        mark = rng.choice(("", "", "", ", " + next(drawn), f" in {rng.randint(1, 2030)}", ": 'no'"))
        sentences.append(f"{text.capitalize()}{mark}{rng.choice(('.', '.', '.', '?', '!'))}")
    lengths = rng.choices(list(_LENGTHS), list(_LENGTHS.values()), k=num_documents)
    return [_document(rng, sentences, length) for length in lengths]


def train_vocabulary(documents: Sequence[str], vocab_size: int, path: Path) -> None:
    """Train byte-level BPE with GPT-2's pattern and write `vocab_size` ranks.

    The 256 bytes come first, as a rank file requires. The end-of-text token is not among the ranks.
    """
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    if vocab_size < 256:
        raise ValueError(f"`vocab_size` must be at least 256, one for each byte; got {vocab_size}.")
    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    model.train_from_iterator(_first(documents, _TRAINING_CHARACTERS), trainer)
    by_id = sorted(model.get_vocab().items(), key=lambda item: item[1])
    bytes_of = {name: byte for byte, name in enumerate(BYTE_NAMES)}
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [bytes(bytes_of[name] for name in token) for token, _ in by_id if len(token) > 1]
    path.write_bytes(rank_file_bytes({token: rank for rank, token in enumerate(tokens)}))


def write_parquet_files(
    folder: Path, num_files: int, documents_per_file: int, seed: int
) -> list[Path]:
    """Write files like FineWeb-Edu's: columns text, id and url, zstd, row groups of 500."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(num_files):
        names = [f"{number:03}-{row:06}" for row in range(documents_per_file)]
        columns = {
            "text": make_documents(documents_per_file, seed * 1_000_003 + number),
            "id": [f"<urn:synthetic:{name}>" for name in names],
            "url": [f"https://example.org/{name}" for name in names],
        }
        paths.append(folder / f"{number:03}_00000.parquet")
        pq.write_table(pa.table(columns), paths[-1], compression="zstd", row_group_size=500)
    return paths


def _first(documents: Sequence[str], num_characters: int) -> Iterator[str]:
    for document in documents:
        yield document
        num_characters -= len(document)
        if num_characters <= 0:
            return


def _words(rng: random.Random) -> list[str]:
    onsets, rimes, words = [*_ONSETS.split(), ""], _RIMES.split(), _COMMON.split()
    while len(words) < _NUM_WORDS:
        syllables = rng.choices((1, 2, 3, 4), (2, 5, 4, 1))[0]
        words.append("".join(rng.choice(onsets) + rng.choice(rimes) for _ in range(syllables)))
    return list(dict.fromkeys(words))


def _document(rng: random.Random, sentences: Sequence[str], length: int) -> str:
    count = rng.randint(length - length // 3, length + length // 3)
    chosen = rng.choices(sentences, k=count)
    for _ in range(1 + count // 30):
        if rng.random() < 0.3:
            chosen.insert(rng.randrange(count + 1), rng.choice(_ODDITIES))
    # Paragraphs have 3 to 9 sentences.
    starts = range(0, len(chosen), rng.randint(3, 9))
    size = starts.step
    return "\n\n".join(" ".join(chosen[start : start + size]) for start in starts)
