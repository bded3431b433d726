from __future__ import annotations

import copy
from typing import Any

import pytest

from tunefleet.analysis.dataset.notes import Notes
from tunefleet.analysis.dataset.shapes import Recognized
from tunefleet.errors import DataError, ModelError
from tunefleet.spec import TrainingData
from tunefleet.workloads.data.formats import Chat, Pair, Place, Plain, Shape


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global ChatRenderer, Encoder, IGNORED, PreTrainedTokenizerBase, Tokens, open_portions, tokenize
    pytest.importorskip("torch")

    from transformers import PreTrainedTokenizerBase

    from tunefleet.workloads.data.chat_template import ChatRenderer
    from tunefleet.workloads.data.sources import open_portions
    from tunefleet.workloads.data.tokenization import IGNORED, Encoder, Tokens, tokenize


pytestmark = pytest.mark.torch
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How many?"},
    {"role": "assistant", "content": "Three 3."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes."},
]
PLAIN_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def learnt(tokenizer: PreTrainedTokenizerBase, row: Tokens) -> str:
    return tokenizer.decode([token for token, trained in zip(row.ids, row.trained, strict=True) if trained])


def with_template(tokenizer: PreTrainedTokenizerBase, template: str | None) -> PreTrainedTokenizerBase:
    changed = copy.deepcopy(tokenizer)
    changed.chat_template = template
    return changed


def test_all_of_a_text_is_learnt_and_its_end(tokenizer: PreTrainedTokenizerBase) -> None:
    (row,) = Encoder(tokenizer).encode([Plain("Two birds")], Notes())
    assert learnt(tokenizer, row) == "Two birds<|end|>"
    (ended,) = Encoder(tokenizer).encode([Plain("Two birds<|end|>")], Notes())
    assert ended == row


def test_only_the_response_is_learnt(tokenizer: PreTrainedTokenizerBase) -> None:
    (row,) = Encoder(tokenizer).encode([Pair("How many?\n", "3 birds")], Notes())
    assert tokenizer.decode(row.ids) == "How many?\n3 birds<|end|>"
    assert learnt(tokenizer, row) == "3 birds<|end|>"
    # The prompt is in the tokens that the model will meet when it is asked.
    assert row.ids[: row.trained.index(True)] == tokenizer("How many?\n")["input_ids"]


def test_the_prompt_is_learnt_too_when_asked_for(tokenizer: PreTrainedTokenizerBase) -> None:
    (row,) = Encoder(tokenizer, whole=True).encode([Pair("How many?\n", "3 birds")], Notes())
    assert all(row.trained)
    (talk,) = Encoder(tokenizer, whole=True).encode([Chat(TALK)], Notes())
    assert all(talk.trained)


@pytest.mark.parametrize("template", [None, PLAIN_TEMPLATE])
def test_only_the_assistant_is_learnt_with_markers_or_without(
    template: str | None, tokenizer: PreTrainedTokenizerBase
) -> None:
    used = tokenizer if template is None else with_template(tokenizer, template)
    assert ChatRenderer(used).marks_turns is (template is None)
    (row,) = Encoder(used).encode([Chat(TALK)], Notes())
    assert tokenizer.decode(row.ids).startswith("<|system|>Be brief.<|end|><|user|>How many?<|end|><|assistant|>Three")
    assert learnt(tokenizer, row) == "Three 3.<|end|>Yes.<|end|>"


def test_a_template_that_rewrites_earlier_turns_is_refused_and_not_learnt_whole(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    rewriting = "{% for message in messages %}{{ messages | length }}{{ message['content'] }}{% endfor %}"
    used = with_template(tokenizer, rewriting)
    with pytest.raises(ModelError, match=r"rewrites earlier turns.*generation.*completion_only_loss"):
        Encoder(used).encode([Chat(TALK)], Notes())
    (row,) = Encoder(used, whole=True).encode([Chat(TALK)], Notes())
    assert all(row.trained)


def test_a_tokenizer_without_a_template_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ModelError, match=r"has no chat template.*instruct model"):
        Encoder(with_template(tokenizer, None)).encode([Chat(TALK)], Notes())


def test_a_role_that_the_template_does_not_know_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(DataError, match="roles system, user and assistant, not tool"):
        Encoder(tokenizer).encode([Chat([{"role": "tool", "content": "x"}, *TALK])], Notes())


