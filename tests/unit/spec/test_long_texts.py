"""Texts of a megabyte in fields that hold a word: answered at once. What takes time by the square never ends here."""

from __future__ import annotations

import json
import re
import time

import pytest

from tunefleet.errors import InputError, SpecError
from tunefleet.observability import logs
from tunefleet.orchestrator.training_protocol.failure_analysis import traceback_of
from tunefleet.orchestrator.views import before_cursor
from tunefleet.spec import deep_set
from tunefleet.spec import text as module
from tunefleet.spec.base import is_url
from tunefleet.spec.documents.workflow import load_task_spec
from tunefleet.spec.text import read_text

N = 1_000_000
LORA = {"taskType": "lora_sft", "model": {"source": {"identifier": "m"}}, "data": {"prompts": ["a"]}}


def test_an_address() -> None:
    assert not is_url(f"http://{'a' * N} ")
    assert is_url(f"http://{'a' * N}/b?c#d")
    assert not is_url("http:///x")


@pytest.mark.parametrize("key", ["visible_devices", "zero_stage"])
def test_a_number(key: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_task_spec({**LORA, "training": {key: "9" * N}})
    assert len(str(caught.value)) < 400
    assert "limit" not in str(caught.value), "told in our words"


def test_a_name_in_a_query() -> None:
    text = f"http://h/?{'sig' * (N // 3)}&token=abc"
    assert logs.scrub(text) == text.replace("abc", "***")
    assert logs.scrub("http://h/?X-Amz-Signature=abc") == "http://h/?X-Amz-Signature=***"


def test_a_cursor() -> None:
    assert before_cursor("17") == 17
    with pytest.raises(InputError, match="is not a cursor") as caught:
        before_cursor("9" * N)
    assert len(str(caught.value)) < 200


def test_an_index_and_a_line() -> None:
    with pytest.raises(SpecError, match="is not an entry of the list"):
        deep_set({"spec": {"data": {"prompts": ["a"]}}}, f"data.prompts.{'9' * N}", "b")
    seen = traceback_of(f'Traceback (most recent call last):\n  File "a.py", line {"9" * N}, in f\nValueError: x')
    assert seen is not None
    assert (seen.frames, seen.exception_type) == ([], "ValueError")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"\ud83d\ude00", "😀"),
        (r"\ud83d\ude00\uD83D\uDE00", "😀😀"),
        (r"\\ud83d\\ude00", r"\ud83d\ude00"),
        (r"\\\ud83d\ude00", "\\😀"),
        (r"\\\\ud83d\\ude00", r"\\ud83d\ude00"),
        (r"\u00e4\n\ud83d\ude00", "ä\n😀"),
    ],
)
def test_escaped_halves_of_json_are_one_character(written: str, read: str) -> None:
    assert read_text(f'{{"text": "{written}"}}').data == {"text": read} == json.loads(f'{{"text": "{written}"}}')


def test_looking_for_halves_holds_up_no_other_thread() -> None:
    """One call of the regular expression engine goes through the whole text, and no thread runs meanwhile."""
    long = "x" * (4 << 20)

    def spent_s(pattern: re.Pattern[str]) -> float:
        begin = time.thread_time()
        assert pattern.search(long) is None
        return time.thread_time() - begin

    one = min(spent_s(re.compile(r"\\")) for _ in range(5))
    assert min(spent_s(module.HALVES) for _ in range(5)) < 20 * one
