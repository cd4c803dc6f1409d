"""Documents that contain an n-gram of an evaluation text are left out, or counted."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.store import open_storage
from streaming_ext.text.text_hashes import UNICODE
from streaming_ext.text.tokenizer.engine import choose_engine
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.writing.evaluation_texts import evaluation_texts, texts_in
from tasks.core.derive.annotate import plan_annotate
from tasks.core.derive.config import AnnotateConfig, SubsetConfig
from tasks.core.derive.subset import plan_subset
from tasks.core.reading.dataset_files import read_records
from tasks.core.synthetic import make_documents
from tests.conftest import small_vocabulary
from tests.tasks.core import running
from tests.tasks.core.build_dataset import build_from, manifest_of, require_sound

DOCUMENTS = [*make_documents(60, seed=3)]
QUESTIONS = [
    f"Question {number}: " + " ".join(f"word{number}x{i}" for i in range(20)) for number in range(3)
]
HOLDERS = {5: 0, 17: 0, 41: 2}  # document -> the question in it
EXPECTED = {0: 2, 2: 1}


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    texts = list(DOCUMENTS)
    for document, question in HOLDERS.items():
        inside = QUESTIONS[question].upper().replace(" ", " -- ")
        texts[document] = f"{texts[document]} {inside} {texts[document]}"
    for number in range(2):
        pq.write_table(
            pa.table({"text": texts[number * 30 : number * 30 + 30]}), folder / f"{number}.parquet"
        )
    return folder


@pytest.fixture(scope="module")
def questions(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("evaluations") / "evals.jsonl"
    path.write_text(
        "".join(json.dumps({"question": text}) + "\n" for text in [*QUESTIONS, "short"])
    )
    return path


def options(questions: Path, **others: Any) -> dict[str, Any]:
    return {"exclude_texts": (str(questions),), "exclude_column": ("question",)} | others


@pytest.mark.parametrize(
    "others",
    [{}, {"shuffle": "documents"}, {"deduplicate": "exact"}],
    ids=["plain", "shuffled", "deduplicated"],
)
def test_documents_with_an_ngram_are_left_out(sources, questions, tmp_path, others) -> None:
    root = build_from(sources, tmp_path / "made", **options(questions), **others)
    manifest = manifest_of(root)
    assert manifest.row_counts.dropped_documents == {"exclude_texts": len(HOLDERS)}
    assert sum(split.documents for split in manifest.splits.values()) == len(DOCUMENTS) - len(
        HOLDERS
    )
    assert (manifest.spec.exclude.texts, manifest.spec.exclude.without_ngram) == (4, 1)
    require_sound(root)
    require_sound(root, deep=True, deep_documents=50)


def test_each_text_is_counted_and_marked_documents_stay(sources, questions, tmp_path) -> None:
    root = build_from(sources, tmp_path / "made", **options(questions, mark_only=True))
    records = [*read_records(open_storage(str(root))).values()]
    counts: dict[int, int] = {}
    for record in records:
        for number, count in record.evaluation_texts.items():
            counts[number] = counts.get(number, 0) + count
    assert counts == EXPECTED
    assert sum(record.marked_documents for record in records) == len(HOLDERS)
    assert sum(record.documents_kept for record in records) == len(DOCUMENTS)
    require_sound(root, deep=True, deep_documents=50)


@pytest.mark.parametrize("words", [2, 5, 13])
def test_ids_acquit_no_document_that_holds_an_ngram(questions, words) -> None:
    """The documents have all lengths, long ones before, between and after short ones."""
    tokenizer = load_tokenizer(str(small_vocabulary()), pattern="gpt2")
    engine = choose_engine(tokenizer, engine="auto")
    assert engine.words is not None
    evaluation = evaluation_texts(
        texts_in([str(questions)], ("question",), words, mark_only=False).rule, UNICODE
    )
    draw, plain = random.Random(0), "\n".join(DOCUMENTS)
    texts, holders = [], set[int]()
    for number in range(300):
        text = plain[: int(2 ** draw.uniform(0, 18.5))]
        if draw.random() < 0.3:
            holders.add(number)
            text = f"{draw.choice(QUESTIONS)} {text}"
        texts.append(text)
    array = pa.array(texts, pa.large_string())
    suspects = evaluation.suspects(engine.words, array, engine.encode(array))
    assert not all(suspects)
    assert {*evaluation.find(array, suspects)[0].tolist()} == holders
    assert {*evaluation.find(array)[0].tolist()} == holders


def test_texts_that_change_stop_the_run(questions, tmp_path, sources) -> None:
    own = tmp_path / "evals.jsonl"
    own.write_bytes(questions.read_bytes())
    rule = manifest_of(build_from(sources, tmp_path / "made", **options(own))).spec.exclude
    own.write_text(own.read_text().replace("word0x3", "another"))
    with pytest.raises(SourceError, match="changed since the run began"):
        evaluation_texts.__wrapped__(rule, UNICODE)


def test_a_file_without_texts_is_one_line(sources, tmp_path) -> None:
    (tmp_path / "evals.jsonl").write_text("")
    with pytest.raises(UsageError, match="No text of --exclude-texts has 13 words"):
        build_from(sources, tmp_path / "made", exclude_texts=(str(tmp_path / "evals.jsonl"),))


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"exclude_ngram": 99}, "has 99 words"),
        ({"exclude_column": ("text",)}, r"no column 'text'; .* question\. Pass --exclude-column"),
        ({"exclude_texts": ("nowhere.jsonl",)}, "nowhere.jsonl"),
        ({"exclude_texts": ()}, "--exclude-column goes with --exclude-texts"),
    ],
)
def test_bad_input_is_one_line(sources, questions, tmp_path, others, words) -> None:
    with pytest.raises((UsageError, SourceError, ValueError), match=words):
        build_from(sources, tmp_path / "made", **options(questions, **others))


@pytest.mark.parametrize("others", [{}, {"shuffle": "documents"}], ids=["plain", "shuffled"])
def test_a_published_dataset_gets_a_column_with_the_count(
    sources, questions, tmp_path, others
) -> None:
    root = build_from(sources, tmp_path / "made", **others)
    running.complete(
        plan_annotate, AnnotateConfig(dataset=str(root), **options(questions), workers=1)
    )
    require_sound(root, deep=True, deep_documents=50)
    chosen = {"where": "evaluation_texts == 0", "output": str(tmp_path / "clean")}
    running.complete(plan_subset, SubsetConfig(dataset=str(root), workers=1, **chosen))
    kept = sum(split.documents for split in manifest_of(tmp_path / "clean").splits.values())
    assert kept == len(DOCUMENTS) - len(HOLDERS)
    with pytest.raises(ValueError, match="give one of TABLE, --exclude-texts and --characters"):
        AnnotateConfig(dataset=str(root))
