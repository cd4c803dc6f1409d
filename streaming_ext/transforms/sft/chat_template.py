"""A chat template, and where in its text the assistant speaks: inside `{% generation %}`.

The template is a stranger's program: it runs in Jinja's sandbox. It is told no date, since a resume
must give the same text.
"""

import hashlib
import json
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from streaming_ext.errors import UsageError

_BEGIN: Final = "\U000f5a1e"  # of private use: no text has them, and no font
_END: Final = "\U000f5a1f"
# What a template's own arithmetic raises, such as `none + "text"`.
_REFUSALS: Final = (
    jinja2.TemplateError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError,
)  # fmt: skip


class _Generation(Extension):
    """`{% generation %}`, whose text is put between two marks."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja wants it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        self.environment.extend(tells_generation=True)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    @staticmethod
    def _marked(caller: Any) -> str:
        return f"{_BEGIN}{caller()}{_END}"


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
        if not getattr(environment, "tells_generation", False):
            raise UsageError(
                "The chat template does not say which tokens are the assistant's, so a loss would "
                "be taken over the prompts too. (1) Put what the assistant says between "
                "{% generation %} and {% endgeneration %} and pass it as chat_template=; or (2) "
                "pass prompt= and completion= columns."
            )

    def render(self, messages: Any, **names: Any) -> tuple[str, list[tuple[int, int]]]:
        """The text of a conversation, and which characters of it are the assistant's.

        Args:
            messages: each with a role and a content.
            names: that the template may use, such as `bos_token`.

        Raises:
            UsageError: it is no conversation, the template refuses it, or tells of nothing that
                the assistant says.
        """
        if not isinstance(messages, list | tuple) or not all(isinstance(m, dict) for m in messages):
            raise UsageError(
                f"A conversation must be a list of messages, each a dictionary, got {messages!r}."
            )
        told = json.dumps(messages, ensure_ascii=False, default=str)
        if any(mark in told for mark in (_BEGIN, _END)):
            raise UsageError("A message holds U+F5A1E or U+F5A1F, which mark what is generated.")
        try:
            marked = self._template.render(messages=messages, add_generation_prompt=False, **names)
        except _REFUSALS as error:
            raise UsageError(
                f"The chat template refuses a conversation: {error}. It is {messages!r:.500}. "
                "Filter such conversations out, or mend the template."
            ) from error
        pieces, spans, length = [], [], 0
        for number, piece in enumerate(marked.split(_BEGIN)):
            said, _, others = piece.partition(_END) if number else ("", "", piece)
            if said:
                spans.append((length, length + len(said)))
            pieces += [said, others]
            length += len(said) + len(others)
        if not spans:
            raise UsageError(
                "Of a conversation, the chat template marks nothing as the assistant's: a sample "
                "without a label. Filter such conversations out, or mend the template. Its roles "
                f"are {', '.join(repr(message.get('role')) for message in messages)}."
            )
        return "".join(pieces), spans


def _to_json(value: Any, **settings: Any) -> str:
    """JSON as templates expect it: without HTML's escapes."""
    return json.dumps(value, **{"ensure_ascii": False, **settings})


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