def test_a_template_that_trl_knows_gets_its_markers(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def known(_: Any) -> str:
        return tokenizer.chat_template

    monkeypatch.setattr("trl.chat_template_utils.get_training_chat_template", known)
    assert ChatRenderer(with_template(tokenizer, PLAIN_TEMPLATE)).marks_turns


def test_what_the_model_is_asked(tokenizer: PreTrainedTokenizerBase) -> None:
    encoder = Encoder(tokenizer)
    assert encoder.prompt(Pair("How many?\n", "3"))[::2] == ("How many?\n", "3")
    text, ids, answer = encoder.prompt(Chat(TALK))
    assert text.endswith("<|user|>Sure?<|end|><|assistant|>")
    assert tokenizer.decode(ids) == text
    assert answer == "Yes."
    half, half_ids, rest = encoder.prompt(Plain("one two three four five six"))
    assert half + str(rest) == "one two three four five six"
    assert tokenizer.decode(half_ids) == half


PAIRS = Shape(Recognized("prompt_response", {"prompt": "prompt", "response": "response"}), "rows", " ")


def test_labels_repeat_what_is_learnt_and_ignore_the_rest(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [{"prompt": "a b", "response": "c"}, {"prompt": "d", "response": "e f g"}]
    found = tokenize(rows, PAIRS, Encoder(tokenizer), 64)
    for row, original in zip(found.dataset, rows, strict=True):
        kept = [label for label in row["labels"] if label != IGNORED]
        assert tokenizer.decode(kept) == original["response"] + "<|end|>"
        assert row["input_ids"][-len(kept) :] == kept
        assert set(row["labels"][: -len(kept)]) == {IGNORED}
    assert found.tokens == sum(len(row["input_ids"]) for row in found.dataset)
    assert (found.rows, found.dropped, found.truncated) == (2, 0, 0)


def test_long_rows_are_cut_and_rows_without_anything_to_learn_left_out(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [
        {"prompt": "1", "response": "2"},
        {"prompt": "1", "response": "2" * 50},
        {"prompt": "1" * 50, "response": "2"},
    ]
    found = tokenize(rows, PAIRS, Encoder(tokenizer), 10)
    assert (found.rows, found.dropped, found.truncated) == (2, 1, 2)
    assert max(len(row["input_ids"]) for row in found.dataset) == 10
    assert found.trained_tokens == sum(label != IGNORED for row in found.dataset for label in row["labels"][1:])


def test_a_limit_that_leaves_nothing_says_what_to_change(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(DataError, match=r"within 3 tokens.*max_seq_length"):
        tokenize([{"prompt": "1" * 50, "response": "2"}], PAIRS, Encoder(tokenizer), 3)
    with pytest.raises(DataError, match="rows has no rows"):
        tokenize([], PAIRS, Encoder(tokenizer), 3)


def test_rows_are_tokenized_many_at_a_time(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer works through a batch without Python; a call for each row would not."""
    data = TrainingData.model_validate(
        {"path": "builtin:gsm8k", "prompt_column": "question", "response_column": "answer"}
    )
    portion = open_portions(data, {}, tmp_path, seed=0).train
    texts: list[int] = []
    call = type(tokenizer).__call__

    def counted(self: Any, text: Any, **options: Any) -> Any:
        texts.append(1 if isinstance(text, str) else len(text))
        return call(self, text, **options)

    monkeypatch.setattr(type(tokenizer), "__call__", counted)
    assert tokenize(portion.rows, portion.shape, Encoder(tokenizer), 512).rows == 2000
    assert sum(texts) >= 2000
    assert len(texts) <= 100


SPACED = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ 'USER: ' + m.content + '<|end|>' }}{% else %}"
    "{{ 'ASSISTANT: ' }}{% generation %}{{ m.content + '<|end|>' }}{% endgeneration %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT: ' }}{% endif %}"
)
BARE = SPACED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
ASKED = [{"role": "user", "content": "Which?"}, {"role": "assistant", "content": "four apples."}]


@pytest.mark.parametrize("template", [SPACED, BARE])
def test_an_answer_behind_a_blank_is_trained_from_its_first_token_on(
    template: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    used = with_template(tokenizer, template)
    (row,) = Encoder(used).encode([Chat(ASKED)], Notes())
    assert learnt(used, row) == "four apples.<|end|>"
    assert tokenizer.decode(row.ids) == "USER: Which?<|end|>ASSISTANT: four apples.<|end|>"
    _, asked, _ = Encoder(used).prompt(Chat(ASKED))
    assert row.ids[: len(asked)] == asked, "trained and asked with the same tokens"
    two = [*ASKED, {"role": "user", "content": "And?"}, {"role": "assistant", "content": "five pears."}]
    (both,) = Encoder(used).encode([Chat(two)], Notes())
    assert learnt(used, both) == "four apples.<|end|>five pears.<|end|>"


def with_begin(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer, with a begin token in front of each text that is not a rendered chat."""
    from tokenizers.processors import TemplateProcessing

    changed = copy.deepcopy(tokenizer)
    begin = changed.bos_token
    changed.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A", pair="$A $B", special_tokens=[(begin, changed.bos_token_id)]
    )
    return changed


def test_a_begin_token_is_there_once_or_not_at_all(tokenizer: PreTrainedTokenizerBase) -> None:
    used = with_begin(tokenizer)
    begin, encoder = used.bos_token, Encoder(used)
    for text in ("Two birds", f"{begin}Two birds"):
        (row,) = encoder.encode([Plain(text)], Notes())
        assert used.decode(row.ids) == f"{begin}Two birds<|end|>"
    (pair,) = encoder.encode([Pair("How many?", "3")], Notes())
    assert pair.ids.count(used.bos_token_id) == 1
    (chat,) = encoder.encode([Chat(ASKED)], Notes())
    text, asked, _ = encoder.prompt(Chat(ASKED))
    assert used.bos_token_id not in [*chat.ids, *asked]
    assert not text.startswith(begin)


def metaspace(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A tokenizer in the manner of SentencePiece: it puts a blank before each text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [
        "<unk>",
        "</s>",
        "▁",
        "▁four",
        "four",
        "▁USER:",
        ":",
        "▁A",
        "A",
        "▁apples",
        "▁x",
        "\n",
        "|",
        "a",
        "▁a",
        "▁|",
    ]
    inner = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="always"), pre_tokenizers.Split("\n", "isolated")]
    )
    inner.decoder = decoders.Metaspace(prepend_scheme="never")
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", unk_token="<unk>")


def test_a_response_gains_no_blank_of_its_own(tokenizer: PreTrainedTokenizerBase) -> None:
    used = metaspace(tokenizer)
    assert used.convert_ids_to_tokens(used("four")["input_ids"]) == ["▁four"]
    (row,) = Encoder(used).encode([Pair("A\n", "four")], Notes())
    trained = [token for token, counts in zip(row.ids, row.trained, strict=True) if counts]
    assert used.convert_ids_to_tokens(trained) == ["four", "</s>"]


VICUNA = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ 'USER: ' + m.content + '\n' }}{% else %}{{ 'ASSISTANT:' }}"
    "{% generation %}{{ ' ' + m.content + '\n' }}{% endgeneration %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


