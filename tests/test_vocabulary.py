"""One word for one thing: names and texts keep to docs/glossary.md and avoid retired words.

This file lists those words, each with the one to use. `ALLOWED` lists names that libraries chose.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("flows", "tasks", "streaming_ext")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md")

# Words that no identifier contains, each with what to say.
NAMES = {
    "asked": "requested",
    "begun": "started",
    "card": "what the file is",
    "gather": "merge",
    "gathered": "merged",
    "here": "local",
    "lane": "canonical node",
    "lanes": "canonical nodes",
    "making": "build",
    "piece": "span, segment or chunk",
    "pieces": "spans, segments or chunks",
    "place": "position, offset, row or location",
    "places": "positions, offsets, rows or locations",
    "reckoned": "estimate",
    "scatter": "sort",
    "share": "fraction, weight, partition or subset",
    "shares": "fractions, weights, partitions or subsets",
    "stage": "phase",
    "stages": "phases",
    "tell": "report",
    "there": "existing",
    "told": "reported",
    "unit": "what it is: a group, a row, a part",
    "units": "what they are: groups, rows, parts",
}
ALLOWED = {
    "all_gather_object": "torch.distributed",
    "gather": "the word of torch.distributed",
    "encode_single_piece": "tiktoken",
    "get_piece_size": "sentencepiece",
    "id_to_piece": "sentencepiece",
    "SentencePieceProcessor": "sentencepiece",
    "may_share_memory": "numpy",
    "share_memory_": "torch",
    "scatter": "matplotlib",
    "card_data": "huggingface_hub",
    "tell": "files",
    "here": "the executor of that name",
    "in_place": "the usual word",
    "unit": "of a size or a time",
    "units": "of a size or a time",
    "_UNITS": "of a size or a number",
}
# Phrases that no text contains, each with what to say.
PHRASES = {
    r"hangs? on (the|its|what)": "depends on",
    r"(is|are|be|was) gone on with": "resumes",
    r"(is|are|be|was) told of": "is reported",
    r"(what|which) (came|became) of": "the result",
    r"where there (is|are) (none|no)\b": "if there is none",
    r"let be\b": "left alone",
    r"\breckon(s|ed|ing)?\b": "estimate",
    r"\bbegun\b": "started",
    r"\bmend(s|ed)?\b": "repair",
    r"taken for given": "assumed",
    r"\blanes?\b": "canonical node",
    r"\b(two|first|second|one)[- ]stages?\b": "phase",
    r"(is|are|be) of (no )?use with": "is (not) used with",
    r"cannot be told": "is not known",
    r"\bsome (two|three|four|five|six|ten|twenty|\d+)\b": "about",
    r"may not be what|nothing less": "what it must be",
}
# "Tokens a step" is read twice: say "per".
COUNTED = (
    "batches|bytes|characters|connections|cores|documents|entries|files|GB|ids|items|jobs|KB|lines"
    "|MB|ms|numbers|parts|positions|requests|rows|s|samples|seconds|sequences|shards|steps|threads"
    "|times|tokens|words|workers"
)
PER = (
    "batch|block|byte|character|chunk|core|document|epoch|file|GB|group|host|line|machine|MB|node"
    "|part|pass|phase|process|rank|row|run|sample|second|sequence|shard|split|step|stream|task"
    "|token|word|worker"
)
VERB = "(gave|gives|has|held|holds|is|makes|reads|sends|takes|writes)"
PHRASES[rf"\b({COUNTED})( of [a-z]+)? (a|an|each) ({PER})\b(?! {VERB})"] = "per"
# A docstring begins with a verb or a noun.
NO_BEGINNING = re.compile(r"(How|If|Of|That|What|When|Where|Whether|Which|Who)\b")
# The description of an argument stands alone: "config: the configuration of the run".
ARGUMENT = re.compile(r" {4}(?P<names>\w+(, \w+)*): (?P<words>.*)")
NO_PHRASE = re.compile(r"(for|from|how|if|in|its|of|that|to|what|where|whether|which|who)\b")


def identifiers(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the names in a file, with their lines."""
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string


def words_of(identifier: str) -> list[str]:
    """Return the words of a name: `PieceRecord` and `piece_record` are piece, record."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)]


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield comments, docstrings and messages of a program, or all lines of a page."""
    text = path.read_text()
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in {tokenize.STRING, tokenize.COMMENT}:
            yield token.start[0], " ".join(token.string.split())


@pytest.mark.parametrize("folder", SOURCES)
def test_names(folder) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}: say {NAMES[word]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in identifiers(path)
        if name not in ALLOWED
        for word in words_of(name)
        if word in NAMES
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("pattern", [*(f"{folder}/**/*.py" for folder in SOURCES), *PAGES])
def test_phrases(pattern) -> None:
    paths = sorted(ROOT.glob(pattern))
    assert paths
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}: say {instead}"
        for path in paths
        for line, text in texts(path)
        for phrase, instead in PHRASES.items()
        if (match := re.search(phrase, text))
    ]
    assert not found, "\n".join(found)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of a file, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


def incomplete(text: str) -> Iterator[str]:
    """Yield a docstring's beginning, and its lines about arguments, if they do not stand alone."""
    if NO_BEGINNING.match(text):
        yield text.partition("\n")[0]
    section = ""
    for line in text.splitlines():
        if heading := re.match(r"(\w+):$", line):
            section = heading[1]
        argument = ARGUMENT.match(line)
        if argument and section not in {"", "Raises"} and NO_PHRASE.match(argument["words"]):
            yield line.strip()


@pytest.mark.parametrize("folder", SOURCES)
def test_docstrings_stand_alone(folder) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in docstrings(path)
        for words in incomplete(text)
    ]
    assert not found, "\n".join(found)


def test_each_class_has_a_name_of_its_own() -> None:
    owners: dict[str, set[str]] = {}
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    owners.setdefault(node.name, set()).add(str(path.relative_to(ROOT)))
    assert len(owners) > 300
    assert {name: files for name, files in owners.items() if len(files) > 1} == {}
