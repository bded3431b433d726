"""What a model is asked for items: above all, with which adapter."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.errors import InputError
from tunefleet.spec.generation import InferenceSpec


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Item, ask
    from tunefleet.programs.infer.items import Item
    from tunefleet.programs.infer.questions import ask


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


@pytest.mark.parametrize(
    ("metadata", "adapters", "message"),
    [
        ({"adapter": "red"}, (), "Item 0 names the adapter 'red'. The model has no adapters."),
        ({"adapter": "green"}, ("red", "blue"), "Item 0 names the adapter 'green'. The model has: red, blue, base."),
        ({"adapter": ["red"]}, ("red", "blue"), "Item 0 names the adapter"),
        ({}, ("red", "blue"), "Item 0 does not say which of the adapters answers it. The model has: red, blue, base."),
    ],
)
def test_an_adapter_that_there_is_not_is_refused(
    metadata: dict[str, Any], adapters: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        adapter_of(metadata, adapters)