def test_an_answer_without_an_end_gets_one_and_it_is_noted(tokenizer: PreTrainedTokenizerBase) -> None:
    used, notes = with_template(tokenizer, VICUNA), Notes()
    (row,) = Encoder(used).encode([Chat(ASKED)], notes)
    assert learnt(used, row) == " four apples.\n<|end|>"
    assert "'<|end|>' is appended and trained" in notes.sentences[0]
    off = Notes()
    (left,) = Encoder(used, append_eos=False).encode([Chat(ASKED)], off)
    assert learnt(used, left) == " four apples.\n"
    assert "does not learn to stop" in off.sentences[0]
    (pair,) = Encoder(used, append_eos=False).encode([Pair("a ", "b")], Notes())
    assert learnt(used, pair) == "b"
    quiet = Notes()
    Encoder(tokenizer).encode([Chat(ASKED)], quiet)
    assert quiet.sentences == ()
    asked, answered = Encoder(used).exchange(ASKED[:1], ASKED[1:], None, Notes(), Place())
    assert used.decode([*asked, *answered]) == used.decode(row.ids)


def test_markers_that_leave_the_end_out_are_noted(tokenizer: PreTrainedTokenizerBase) -> None:
    out = SPACED.replace("m.content + '<|end|>' }}{% endgeneration %}", "m.content }}{% endgeneration %}<|end|>")
    notes = Notes()
    (row,) = Encoder(with_template(tokenizer, out)).encode([Chat(ASKED)], notes)
    assert learnt(tokenizer, row) == "four apples."
    assert "exclude the token that ends an answer" in notes.sentences[0]


@pytest.mark.parametrize("template", [None, PLAIN_TEMPLATE])
@pytest.mark.parametrize("whole", [False, True])
def test_an_untrained_answer_is_context(template: str | None, whole: bool, tokenizer: PreTrainedTokenizerBase) -> None:
    used = tokenizer if template is None else with_template(tokenizer, template)
    (row,) = Encoder(used, whole=whole).encode([Chat(TALK, untrained=frozenset({2}))], Notes())
    assert "Three" not in learnt(used, row)
    assert learnt(used, row).endswith("Yes.<|end|>")
    assert ("How many?" in learnt(used, row)) is whole
    assert "Three 3." in used.decode(row.ids)


