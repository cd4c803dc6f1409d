"""`sft`: conversations as tokens, with labels of what the assistant says; -100 elsewhere.

A chat template marks it by `{% generation %}`. Templates are untrusted and run in Jinja's sandbox,
without a date, because a resume must give the same text.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jinja2
import numpy as np
import numpy.typing as npt
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from streaming_ext.base.errors import UsageError
from streaming_ext.transforms.block import Block, shown, tokens_of
from streaming_ext.transforms.tokenizers import hub_described

IGNORED: Final = -100  # which torch's cross entropy leaves out
_BEGIN: Final = "\U000f5a1e"  # of private use: no text has them, and no font
_END: Final = "\U000f5a1f"
_SAID: Final = re.compile(f"{_BEGIN}([^{_BEGIN}{_END}]*){_END}")
_MARKS: Final = "_marks_of_generation"  # the template's name for them
_FILTER: Final = "Filter such conversations out, or correct the template."


class _Generation(Extension):
    """`{% generation %}`, whose text stands between two marks if the caller passes them."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja wants it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        self.environment.extend(has_generation=True)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks: list[nodes.Expr] = [nodes.Name(_MARKS, "load")]
        return nodes.CallBlock(self.call_method("_marked", marks), [], [], body).set_lineno(line)

    @staticmethod
    def _marked(marks: tuple[str, str], caller: Any) -> str:
        return f"{marks[0]}{caller()}{marks[1]}"


class ChatTemplate:
    """Renders conversations."""

    def __init__(self, source: str) -> None:
        """Compile a template.

        Raises:
            UsageError: it is no template, or does not mark what the assistant says.
        """
        self.described = hashlib.sha256(source.encode()).hexdigest()[:12]
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise UsageError(f"The chat template is no Jinja template: {error}.") from error
        self._reads_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))
        if not getattr(environment, "has_generation", False):
            raise UsageError(
                "The chat template does not say which tokens are the assistant's, so a loss would "
                "be taken over the prompts too. (1) Put what the assistant says between "
                "{% generation %} and {% endgeneration %} and pass it as chat_template=; or (2) "
                "pass prompt= and completion= columns."
            )

    def render(
        self, messages: Any, tools: Any = None, **names: Any
    ) -> tuple[str, list[tuple[int, int]]]:
        """The text of a conversation, and which spans of its characters are the assistant's.

        Args:
            messages: each with a role and a content.
            tools: that the assistant may call, each a dictionary.
            names: that the template may use, such as `bos_token`.

        Raises:
            UsageError: it is no conversation, the template refuses it, ignores its tools, changes
                what the assistant says, or marks nothing.
        """
        if not _dictionaries(messages):
            raise UsageError(
                f"A conversation must be a list of messages, each a dictionary, got {messages!r}."
            )
        if tools is not None and not _dictionaries(tools):
            raise UsageError(
                f"Column 'tools' must hold a list of dictionaries, or None, got {tools!r:.500}. "
                "Parse or rename it by map()."
            )
        if tools and not self._reads_tools:
            raise UsageError(
                "A sample has tools, and the chat template does not use `tools`: training would "
                "not see them. Pass a chat_template= that does, or remove the column by map()."
            )
        text = json.dumps([messages, tools], ensure_ascii=False, default=str)
        if _BEGIN in text or _END in text:
            raise UsageError("A message holds U+F5A1E or U+F5A1F, which mark what is generated.")
        known = {"messages": messages, "tools": tools, "documents": None}
        known |= {"add_generation_prompt": False, **names}
        try:
            plain = self._template.render({**known, _MARKS: ("", "")})
            marked = self._template.render({**known, _MARKS: (_BEGIN, _END)})
        except Exception as error:  # a template's arithmetic may raise anything
            raise UsageError(
                f"The chat template refuses a conversation: {error}. It is {messages!r:.500}. "
                f"{_FILTER}"
            ) from error
        if _SAID.sub(r"\1", marked) != plain:
            raise UsageError(
                "The chat template changes what it puts between {% generation %} and "
                "{% endgeneration %}, for example by a filter such as trim, so the assistant's "
                "characters are unknown. Put the filter inside of the two. The conversation is "
                f"{messages!r:.500}."
            )
        # Each span before has two marks.
        spans = [
            (said.start() - 2 * number, said.end() - 2 * number - 2)
            for number, said in enumerate(_SAID.finditer(marked))
            if said[1]
        ]
        if not spans:
            raise UsageError(
                f"The chat template marks nothing of a conversation as the assistant's. {_FILTER} "
                f"Its roles are {', '.join(repr(message.get('role')) for message in messages)}."
            )
        return plain, spans


def _dictionaries(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, dict) for one in value)


def _to_json(value: Any, **settings: Any) -> str:
    """JSON as templates expect it: without HTML's escapes."""
    return json.dumps(value, **{"ensure_ascii": False, **settings})


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


