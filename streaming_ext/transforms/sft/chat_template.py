"""A chat template, and where in its text the assistant speaks: inside `{% generation %}`.

The template is a stranger's program: it runs in Jinja's sandbox. It is told no date, since a resume
must give the same text.
"""

import hashlib
import json
from typing import Any, Final

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from streaming_ext.errors import UsageError

_BEGIN: Final = "\U000f5a1e"  # of private use: no text has them, and no font
_END: Final = "\U000f5a1f"
_MARKS: Final = "_marks_of_generation"  # the template's name for them
# What a template's own arithmetic raises, such as `none + "text"`.
_REFUSALS: Final = (
    jinja2.TemplateError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError,
)  # fmt: skip


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
        if not isinstance(messages, list | tuple) or not all(isinstance(m, dict) for m in messages):
            raise UsageError(
                f"A conversation must be a list of messages, each a dictionary, got {messages!r}."
            )
        if tools is not None and not (
            isinstance(tools, list | tuple) and all(isinstance(tool, dict) for tool in tools)
        ):
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
        if any(mark in told for mark in (_BEGIN, _END)):
            raise UsageError("A message holds U+F5A1E or U+F5A1F, which mark what is generated.")
        told_of = {"messages": messages, "tools": tools, "documents": None,
                   "add_generation_prompt": False, **names}  # fmt: skip
        try:
            plain = self._template.render(told_of, **{_MARKS: ("", "")})
            marked = self._template.render(told_of, **{_MARKS: (_BEGIN, _END)})
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
        if "".join(pieces) != plain:
            raise UsageError(
                "The chat template changes what it puts between {% generation %} and "
                "{% endgeneration %}, by a filter such as trim for example: which characters are "
                "the assistant's is then unknown. Put the filter inside of the two. The "
                f"conversation is {messages!r:.500}."
            )
        if not spans:
            raise UsageError(
                "Of a conversation, the chat template marks nothing as the assistant's: a sample "
                "without a label. Filter such conversations out, or mend the template. Its roles "
                f"are {', '.join(repr(message.get('role')) for message in messages)}."
            )
        return plain, spans


def _to_json(value: Any, **settings: Any) -> str:
    """JSON as templates expect it: without HTML's escapes."""
    return json.dumps(value, **{"ensure_ascii": False, **settings})


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
