"""`sft`: conversations as tokens, with labels for what the assistant says and -100 elsewhere.

A chat template marks what the assistant says by `{% generation %}`. Templates are untrusted and run
in Jinja's sandbox, without a date, because a resume must give the same text.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import Any, Final, TypeAlias

import jinja2
import numpy as np
import numpy.typing as npt
from jinja2 import meta
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from streaming_ext.base.errors import UsageError
from streaming_ext.reading.boundaries import IGNORED
from streaming_ext.transforms.block import Block, tokens_of, values_of
from streaming_ext.transforms.tokenizers import hub_described, without_ends

_MARK: Final = "\U000f5a1e"  # for private use: no text has it, and no font
# A template passes what it generates to a function, which adds marks around it or returns it.
_MARKED: Final = "_marked_as_generated"
_TAG: Final = re.compile(r"({%[-+]?\s*)((?:end)?generation)\b")
_CALLS: Final = {"generation": f"call {_MARKED}()", "endgeneration": "endcall"}
# The text of a conversation, and the spans of its characters that are the assistant's.
Rendered: TypeAlias = tuple[str, list[tuple[int, int]]]
_FILTER: Final = "Filter such conversations out, or correct the template."


@cache
def compiled(source: str) -> tuple[jinja2.Template, bool]:
    """Compile a chat template, and find out whether it reads `tools`.

    Raises:
        UsageError: the source is not a template, or does not mark what the assistant says.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = _refuse
    try:
        calling = _TAG.sub(lambda tag: tag[1] + _CALLS[tag[2]], source)
        template = environment.from_string(calling)
        names = meta.find_undeclared_variables(environment.parse(calling))
    except jinja2.TemplateError as error:
        raise UsageError(f"The chat template is no Jinja template: {error}.") from error
    if _MARKED not in names:
        raise UsageError(
            "The chat template does not say which tokens are the assistant's, so a loss would "
            "be taken over the prompts too. (1) Put what the assistant says between "
            "{% generation %} and {% endgeneration %} and pass it as chat_template=; or (2) "
            "pass prompt= and completion= columns."
        )
    return template, "tools" in names


def rendered(messages: Any, tools: Any, *, source: str, names: Mapping[str, Any]) -> Rendered:
    """Render a conversation, and find the spans of its characters that are the assistant's.

    Args:
        messages: the messages, each with a role and a content.
        tools: the tools that the assistant may call, each a dictionary.
        source: the chat template.
        names: further names that the template may use, such as `bos_token`.

    Raises:
        UsageError: the messages are no conversation; or the template refuses them, ignores their
            tools, changes what the assistant says, or marks nothing.
    """
    template, reads_tools = compiled(source)
    for value, what in ((messages, "A conversation"), (tools or [], "Column 'tools'")):
        if not isinstance(value, list | tuple) or not all(isinstance(one, dict) for one in value):
            raise UsageError(f"{what} must be a list of dictionaries, got {value!r:.500}.")
    if tools and not reads_tools:
        raise UsageError(
            "A sample has tools, and the chat template does not use `tools`: training would "
            "not see them. Pass a chat_template= that does, or remove the column by map()."
        )
    given = {"messages": messages, "tools": tools, "documents": None, **names}
    render = partial(template.render, given, add_generation_prompt=False)
    try:
        plain = render(**{_MARKED: lambda caller: caller()})
        plain.encode()  # a tokenizer takes no half of a surrogate pair
        # Chunks lie around and within what is generated, in turns.
        chunks = render(**{_MARKED: lambda caller: f"{_MARK}{caller()}{_MARK}"}).split(_MARK)
    except Exception as error:  # a template's arithmetic may raise anything
        raise UsageError(
            f"The chat template refuses a conversation: {error}. It is {messages!r:.500}. {_FILTER}"
        ) from error
    if "".join(chunks) != plain:  # or a text holds the mark
        raise UsageError(
            "The chat template changes what it puts between {% generation %} and "
            "{% endgeneration %}, for example by a filter such as trim, so the assistant's "
            "characters are unknown. Put the filter inside of the two. The conversation is "
            f"{messages!r:.500}."
        )
    within = [*pairwise(accumulate(map(len, chunks)))][::2]
    spans = [(first, end) for first, end in within if first < end]
    if not spans:
        raise UsageError(
            "The chat template marks nothing of a conversation as the assistant's. It is "
            f"{messages!r:.500}. {_FILTER}"
        )
    return plain, spans


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def label_function(
    tokenizer: Any, template: str | None, messages: str, prompt: str | None, completion: str | None
) -> tuple[Callable[[Block], Block], str]:
    """Make a function that labels conversations, or prompts and completions; name it for states.

    Raises:
        UsageError: the tokenizer is not a fast one of transformers, or the template does not mark
            what the assistant says.
    """
    pair = [column for column in (prompt, completion) if column is not None]
    if len(pair) == 1:
        raise UsageError("`completion` must be given with `prompt`, and only with it.")
    if not getattr(tokenizer, "is_fast", False):
        raise UsageError(
            "sft() needs a fast tokenizer of transformers, which says where in a text each token "
            f"is from; got {type(tokenizer).__name__}. Load it by AutoTokenizer.from_pretrained()."
        )
    if pair:
        if tokenizer.eos_token_id is None:
            raise UsageError("The tokenizer has no eos_token to end a completion with.")
        known = hub_described(tokenizer, {"eos": tokenizer.eos_token_id})
        pairs = partial(_pairs, tokenizer=tokenizer, columns=pair)
        return pairs, f"{prompt}, {completion}, {known}"
    source = template or tokenizer.chat_template
    if not isinstance(source, str):
        raise UsageError("The tokenizer has no chat template. Pass chat_template=.")
    special = {k: v for k, v in tokenizer.special_tokens_map.items() if isinstance(v, str)}
    compiled(source)
    render = partial(rendered, source=source, names=special)
    talks = partial(_conversations, tokenizer=tokenizer, render=render, column=messages)
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    return talks, f"{messages}, {hub_described(tokenizer, special)}, template {digest}"


