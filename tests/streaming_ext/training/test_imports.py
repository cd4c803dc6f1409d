"""The modules of this project that a training process loads before it opens a dataset."""

import io
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

MOST_MODULES, MOST_TOKENS = 45, 45_000
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def test_what_the_dataset_class_loads() -> None:
    pytest.importorskip("torch")
    shown = (
        "import sys; from streaming_ext import StreamingTokenDataset; "
        "own = [each for name, each in sys.modules.items() if name.startswith('streaming_ext.')]; "
        "print(*(each.__file__ for each in own), sep='\\n')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", shown],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    files = [Path(line) for line in ended.stdout.splitlines() if not line.endswith("__init__.py")]
    tokens = 0
    for file in files:
        lines = io.BytesIO(file.read_bytes()).readline
        tokens += sum(each.type not in SILENT for each in tokenize.tokenize(lines))
    assert 20 < len(files) <= MOST_MODULES, "\n".join(map(str, files))
    if sys.version_info < (3, 12):  # newer versions see several tokens in an f-string
        assert 20_000 < tokens <= MOST_TOKENS