TOOLED = PLAIN_TEMPLATE.replace(
    "{% for", "{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}{% for", 1
).replace(
    "<|end|>{% endfor %}", "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}<|end|>{% endfor %}"
)
CALLS = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {}}}]},
    {"role": "tool", "content": "rain"},
    {"role": "assistant", "content": "Rain."},
]


def test_what_a_template_does_not_write_is_refused_or_noted(tokenizer: PreTrainedTokenizerBase) -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    notes = Notes()
    (row,) = Encoder(with_template(tokenizer, TOOLED)).encode([Chat(CALLS, tools)], notes)
    assert '"weather"' in learnt(tokenizer, row)
    assert notes.sentences == ()
    plain = with_template(tokenizer, PLAIN_TEMPLATE)
    with pytest.raises(DataError, match=r"Row 7 of x: the chat template .* does not write the tool_calls of an answer"):
        Encoder(plain).encode([Chat(CALLS, tools, place=Place(7, "x"))], Notes())
    silent = PLAIN_TEMPLATE.replace("<|{{", "{% if message.role != 'tool' %}<|{{", 1)
    silent = silent.replace("<|end|>{% endfor %}", "<|end|>{% endif %}{% endfor %}")
    Encoder(with_template(tokenizer, silent)).encode([Chat([*TALK, CALLS[2], CALLS[3]], tools)], notes)
    assert notes.sentences == (
        "The chat template does not write the content of messages of the tool (row 0).",
        "The chat template does not describe tools: the column 'tools' has no effect (row 0).",
    )


def test_a_named_template_is_used_for_tools(tokenizer: PreTrainedTokenizerBase) -> None:
    named = copy.deepcopy(tokenizer)
    named.chat_template = {"default": PLAIN_TEMPLATE, "tool_use": TOOLED}
    tools = [{"type": "function", "function": {"name": "weather"}}]
    encoder = Encoder(named)
    with_tools, without = encoder.encode([Chat(ASKED, tools), Chat(ASKED)], Notes())
    assert '"weather"' in named.decode(with_tools.ids)
    assert "weather" not in named.decode(without.ids)
    assert named.decode(with_tools.ids) == named.apply_chat_template(ASKED, tools=tools, tokenize=False)


def test_a_template_that_fails_names_the_row(tokenizer: PreTrainedTokenizerBase) -> None:
    for body in ("{{ messages[9].content }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ raise_exception('no') }}"):
        with pytest.raises(DataError, match=r"Row 217 of x: the chat template of .* rejects the conversation"):
            Encoder(with_template(tokenizer, body), whole=True).encode([Chat(TALK, place=Place(217, "x"))], Notes())


def test_a_token_that_the_model_has_no_embedding_for_names_the_row(tokenizer: PreTrainedTokenizerBase) -> None:
    larger = copy.deepcopy(tokenizer)
    larger.add_tokens(["<|call|>"])
    rows = [{"prompt": "a", "response": "b"}, {"prompt": "a", "response": "<|call|>"}]
    with pytest.raises(ModelError, match=r"Row 2 of rows has the token '<\|call\|>' \(id 2048\).* 2,048 tokens"):
        tokenize(rows, PAIRS, Encoder(larger, vocabulary=2048), 64)
    assert tokenize(rows, PAIRS, Encoder(larger, vocabulary=2049), 64).rows == 2


def test_rows_of_several_kinds_keep_their_order(tokenizer: PreTrainedTokenizerBase) -> None:
    mixed = [Chat(ASKED), Pair("a ", "b"), Plain("c"), Chat(TALK), Pair("d ", "e")]
    together = Encoder(tokenizer).encode(mixed, Notes())
    assert together == [Encoder(tokenizer).encode([each], Notes())[0] for each in mixed]


def test_a_tool_call_whose_name_stands_elsewhere_is_missed_all_the_same(tokenizer: PreTrainedTokenizerBase) -> None:
    described = "{{ tools | tojson }}" + PLAIN_TEMPLATE
    tools = [{"type": "function", "function": {"name": "weather"}}]
    with pytest.raises(DataError, match="does not write the tool_calls of an answer"):
        Encoder(with_template(tokenizer, described)).encode([Chat(CALLS, tools)], Notes())


