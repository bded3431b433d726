"""What a model is asked for items: above all, with which adapter."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tunefleet.errors import InputError
from tunefleet.spec.options.generation import InferenceSpec


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Item, ask
    from tunefleet.workloads.inference.items import Item
    from tunefleet.workloads.inference.questions import ask


def adapter_of(metadata: dict[str, Any], adapters: tuple[str, ...], default: str | None = None) -> str | None:
    (question,) = ask([Item("Why?", metadata)], InferenceSpec(), adapters, default=default)
    return question.adapter


@pytest.mark.parametrize(
    ("metadata", "adapters", "default", "found"),
    [
        ({}, (), None, None),
        ({"adapter": "base"}, (), None, None),
        ({}, ("red",), "red", "red"),
        ({"adapter": "base"}, ("red",), "red", None),
        ({"adapter": None}, ("red",), "red", None),
        ({"adapter": "blue"}, ("red", "blue"), None, "blue"),
        ({"adapter": "base"}, ("red", "base"), None, "base"),
    ],
)
def test_an_item_is_answered_by_the_adapter_that_it_names_or_by_the_base(
    metadata: dict[str, Any], adapters: tuple[str, ...], default: str | None, found: str | None
) -> None:
    assert adapter_of(metadata, adapters, default) == found


def chat(*roles: str) -> tuple[dict[str, Any], ...]:
    return tuple({"role": role, "content": f"{number} of {role}"} for number, role in enumerate(roles))


def test_a_chat_is_asked_as_it_is_and_told_from_another_that_ends_alike() -> None:
    chats = [chat("user", "assistant", "user"), chat("user", "tool", "user"), chat("user", "assistant", "user")]
    asked = ask([Item("2 of user", {}, each) for each in chats], InferenceSpec(temperature=0), (), default=None)
    assert [question.messages for question in asked] == [list(each) for each in chats]
    assert asked[0] == asked[2]
    assert len({question.key for question in asked}) == 2
    (prompted,) = ask([Item("2 of user", {}, chats[0])], InferenceSpec(system_prompt="Be brief."), (), default=None)
    assert prompted.messages == [{"role": "system", "content": "Be brief."}, *chats[0]]
    with pytest.raises(
        InputError, match=r"Item 0 begins with a system message, but the run also has a system_prompt\."
    ):
        ask([Item("x", {}, chat("system", "user"))], InferenceSpec(system_prompt="s"), (), default=None)


def test_the_key_of_a_text_is_that_of_older_answers_on_disk() -> None:
    (question,) = ask([Item("Why?")], InferenceSpec(system_prompt="s"), (), default=None)
    parts = {"adapter": None, "draw": 0, "prompt": "Why?", "system": "s"}
    assert question.key == hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


@pytest.mark.parametrize(
    ("metadata", "adapters", "message"),
    [
        ({"adapter": "red"}, (), "Item 0 names the adapter 'red'. The model has no adapters."),
        ({"adapter": "green"}, ("red", "blue"), "Item 0 names the adapter 'green'. The model has: red, blue, base."),
        ({"adapter": ["red"]}, ("red", "blue"), "Item 0 names the adapter"),
        ({}, ("red", "blue"), "Item 0 does not name one of the adapters. The model has: red, blue, base."),
    ],
)
def test_an_adapter_that_there_is_not_is_refused(
    metadata: dict[str, Any], adapters: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        adapter_of(metadata, adapters)
