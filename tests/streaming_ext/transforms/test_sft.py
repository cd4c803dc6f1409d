"""`sft`: labels of the assistant's words, as transformers has them, and never of a prompt."""

from typing import Any

import pytest

from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.transforms import CheckpointableDataset
from tests.streaming_ext.transforms.chains import require_resumes, samples_of

Chain = CheckpointableDataset
TEMPLATE = """{% for message in messages %}
{{ message.role }}:
{% if message.role == 'assistant' %}
{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}

{% else %}
{{ message.content | trim }}

{% endif %}
{% endfor %}"""
WITHOUT = "{% for message in messages %}{{ message.content }}{% endfor %}"


def talk(*contents: str) -> dict[str, Any]:
    roles = ["user", "assistant"] * len(contents)
    return {
        "messages": [
            {"role": role, "content": content}
            for role, content in zip(roles, contents, strict=False)
        ]
    }


TALKS = [
    talk("Hello?", "Hello world!"),
    talk("One and two", "is 3", " Really? ", "Yes: 你好 🙂\n\nOf course."),
    *(talk(f"Question {n}", "word " * n) for n in range(1, 9)),
]


def test_the_labels_of_transformers(hub_tokenizer) -> None:
    found = samples_of(Chain.from_sequence(TALKS).sft(hub_tokenizer, chat_template=TEMPLATE))
    assert len(found) == len(TALKS)
    for sample, conversation in zip(found, TALKS, strict=True):
        expected = hub_tokenizer.apply_chat_template(
            conversation["messages"],
            chat_template=TEMPLATE,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        assert sample["input_ids"] == expected["input_ids"]
        assert sample["labels"] == [
            token if said else -100
            for token, said in zip(expected["input_ids"], expected["assistant_masks"], strict=True)
        ]
        assert 0 < sum(label != -100 for label in sample["labels"]) < len(sample["labels"])


def test_packed_padded_and_resumed(hub_tokenizer) -> None:
    def make() -> Chain:
        return (
            Chain.from_sequence(TALKS)
            .sft(hub_tokenizer, chat_template=TEMPLATE)
            .pack_chunk(64, ("input_ids", "labels"))
            .pad({"input_ids": 0, "labels": -100}, 64)
            .batch(2)
        )

    batches = require_resumes(make, some=3)
    ids = [row for batch in batches for row in batch["input_ids"]]
    labels = [row for batch in batches for row in batch["labels"]]
    assert {len(row) for row in ids + labels} == {64}
    assert all(
        b in {a, -100} for x, y in zip(ids, labels, strict=True) for a, b in zip(x, y, strict=True)
    )


def test_pairs(hub_tokenizer) -> None:
    pairs = [{"q": "Two and two?", "a": "Four"}, {"q": "", "a": ""}]
    found = samples_of(Chain.from_sequence(pairs).sft(hub_tokenizer, prompt="q", completion="a"))
    known = hub_tokenizer
    question, answer = (
        known(pairs[0][name], add_special_tokens=False)["input_ids"] for name in ("q", "a")
    )
    assert found[0]["input_ids"] == [*question, *answer, known.eos_token_id]
    assert found[0]["labels"] == [-100] * len(question) + [*answer, known.eos_token_id]
    assert found[1]["labels"] == [known.eos_token_id]


@pytest.mark.parametrize(
    ("answer", "message"), [(None, "'a' of a sample is None"), (4, "'a' holds no text: .*int")]
)
def test_a_completion_that_is_no_text_is_refused(hub_tokenizer, answer, message) -> None:
    pairs = Chain.from_sequence([{"q": "Two and two?", "a": answer}])
    with pytest.raises(UsageError, match=message):
        list(pairs.sft(hub_tokenizer, prompt="q", completion="a"))


@pytest.mark.parametrize(
    "template",
    [
        TEMPLATE.replace("{{ eos_token }}", "{{ '\\n' }}"),
        TEMPLATE.replace(
            "{{ message.content }}{{ eos_token }}", "{{ '\\n' }}{{ message.content }}"
        ),
    ],
)
def test_labels_end_where_a_tokenizer_drops_characters(template) -> None:
    """Labels cover words alone: no token holds the line feed at an end of the assistant's words."""
    dataset = Chain.from_sequence([talk("one", "two", "three four", "five"), talk("one", "two")])
    found = samples_of(dataset.sft(tokenizer_of_words(), chat_template=template))
    words = [[n for n in sample["labels"] if n != -100] for sample in found]
    assert words == [[2, 5], [2]]


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
WITH_TOOLS = "{% if tools is not none %}{{ tools | tojson }}{% endif %}" + TEMPLATE


def test_tools_reach_the_template(hub_tokenizer) -> None:
    talks = [talk("Two and two?", "add") | {"tools": tools} for tools in (TOOLS, [], None)]
    found = samples_of(Chain.from_sequence(talks).sft(hub_tokenizer, chat_template=WITH_TOOLS))
    for sample, conversation in zip(found, talks, strict=True):
        assert (
            sample["input_ids"]
            == hub_tokenizer.apply_chat_template(
                conversation["messages"],
                tools=conversation["tools"],
                chat_template=WITH_TOOLS,
                return_dict=True,
            )["input_ids"]
        )
    assert "add" in hub_tokenizer.decode(found[0]["input_ids"][:-9])


def test_what_the_assistant_says_without_a_token_is_refused() -> None:
    template = TEMPLATE.replace("{{ eos_token }}", "{{ '\\n' }}")
    dataset = Chain.from_sequence([talk("one", "two", "three", " ")])
    with pytest.raises(UsageError, match=r"no token for ' \\n', which the assistant says"):
        list(dataset.sft(tokenizer_of_words(), chat_template=template))


def tokenizer_of_words() -> Any:
    """Return a transformers tokenizer that drops spaces and line feeds; "one" is 1, and so on."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = ["other", "one", "two", "three", "four", "five"]
    model = tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, "other")
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend)


def test_a_state_of_another_template_or_tokenizer_is_refused(hub_tokenizer) -> None:
    dataset = Chain.from_sequence(TALKS)
    state = dataset.sft(hub_tokenizer, chat_template=TEMPLATE).iter().state_dict()
    for other in (
        dataset.sft(hub_tokenizer, chat_template=TEMPLATE + " "),
        dataset.sft(tokenizer_of_words(), chat_template=TEMPLATE),
        dataset.sft(hub_tokenizer, prompt="q", completion="a"),
    ):
        with pytest.raises(ConfigMismatchError, match="this one is"):
            other.iter(state)
    dataset.sft(hub_tokenizer, chat_template=TEMPLATE).iter(state).close()


GENERATION = ("{% generation %}", "{% endgeneration %}")
UNENDED = TEMPLATE.replace("{{ eos_token }}", "")
TALK = talk("Hello?", " Hello world! ")
WORDS_ADDED = TEMPLATE.replace("{{ message.content }}", "{{ message.content + '' }}")


def around(begin: str, end: str) -> str:
    """Return a template that changes the generated text in training, not in unmarked inference."""
    return UNENDED.replace(GENERATION[0], begin + GENERATION[0]).replace(
        GENERATION[1], GENERATION[1] + end
    )


@pytest.mark.parametrize(
    ("sample", "template", "message"),
    [
        (TALK, around("{% filter trim %}", "{% endfilter %}"), "changes what it puts between"),
        (TALK, around("{% set said %}", "{% endset %}{{ said | trim }}"), "changes what it puts"),
        (TALK | {"tools": TOOLS}, TEMPLATE, "the chat template does not use `tools`"),
        (TALK | {"tools": "[]"}, WITH_TOOLS, r"must be a list of dictionaries, got '\[\]'"),
        (TALK | {"tools": ["add"]}, WITH_TOOLS, "must be a list of dictionaries"),
        (
            {"messages": [{"role": "assistant", "content": None}]},
            WORDS_ADDED,
            "refuses a conversation: .*NoneType",
        ),
        ({"messages": ["Hello?"]}, TEMPLATE, "conversation must be a list"),
        ({"messages": None}, TEMPLATE, "conversation must be a list"),
        ({"text": "Hello"}, TEMPLATE, "no column 'messages'; it has 'text'"),
        (TALK, TEMPLATE.replace("'assistant'", "'bot'"), "marks nothing.*'role': 'user'"),
        (talk("Hello?"), TEMPLATE, "marks nothing"),
        (talk("Hello?", "\ud83d"), TEMPLATE, "surrogates not allowed"),
        (TALK, "{{ ''.__class__.__mro__ }}" + "".join(GENERATION), "refuses a conversation"),
    ],
)
def test_a_sample_that_gives_no_labels_is_refused(hub_tokenizer, sample, template, message) -> None:
    with pytest.raises(UsageError, match=message):
        list(Chain.from_sequence([sample]).sft(hub_tokenizer, chat_template=template))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chat_template": WITHOUT}, "does not say which tokens are the assistant's"),
        ({}, "has no chat template"),
        ({"chat_template": "{% if %}"}, "is no Jinja template"),
        ({"prompt": "text"}, "`completion` must be given"),
        ({"tokenizer": "gpt2"}, "needs a fast tokenizer of transformers"),
    ],
)
def test_wrong_usage(hub_tokenizer, settings, message) -> None:
    with pytest.raises(UsageError, match=message):
        Chain.from_sequence(TALKS).sft(**{"tokenizer": hub_tokenizer, **settings})