CALL_OR_CONTENT = PLAIN_TEMPLATE.replace(
    "{{ message['content'] }}",
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% else %}{{ message.content }}{% endif %}",
)


def test_a_template_may_write_a_tool_call_instead_of_empty_content(tokenizer: PreTrainedTokenizerBase) -> None:
    notes = Notes()
    (row,) = Encoder(with_template(tokenizer, CALL_OR_CONTENT)).encode([Chat(CALLS)], notes)
    assert '"weather"' in learnt(tokenizer, row)
    assert notes.sentences == ()


def test_lost_reasoning_hides_no_lost_tool_call(tokenizer: PreTrainedTokenizerBase) -> None:
    asked, call, *rest = CALLS
    thought = {**call, "reasoning_content": "I look outside."}
    notes = Notes()
    Encoder(with_template(tokenizer, CALL_OR_CONTENT)).encode([Chat([asked, thought, *rest])], notes)
    assert "does not write the reasoning_content of messages of the assistant" in notes.sentences[0]
    with pytest.raises(DataError, match="does not write the tool_calls of an answer"):
        Encoder(with_template(tokenizer, PLAIN_TEMPLATE)).encode([Chat([asked, thought, *rest])], Notes())


@pytest.mark.parametrize("whole", [False, True])
def test_an_answer_in_a_prompt_is_trained_only_if_everything_is(
    whole: bool, tokenizer: PreTrainedTokenizerBase
) -> None:
    (row,) = Encoder(tokenizer, whole=whole).encode([Chat(TALK, prompt=4)], Notes())
    assert ("Three" in learnt(tokenizer, row)) is whole
    assert learnt(tokenizer, row).endswith("Yes.<|end|>")


def test_what_stands_between_an_answer_and_an_appended_end_is_trained(tokenizer: PreTrainedTokenizerBase) -> None:
    marked = (
        "{% for m in messages %}{% if m.role == 'assistant' %}A: {% generation %}{{ m.content }}{% endgeneration %}"
    )
    used = with_template(tokenizer, marked + "{{ '\n' }}{% else %}U: {{ m.content }}{{ '\n' }}{% endif %}{% endfor %}")
    (row,) = Encoder(used).encode([Chat(ASKED)], Notes())
    assert learnt(used, row) == "four apples.\n<|end|>"
    later = [*ASKED, {"role": "user", "content": "secret"}, {"role": "assistant", "content": ""}]
    (row,) = Encoder(used).encode([Chat(later)], Notes())
    assert learnt(used, row) == "four apples.<|end|>"


def test_a_chat_whose_only_answer_comes_first_asks_nothing(tokenizer: PreTrainedTokenizerBase) -> None:
    assert Encoder(tokenizer).prompt(Chat([ASKED[1], ASKED[0]])) == ("", [], "four apples.")


@pytest.mark.parametrize(
    "template", [PLAIN_TEMPLATE, "{% if messages[0].role == 'system' %}{% endif %}" + PLAIN_TEMPLATE]
)
def test_a_chat_may_begin_with_the_assistant(template: str, tokenizer: PreTrainedTokenizerBase) -> None:
    greeting = {"role": "assistant", "content": "apples?"}
    (row,) = Encoder(with_template(tokenizer, template)).encode([Chat([greeting, *ASKED])], Notes())
    assert learnt(tokenizer, row) == "apples?<|end|>four apples.<|end|>"


def test_a_template_that_writes_tool_calls_only_beside_null_gets_null(tokenizer: PreTrainedTokenizerBase) -> None:
    template = CALL_OR_CONTENT.replace("{% if message.tool_calls %}", "{% if message.content is none %}")
    notes = Notes()
    (row,) = Encoder(with_template(tokenizer, template)).encode([Chat(CALLS)], notes)
    assert '"weather"' in learnt(tokenizer, row)
    assert notes.sentences == ()


def test_content_of_which_a_template_writes_a_part_is_noted(tokenizer: PreTrainedTokenizerBase) -> None:
    thinks = PLAIN_TEMPLATE.replace("{{ message['content'] }}", "{{ message['content'].split('</think>')[-1] }}")
    notes = Notes()
    chat = Chat([ASKED[0], {"role": "assistant", "content": "<think>2 + 2</think>four"}], place=Place(3))
    (row,) = Encoder(with_template(tokenizer, thinks)).encode([chat], notes)
    assert learnt(tokenizer, row) == "four<|end|>"
    assert notes.sentences == ("The chat template rewrites the content of messages of the assistant (row 3).",)
