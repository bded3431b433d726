from __future__ import annotations

import copy
from typing import Any

import pytest

from tunefleet.errors import DataError, ModelError
from tunefleet.programs.data.shapes import Chat, Pair, Plain, Shape
from tunefleet.spec import TextShape, TrainingData


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global ChatRenderer, Encoder, IGNORED, PreTrainedTokenizerBase, Tokens, open_portions, tokenize
    pytest.importorskip("torch")

    from transformers import PreTrainedTokenizerBase

    from tunefleet.programs.data.chat import ChatRenderer
    from tunefleet.programs.data.sources import open_portions
    from tunefleet.programs.data.tokens import IGNORED, Encoder, Tokens, tokenize


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
    (row,) = Encoder(tokenizer).encode([Plain("Two birds")])
    assert learnt(tokenizer, row) == "Two birds<|end|>"
    (ended,) = Encoder(tokenizer).encode([Plain("Two birds<|end|>")])
    assert ended == row


def test_only_the_response_is_learnt(tokenizer: PreTrainedTokenizerBase) -> None:
    (row,) = Encoder(tokenizer).encode([Pair("How many?\n", "3 birds")])
    assert tokenizer.decode(row.ids) == "How many?\n3 birds<|end|>"
    assert learnt(tokenizer, row) == "3 birds<|end|>"
    # The prompt is in the tokens that the model will meet when it is asked.
    assert row.ids[: row.trained.index(True)] == tokenizer("How many?\n")["input_ids"]


def test_the_prompt_is_learnt_too_when_asked_for(tokenizer: PreTrainedTokenizerBase) -> None:
    (row,) = Encoder(tokenizer, whole=True).encode([Pair("How many?\n", "3 birds")])
    assert all(row.trained)
    (talk,) = Encoder(tokenizer, whole=True).encode([Chat(TALK)])
    assert all(talk.trained)


@pytest.mark.parametrize("template", [None, PLAIN_TEMPLATE])
def test_only_the_assistant_is_learnt_with_markers_or_without(
    template: str | None, tokenizer: PreTrainedTokenizerBase
) -> None:
    used = tokenizer if template is None else with_template(tokenizer, template)
    assert ChatRenderer(used).marks_turns is (template is None)
    (row,) = Encoder(used).encode([Chat(TALK)])
    assert tokenizer.decode(row.ids).startswith("<|system|>Be brief.<|end|><|user|>How many?<|end|><|assistant|>Three")
    assert learnt(tokenizer, row) == "Three 3.<|end|>Yes.<|end|>"


def test_a_template_that_rewrites_earlier_turns_is_refused_and_not_learnt_whole(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    rewriting = "{% for message in messages %}{{ messages | length }}{{ message['content'] }}{% endfor %}"
    used = with_template(tokenizer, rewriting)
    with pytest.raises(ModelError, match=r"rewrites earlier turns.*generation.*completion_only_loss"):
        Encoder(used).encode([Chat(TALK)])
    (row,) = Encoder(used, whole=True).encode([Chat(TALK)])
    assert all(row.trained)


def test_a_tokenizer_without_a_template_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ModelError, match=r"has no chat template.*instruct model"):
        Encoder(with_template(tokenizer, None)).encode([Chat(TALK)])


def test_a_role_that_the_template_does_not_know_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(DataError, match="roles system, user and assistant, not tool"):
        Encoder(tokenizer).encode([Chat([{"role": "tool", "content": "x"}, *TALK])])


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


PAIRS = Shape(TextShape("pair", separator=" "), "rows")


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