@dataclass(frozen=True, slots=True)
class Labelling:
    """Makes tokens and labels of samples.

    Attributes:
        described: by what a state recognizes it.
        encode: token ids of the samples of a block, and which ids are labels.
    """

    described: str
    encode: Callable[[Block], tuple[Sequence[Sequence[int]], Sequence[npt.NDArray[np.bool_]]]]

    def __call__(self, block: Block) -> Block:
        """The samples as `input_ids`, `attention_mask` and `labels`.

        Raises:
            UsageError: a sample lacks a column, or has no label.
        """
        if not len(block):
            return Block()
        ids, masks = self.encode(block)
        if not all(mask.any() for mask in masks):
            raise UsageError("A sample has no token to learn: what the assistant says is empty.")
        values, sizes = np.concatenate(ids).astype(np.int64), [*map(len, ids)]
        labels = np.where(np.concatenate(masks), values, IGNORED)
        columns = {"input_ids": values, "attention_mask": np.ones_like(values), "labels": labels}
        return Block(columns={name: tokens_of(each, sizes) for name, each in columns.items()})


def labelling(
    tokenizer: Any, template: str | None, messages: str, prompt: str | None, completion: str | None
) -> Labelling:
    """Labels of conversations, or of pairs of a prompt and a completion.

    Raises:
        UsageError: the tokenizer is no fast one of transformers, or the template does not mark what
            the assistant says.
    """
    if (prompt is None) != (completion is None):
        raise UsageError("`completion` must be given with `prompt`, and only with it.")
    if not getattr(tokenizer, "is_fast", False):
        raise UsageError(
            "sft() needs a fast tokenizer of transformers, which says where in a text each token "
            f"is from; got {type(tokenizer).__name__}. Load it by AutoTokenizer.from_pretrained()."
        )
    if prompt is not None and completion is not None:
        described = hub_described(tokenizer, {"eos": tokenizer.eos_token_id})
        return Labelling(
            f"{prompt}, {completion}, {described}", _Pairs(tokenizer, prompt, completion)
        )
    source = template if template is not None else tokenizer.chat_template
    if not isinstance(source, str):
        raise UsageError("The tokenizer has no chat template. Pass chat_template=.")
    conversations = _Conversations(tokenizer, ChatTemplate(source), messages)
    described = hub_described(tokenizer, conversations.special_tokens)
    described = f"{messages}, {described}, template {conversations.template.described}"
    return Labelling(described, conversations)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """A completion after a prompt; the end-of-text after it is a label too."""

    tokenizer: Any
    prompt: str
    completion: str

    def __call__(self, block: Block) -> tuple[list[list[int]], list[npt.NDArray[np.bool_]]]:
        known, ids, masks = self.tokenizer, [], []
        if known.eos_token_id is None:
            raise UsageError("The tokenizer has no eos_token to end a completion with.")
        begin = known("a")["input_ids"][:1]
        start = begin if begin == [known.bos_token_id] else []
        columns = (shown(block.column(name)) for name in (self.prompt, self.completion))
        for pair in zip(*columns, strict=True):
            before, after = (known(one, add_special_tokens=False)["input_ids"] for one in pair)
            ids.append([*start, *before, *after, known.eos_token_id])
            masks.append(np.arange(len(ids[-1])) >= len(start) + len(before))
        return ids, masks


@dataclass(frozen=True, slots=True)
class _Conversations:
    """What the assistant says in a column of messages; a column `tools` holds what it may call."""

    tokenizer: Any
    template: ChatTemplate
    column: str

    @property
    def special_tokens(self) -> dict[str, str]:
        known = self.tokenizer.special_tokens_map
        return {name: value for name, value in known.items() if isinstance(value, str)}

    def __call__(self, block: Block) -> tuple[list[list[int]], list[npt.NDArray[np.bool_]]]:
        tools = [sample.get("tools") for sample in block.samples]
        rendered = [
            self.template.render(messages, own, **self.special_tokens)
            for messages, own in zip(shown(block.column(self.column)), tools, strict=True)
        ]
        encoded = self.tokenizer([text for text, _ in rendered], add_special_tokens=False)
        masks = []
        for number, (text, spans) in enumerate(rendered):
            mask = np.zeros(len(encoded["input_ids"][number]), bool)
            for begin, end in spans:
                said = range(begin, end)
                first, last = (_first_token(encoded, number, each) for each in (said, said[::-1]))
                if first is None or last is None:
                    raise UsageError(
                        f"The tokenizer has no token for {text[begin:end]!r}, which the assistant "
                        f"says. {_FILTER}"
                    )
                mask[first : last + 1] = True
            masks.append(mask)
        return encoded["input_ids"], masks


def _first_token(encoded: Any, number: int, characters: range) -> int | None:
    """The token of the first character that has one: a tokenizer may drop some."""
    found = (encoded.char_to_token(number, character) for character in characters)
    return next((token for token in found if token is not None), None)
