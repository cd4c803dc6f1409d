"""Texts by whose ids a dataset recognizes its tokenizer: `tokenizer/probes.json`."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from streaming_ext.base.errors import CorruptDatasetError, MissingTokenError, UsageError
from streaming_ext.format.layout import TOKENIZER_FOLDER
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.schema import FileRecord, refuse_newer
from streaming_ext.format.spec import TokenizerIdentity
from streaming_ext.text.tokenizer.json_file import JsonTokenizer
from streaming_ext.text.tokenizer.load import load_like, open_saved
from streaming_ext.text.tokenizer.tokenizer import Tokenizer, canonical_json

PROBES_PATH: Final = f"{TOKENIZER_FOLDER}/probes.json"
_VERSION: Final = 1
Read = Callable[[FileRecord], bytes]
Encode = Callable[[str], Sequence[int]]
Ids = Mapping[str, int | None]
# Scripts and normal forms, digits, code, marks of chat templates; no code point is a recent one.
# The arrow stands for a line end. A dataset holds the texts that were here when it was made.
_LINES: Final = """Hello, world!
It's Anna's; we'll see, THEY'RE here.
the of and to in that with this from they would there through though enough their about which
government development information important international something different business question
internationalization antidisestablishmentarianism
Straße, größer, naïve façade, œuvre; el niño ¿qué? Ångström
ŁÓDŹ žluťoučký kůň, İstanbul ığdır, Tiếng Việt được
Привет, мир! Съешь ещё этих мягких булок. Їжак
Γειά σου Κόσμε, ἀρχή
שלום עולם, בְּרֵאשִׁית
مرحبا بالعالم، كيف حالك؟ پنج گاف
नमस्ते दुनिया। क्षत्रिय
বাংলা ভাষা, தமிழ் மொழி, తెలుగు
สวัสดีชาวโลก ภาษาไทย
မြန်မာ ភាសាខ្មែរ ລາວ
ქართული ենք አማርኛ
你好,世界。今天天气很好!繁體中文
こんにちは、世界。カタカナ ﾊﾝｶｸ 日本語
안녕하세요 세계, 한국어
e\u0301 \u00e9 n\u0303 \u1112\u1161\u11ab \ufb01 \uff21\uff22 \u2460 \u210c
😀 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏽 ❤️
… – — “quoted” ‘single’ «guillemets» €5 £3 ¥7 § ¶ © ™ °
\u200b\u200d\ufeff\u00ad\u2028x
0 1 12 123 1234 12345 123456 1234567890
3.14159 -1,000,000.50 1e-9 0xFF 0b101 50% $9.99 +1 (555) 010-9999
2024-05-31T23:59:59Z v1.2.3-rc4 127.0.0.1 ٣٤٥ ४५६ １２３ ½ x² Ⅳ
def f(x: int) -> str:↵    return f"{x!r:>10}"  # done
for (int i = 0; i < n; ++i) { a[i] += *p++ && !q; }
{"key": [1, 2.5, null], "a_b": "c\\n"}
<div class="x">A &amp; B</div><br/><!-- no -->
SELECT * FROM t WHERE a >= 'b' -- all↵\tAND c <> 1;
\\frac{a}{b} $x_{i}^{2} \\leq \\alpha$ ~~ ### **bold** `code`
https://example.org/a-b_c?q=1&r=%20#top user@example.org
C:\\Users\\x #!/bin/sh && ./run.sh --flag="$HOME" | grep -v '^#' > /dev/null 2>&1
camelCase snake_case SCREAMING_CASE kebab-case x1y2z3 iPhone15
aaaaaaaaaaaaaaaaaaaaaaaa ======== -------- ........ !!!!??
<|endoftext|> <|endofprompt|> <|pad|>
<|im_start|>user↵Hi<|im_end|>↵<|im_start|>assistant↵
<|begin_of_text|><|start_header_id|>system<|end_header_id|>↵↵Be brief.<|eot_id|>
<|start|>assistant<|channel|>analysis<|message|>Well<|end|><|return|>
<s>[INST] <<SYS>> x <</SYS>> Hi [/INST] yes </s>
<bos><start_of_turn>user↵Hi<end_of_turn><eos> <unk> <pad> [CLS] [SEP] [MASK]
<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>↵</think> ▁▁
<tool_call>{"name": "f"}</tool_call> <|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>
Human: Hi↵↵Assistant: Hello"""  # noqa: RUF001 - scripts look alike
_SPACES: Final = (" ", "\t", "\n", "\r\n", "\u00a0", "\u3000", " \n", "\n\n ")


def probe_texts() -> list[str]:
    """Return the texts that a new dataset holds with their ids."""
    lines = _LINES.replace("\n", "\0").replace("↵", "\n").split("\0")
    runs = [space * count for space in _SPACES for count in (1, 2, 3, 4, 7, 16)]
    return [*lines, *(f" {line}\n" for line in lines), *runs, *(f"a{run}b" for run in runs)]


def probes_of(tokenizer: Tokenizer) -> bytes:
    """Return the content of the file: the texts, each with its reference ids."""
    probes = [(text, tokenizer.encode(text)) for text in probe_texts()]
    return canonical_json({"version": _VERSION, "probes": probes}) + b"\n"


def open_listed(manifest: Manifest | None, read: Read, where: str) -> Tokenizer:
    """Open the tokenizer that a dataset holds.

    Args:
        manifest: the manifest of the dataset, if it has one.
        read: a function that reads a file of the manifest.
        where: the name of the dataset in messages.

    Raises:
        UsageError: the dataset holds no tokenizer.
        TokenizerError: the files of the tokenizer are damaged.
    """
    if manifest is None or not manifest.tokenizer_files:
        raise UsageError(
            f"{where} does not hold its tokenizer: it was not made by shardmill. Open the "
            "tokenizer by its name, or make a dataset of it with `shardmill import`."
        )
    with TemporaryDirectory() as folder:
        for file in manifest.tokenizer_files:
            (Path(folder) / Path(file.path).name).write_bytes(read(file))
        return open_saved(Path(folder))


def saved_probes(manifest: Manifest | None, read: Read, where: str) -> dict[str, list[int]]:
    """Return the probes of a dataset; for an older one, make them with its tokenizer.

    Args:
        manifest, read, where: see `open_listed`.

    Raises:
        UsageError: the dataset does not hold its tokenizer.
        TokenizerError, CorruptDatasetError: the files of the dataset are damaged.
    """
    listed = [] if manifest is None else manifest.tokenizer_files
    file = next((file for file in listed if file.path == PROBES_PATH), None)
    data = read(file) if file else probes_of(open_listed(manifest, read, where))
    try:
        found = json.loads(data)
        refuse_newer(found["version"], _VERSION, what=f"{where}/{PROBES_PATH}")
        return {str(text): [*ids] for text, ids in found["probes"]}
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDatasetError(f"{where}/{PROBES_PATH} is damaged: {error!r}.") from None


def difference(
    probes: Mapping[str, Sequence[int]],
    given: Any,
    identity: TokenizerIdentity,
    where: str,
    name: str = "",
) -> str:
    """Describe the first difference between a tokenizer and a dataset's; empty if there is none.

    Args:
        probes: the texts of the dataset, with their ids.
        given: a name or file, or a tokenizer of Shardmill, tiktoken, Transformers or tokenizers.
        identity: the tokenizer of the dataset, as its manifest describes it.
        where, name: the names of the dataset and the tokenizer in messages.

    Raises:
        UsageError: `given` is not a tokenizer, or cannot be loaded.
    """
    name = name or str(getattr(given, "name", type(given).__name__))
    try:
        if isinstance(given, str | Path):
            name = str(given)
            given = load_like(name, identity)
        elif hasattr(given, "to_str"):  # a `Tokenizer` of tokenizers
            tokens: dict[str, Any] = {
                "eot_token": identity.eot_token,
                "bos_token": identity.bos_token,
            }
            given = JsonTokenizer.of(given.to_str().encode(), name, **tokens)
    except MissingTokenError as error:
        return lacking(error, identity, where, name)
    marks, (encode, own) = identity.marks, _encoder_and_marks(given, identity.marks)
    other = next((token for token in marks if own[token] != marks[token]), None)
    if (words := other_ids(probes, encode, name, where)) or other is None:
        return words
    return (
        f"{name} is not the tokenizer of {where}: {other} has the id {own[other]} in it, the "
        f"dataset has {marks[other]}."
    )


def lacking(error: MissingTokenError, identity: TokenizerIdentity, where: str, name: str) -> str:
    """Report a token of a dataset that a tokenizer lacks; see `difference`.

    Raises:
        MissingTokenError: the token is not the dataset's, so the user named it.
    """
    if error.token not in identity.marks:
        raise error
    does = "ends" if error.token == identity.eot_token else "begins"
    return (
        f"{name} is not the tokenizer of {where}: it lacks the token that {does} each document, "
        f"{error.token!r}."
    )


def _encoder_and_marks(given: Any, marks: Ids) -> tuple[Encode, Ids]:
    """Return a tokenizer's function that encodes special tokens as text, and its ids of `marks`.

    Raises:
        UsageError: the tokenizer has no such function.
    """
    if isinstance(given, Tokenizer):
        own = {token: id_ for _, token, id_ in given.marks}
        return given.encode, {token: own.get(token) for token in marks}
    if hasattr(given, "encode_ordinary"):  # an `Encoding` of tiktoken
        known = marks.keys() & given.special_tokens_set
        own = dict.fromkeys(marks) | {token: given.encode_single_token(token) for token in known}
        return given.encode_ordinary, own
    try:
        given.encode("", add_special_tokens=False)
    except (AttributeError, TypeError) as error:
        raise UsageError(
            "`tokenizer` must be a name, a file, or an object whose encode(text, "
            f"add_special_tokens=False) gives ids; {type(given).__name__}: {error}."
        ) from None
    encode = partial(given.encode, add_special_tokens=False)
    if not hasattr(given, "convert_tokens_to_ids"):
        return encode, marks
    # Tokenizers of Transformers keep the setting until the next text: here an empty one.
    return (
        lambda text: (encode(text, split_special_tokens=True), given.encode(""))[0],
        {token: given.convert_tokens_to_ids(token) for token in marks},
    )


def other_ids(expected: Mapping[str, Sequence[int]], encode: Encode, name: str, where: str) -> str:
    """Describe the first text that a tokenizer encodes differently; see `difference`."""
    others = {text: ids for text in expected if (ids := [*encode(text)]) != expected[text]}
    if not others:
        return ""
    text, ids = next(iter(others.items()))
    return (
        f"{name} is not the tokenizer of {where}: for {text!r} it gives {ids}, the dataset has "
        f"{expected[text]}. {len(others):,} of {len(expected):,} texts differ."
    )
