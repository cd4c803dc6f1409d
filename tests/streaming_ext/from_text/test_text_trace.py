"""The documents of a step of text, by file and row, and the steps of a document."""

import pytest

from streaming_ext import StreamingTokenLoader
from streaming_ext.base.errors import UsageError
from tests.streaming_ext.from_text.conftest import LENGTH, Open


@pytest.mark.parametrize("settings", [{}, {"holdout_fraction": 0.2, "split": "holdout"}])
def test_each_token_is_explained(open_text: Open, reference, texts, folder, settings) -> None:
    loader = StreamingTokenLoader(open_text(batch_size=2, drop_last=True, **settings))
    explained = 0
    for step, batch in enumerate(loader):
        if step % 7:
            continue
        for trace, row in zip(loader.trace(step), batch["tokens"].tolist(), strict=True):
            told = [reference.eot_id] * LENGTH
            for span in trace.spans:
                file = int(span.source.removeprefix(f"{folder}/").removesuffix(".jsonl"))
                ids = [*reference.encode(texts[file][span.row]), reference.eot_id]
                segment = ids[span.first : span.first + span.tokens]
                assert len(segment) == span.tokens > 0
                told[span.position : span.position + span.tokens] = segment
                explained += span.tokens
            assert told == row
    assert explained > 200


@pytest.mark.parametrize("settings", [{}, {"min_part_size": "1gb"}])
def test_the_steps_of_a_document(open_text: Open, texts, reference, settings) -> None:
    loader = StreamingTokenLoader(open_text(batch_size=2, **settings))
    seen = 0
    for file, row in ((0, 0), (0, 57), (1, 29), (2, 60), (2, 109)):
        visits = loader.trace_document(f"{file}.jsonl", row)
        for visit in visits:
            assert visit.span in [
                span for trace in loader.trace(visit.step) for span in trace.spans
                if trace.sequence == visit.sequence
            ]  # fmt: skip
            assert (visit.span.source[-7:], visit.span.row) == (f"{file}.jsonl", row)
        tokens = sum(visit.span.tokens for visit in visits)
        seen += tokens == len(reference.encode(texts[file][row])) + 1
    assert seen >= 4  # a row may be left out at the end of the epoch
    with pytest.raises(UsageError, match="No document of split 'train' comes from row 30"):
        loader.trace_document("1.jsonl", 30)
