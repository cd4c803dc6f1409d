"""`sft`: conversations as tokens, with labels of what the assistant says; -100 elsewhere.

A chat template says where that is, inside `{% generation %}`. It is a stranger's program and runs
in Jinja's sandbox. It is told no date, since a resume must give the same text.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import jinja2
import numpy as np
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from streaming_ext.base.errors import UsageError
from streaming_ext.transforms.block import Block, shown, tokens_of
from streaming_ext.transforms.tokenizers import hub_described

IGNORED: Final = -100  # as torch's cross entropy leaves it out
_BEGIN: Final = "\U000f5a1e"  # of private use: no text has them, and no font
_END: Final = "\U000f5a1f"
_SAID: Final = re.compile(f"{_BEGIN}([^{_BEGIN}{_END}]*){_END}")
_MARKS: Final = "_marks_of_generation"  # the template's name for them
# What a template's own arithmetic raises, such as `none + "text"`.
_REFUSALS: Final = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
)


class _Generation(Extension):
    """`{% generation %}`, whose text stands between two marks where the caller asks for them."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja wants it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        self.environment.extend(tells_generation=True)
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
            UsageError: it is no template, or cannot tell what the assistant says.
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
        if not getattr(environment, "tells_generation", False):
            raise UsageError(
                "The chat template does not say which tokens are the assistant's, so a loss would "
                "be taken over the prompts too. (1) Put what the assistant says between "
                "{% generation %} and {% endgeneration %} and pass it as chat_template=; or (2) "
                "pass prompt= and completion= columns."
            )

    def render(
        self, messages: Any, tools: Any = None, **names: Any
    ) -> tuple[str, list[tuple[int, int]]]:
        """The text of a conversation, and which characters of it are the assistant's.

        Args:
            messages: each with a role and a content.
            tools: that the assistant may call, each a dictionary.
            names: that the template may use, such as `bos_token`.

        Raises:
            UsageError: it is no conversation, the template refuses it, leaves out its tools,
                changes what the assistant says, or tells of nothing that the assistant says.
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
        told = json.dumps([messages, tools], ensure_ascii=False, default=str)
        if _BEGIN in told or _END in told:
            raise UsageError("A message holds U+F5A1E or U+F5A1F, which mark what is generated.")
        told_of = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": False,
            **names,
        }
        try:
            plain = self._template.render({**told_of, _MARKS: ("", "")})
            marked = self._template.render({**told_of, _MARKS: (_BEGIN, _END)})
        except _REFUSALS as error:
            raise UsageError(
                f"The chat template refuses a conversation: {error}. It is {messages!r:.500}. "
                "Filter such conversations out, or mend the template."
            ) from error
        if _SAID.sub(r"\1", marked) != plain:
            raise UsageError(
                "The chat template changes what it puts between {% generation %} and "
                "{% endgeneration %}, by a filter such as trim for example: which characters are "
                "the assistant's is then unknown. Put the filter inside of the two. The "
                f"conversation is {messages!r:.500}."
            )
        # Each span before has two marks.
        spans = [
            (said.start() - 2 * number, said.end() - 2 * number - 2)
            for number, said in enumerate(_SAID.finditer(marked))
            if said[1]
        ]
        if not spans:
            raise UsageError(
                "Of a conversation, the chat template marks nothing as the assistant's: a sample "
                "without a label. Filter such conversations out, or mend the template. Its roles "
                f"are {', '.join(repr(message.get('role')) for message in messages)}."
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
        tools = [sample.get("tools") for sample in block.samples]
        rendered = [
            self.template.render(messages, own, **self._special_tokens())
            for messages, own in zip(shown(block.column(self.column)), tools, strict=True)
        ]
        if not rendered:
            return block
        encoded = self.tokenizer([text for text, _ in rendered], add_special_tokens=False)
        masks = []
        for number, (text, spans) in enumerate(rendered):
            mask = np.zeros(len(encoded["input_ids"][number]), bool)
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
        return _labelled(encoded["input_ids"], masks)


def _first_token(encoded: Any, number: int, characters: range) -> int | None:
    """The token of the first character that has one: a tokenizer may drop some."""
    found = (encoded.char_to_token(number, character) for character in characters)
    return next((token for token in found if token is not None), None)


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
        asked, said = (shown(block.column(name)) for name in (self.prompt, self.completion))
        for pair in zip(asked, said, strict=True):
            before, behind = (known(one, add_special_tokens=False)["input_ids"] for one in pair)
            ids.append([*start, *before, *behind, known.eos_token_id])
            masks.append(np.arange(len(ids[-1])) >= len(start) + len(before))
        return _labelled(ids, masks)


def _labelled(ids: Sequence[Sequence[int]], masks: Sequence[np.ndarray[Any, Any]]) -> Block:
    """Samples with labels where the masks say so.

    Raises:
        UsageError: a sample has no label.
    """
    if not ids:
        return Block()
    if not all(mask.any() for mask in masks):
        raise UsageError("A sample has no token to learn: what the assistant says is empty.")
    values, sizes = np.concatenate(ids).astype(np.int64), [len(one) for one in ids]
    labels = np.where(np.concatenate(masks), values, IGNORED)
    return Block(
        {
            "input_ids": tokens_of(values, sizes),
            "attention_mask": tokens_of(np.ones_like(values), sizes),
            "labels": tokens_of(labels, sizes),
        }
    )


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
