"""`sft`: tokens with labels of what the assistant says, or of a completion; -100 elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from streaming_ext.errors import UsageError
from streaming_ext.transforms.block import Block, Ragged, Sample
from streaming_ext.transforms.flow import Flow, Opening, Source, State, inner
from streaming_ext.transforms.sft.chat_template import ChatTemplate
from streaming_ext.transforms.steps.parallel import Crew, ParallelFlow
from streaming_ext.transforms.tokens.tokenizers import hub_described

IGNORED: Final = -100  # as torch's cross entropy leaves it out
_UNIT: Final = 64  # samples at once


@dataclass(frozen=True, slots=True)
class Conversations:
    """Labels of what the assistant says in a column of messages.

    Attributes:
        tokenizer: of transformers, a fast one.
        template: of the chat.
        column: of the messages; a column `tools` beside it holds what the assistant may call.
    """

    tokenizer: Any
    template: ChatTemplate
    column: str

    @property
    def described(self) -> str:
        """What a state knows it by."""
        tokenizer = hub_described(self.tokenizer, self._special_tokens())
        return f"{self.column}, {tokenizer}, template {self.template.described}"

    def _special_tokens(self) -> dict[str, str]:
        known = self.tokenizer.special_tokens_map
        return {name: value for name, value in known.items() if isinstance(value, str)}

    def __call__(self, block: Block) -> Block:
        """The tokens of some samples.

        Raises:
            UsageError: one has no messages, or nothing that the assistant says.
        """
        names = self._special_tokens()
        if not len(block):
            return Block(samples=[])
        rendered = [
            self.template.render(_field(sample, self.column), sample.get("tools"), **names)
            for sample in block.samples
        ]
        encoded = self.tokenizer([text for text, _ in rendered], add_special_tokens=False)
        ids = encoded["input_ids"]
        masks = []
        for number, (text, spans) in enumerate(rendered):
            mask = np.zeros(len(ids[number]), bool)
            for begin, end in spans:
                said = range(begin, end)
                first, last = (_first_token(encoded, number, one) for one in (said, said[::-1]))
                if first is None or last is None:
                    raise UsageError(
                        f"The tokenizer has no token for {text[begin:end]!r}, which the assistant "
                        "says. Filter such conversations out, or mend the template."
                    )
                mask[first : last + 1] = True
            masks.append(mask)
        return _block(ids, masks)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Labels of a completion, behind a prompt; an end-of-text behind it is one too.

    Attributes:
        tokenizer: of transformers.
        prompt, completion: the columns.
    """

    tokenizer: Any
    prompt: str
    completion: str

    @property
    def described(self) -> str:
        """What a state knows it by."""
        tokenizer = hub_described(self.tokenizer, {"eos": self.tokenizer.eos_token_id})
        return f"{self.prompt}, {self.completion}, {tokenizer}"

    def __call__(self, block: Block) -> Block:
        """The tokens of some samples.

        Raises:
            UsageError: one lacks a column.
        """
        known, ids, masks = self.tokenizer, [], []
        if known.eos_token_id is None:
            raise UsageError("The tokenizer has no eos_token: where a completion ends is not told.")
        begin = known("a")["input_ids"][:1]
        start = begin if begin == [known.bos_token_id] else []
        for sample in block.samples:
            before, behind = (
                known(_field(sample, name), add_special_tokens=False)["input_ids"]
                for name in (self.prompt, self.completion)
            )
            ids.append([*start, *before, *behind, known.eos_token_id])
            mask = np.ones(len(ids[-1]), bool)
            mask[: len(start) + len(before)] = False
            masks.append(mask)
        return _block(ids, masks)


def _first_token(encoded: Any, number: int, characters: range) -> int | None:
    """The token of the first character that has one: a tokenizer may drop some."""
    found = (encoded.char_to_token(number, character) for character in characters)
    return next((token for token in found if token is not None), None)


def _field(sample: Sample, name: str) -> Any:
    if name not in sample:
        raise UsageError(f"A sample has no column {name!r}; it has {', '.join(map(repr, sample))}.")
    return sample[name]


def _block(ids: Sequence[Sequence[int]], masks: Sequence[np.ndarray[Any, Any]]) -> Block:
    """Samples with labels where the masks say so.

    Raises:
        UsageError: a sample has no label.
    """
    if not ids:
        return Block(samples=[])
    if not all(mask.any() for mask in masks):
        raise UsageError("A sample has no token to learn: what the assistant says is empty.")
    tokens = Ragged.of_lengths(np.concatenate(ids).astype(np.int64), [len(one) for one in ids])
    labels = np.where(np.concatenate(masks), tokens.values, IGNORED)
    return Block({
        "input_ids": tokens,
        "attention_mask": Ragged(np.ones(len(labels), np.int64), tokens.offsets),
        "labels": Ragged(labels, tokens.offsets),
    })  # fmt: skip


def labelling(
    tokenizer: Any, template: str | None, messages: str, pair: tuple[str, str] | None
) -> Conversations | Pairs:
    """What makes samples of conversations, or of pairs of a prompt and a completion.

    Raises:
        UsageError: the tokenizer is no fast one of transformers, or the template cannot tell what
            the assistant says.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise UsageError(
            "sft() needs a fast tokenizer of transformers, which tells where in a text each token "
            f"is from; got {type(tokenizer).__name__}. Load it by AutoTokenizer.from_pretrained()."
        )
    if pair is not None:
        return Pairs(tokenizer, *pair)
    source = template if template is not None else tokenizer.chat_template
    if not isinstance(source, str):
        raise UsageError("The tokenizer has no chat template. Pass chat_template=.")
    return Conversations(tokenizer, ChatTemplate(source), messages)


def open_labelled(
    source: Source,
    opening: Opening,
    state: State | None,
    *,
    function: Conversations | Pairs,
    workers: int,
) -> Flow:
    """`sft`."""
    crew = Crew(executor_type="thread", workers=workers, unit=_UNIT, cut=False)
    opened = partial(source.open, opening.asking(None), inner(state))
    return ParallelFlow(opened, function, crew, state)