def _labelled(ids: Sequence[Sequence[int]], masks: Sequence[npt.NDArray[np.bool_]]) -> Block:
    """Make samples from ids, and from the masks of the ids that are labels."""
    values, sizes = np.concatenate(ids).astype(np.int64), [*map(len, ids)]
    labels = np.where(np.concatenate(masks), values, IGNORED)
    columns = {"input_ids": values, "attention_mask": np.ones_like(values), "labels": labels}
    return Block(columns={name: tokens_of(each, sizes) for name, each in columns.items()})


def _pairs(block: Block, *, tokenizer: Any, columns: Sequence[str]) -> Block:
    """Label a completion after a prompt; the end-of-text after it is a label too."""
    begin, ids, masks = tokenizer("a")["input_ids"][:1], [], []
    start = begin if begin == [tokenizer.bos_token_id] else []
    for name in columns:
        if any(value is None for value in values_of(block.column(name))):
            raise UsageError(f"Column {name!r} of a sample is None. Filter such samples out.")
    for pair in zip(*(block.texts(name).to_pylist() for name in columns), strict=True):
        before, after = (without_ends(tokenizer, text) for text in pair)
        ids.append([*start, *before, *after, tokenizer.eos_token_id])
        masks.append(np.arange(len(ids[-1])) >= len(start) + len(before))
    return _labelled(ids, masks)


def _conversations(
    block: Block, *, tokenizer: Any, render: Callable[..., Rendered], column: str
) -> Block:
    """Label the assistant's text in a column of messages, with the tools of a column `tools`."""
    tools = [sample.get("tools") for sample in block.samples]
    talks = [*map(render, values_of(block.column(column)), tools)]
    texts = [text for text, _ in talks]
    encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    masks = []
    for (text, spans), offsets in zip(talks, encoded["offset_mapping"], strict=True):
        firsts, ends = np.array(offsets).T  # the characters of each token: (tokens,)
        mask = np.zeros(len(offsets), bool)
        for first, end in spans:
            said = np.flatnonzero((firsts < end) & (ends > first))
            if not len(said):
                raise UsageError(
                    f"The tokenizer has no token for {text[first:end]!r}, which the assistant "
                    f"says. {_FILTER}"
                )
            mask[said[0] : said[-1] + 1] = True
        masks.append(mask)
    return _labelled(encoded["input_ids"], masks)
