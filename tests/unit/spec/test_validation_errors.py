from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator
from pydantic_core import PydanticKnownError, core_schema

from tunefleet import validation_errors
from tunefleet.validation_errors import faults, message, place, summary

# Every value that a message may name.
CONTEXT: dict[str, Any] = {
    "class_name": "X", "class": "X", "error": "it is odd", "expected": "'a' or 'b'", "gt": 1, "ge": 1, "lt": 1, "le": 1,
    "multiple_of": 2, "min_length": 1, "max_length": 1, "actual_length": 3, "field_type": "List", "pattern": "^a$",
    "attribute": "a", "discriminator": "'kind'", "tag": "t", "expected_tags": "'a', 'b'", "method_name": "m",
    "max_digits": 1, "decimal_places": 1, "whole_digits": 1, "tz_expected": 0, "tz_actual": 1, "expected_version": 4,
    "expected_schemes": "'http' or 'https'", "encoding": "utf-8", "encoding_error": "bad",
}  # fmt: skip
PYDANTIC_WORDS = (
    "Input", "input", "Extra", "Field required", "valid dictionary", "Value error", "Assertion", "type=", "pydantic",
    "instance", "parse", "JsonOrPython", "should", "…",
)  # fmt: skip


@pytest.mark.parametrize("kind", get_args(core_schema.ErrorType))
def test_every_error_of_pydantic_has_a_sentence_of_ours(kind: str) -> None:
    detail = {"type": kind, "loc": ("a",), "msg": PydanticKnownError(kind, CONTEXT).message(), "input": "five"}  # type: ignore[arg-type]
    for said in (message({**detail, "ctx": CONTEXT}), message({**detail, "ctx": CONTEXT}, quoted=False)):
        assert not [word for word in PYDANTIC_WORDS if word in said], said
        assert said[:1].islower()
    assert "five" not in message({**detail, "ctx": CONTEXT}, quoted=False)


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
    steps: int = Field(default=1, gt=0)
    rate: float = Field(default=1, le=1)
    mode: Literal["fast", "exact"] = "fast"
    tags: list[Annotated[str, Field(min_length=1, max_length=3)]] = Field(default=[], max_length=2)
    source: Annotated[int, Field(gt=3)] | Annotated[str, Field(pattern="^x")] | None = None
    shares: int | list[float] = 1
    even: int = 0

    @field_validator("even")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"steps": "many"}, "steps must be an integer, not 'many'"),
        ({"steps": 0}, "steps must be greater than 0, not 0"),
        ({"steps": None}, "steps must be an integer, not nothing"),
        ({"rate": 1.5}, "rate must be at most 1, not 1.5"),
        ({"mode": "slow"}, "mode must be one of fast, exact, not 'slow'"),
        ({"tags": "a"}, "tags must be a list, not 'a'"),
        ({"tags": ["", "long!"]}, "tags.0 must not be empty; tags.1 must have at most 3 characters"),
        ({"tags": ["a", "b", "c"]}, "tags must have at most 2 entries, not 3"),
        ({"even": 3}, "even must be even"),
        ({"stepz": 1}, "stepz is not a known key"),
        ([], "it must be a mapping, not a list"),
        ({"shares": "x"}, "shares must be an integer or a list, not 'x'"),
        ({"shares": [{}]}, "shares must be an integer, not a list; shares.0 must be a number, not a mapping"),
        ({"source": []}, "source must be an integer or a string, not a list"),
    ],
)
def test_an_error_names_the_place_and_the_value(given: Any, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Options.model_validate(given)
    assert summary(caught.value) == said


def test_a_list_of_errors_is_short_and_a_secret_is_not_quoted() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(list[int]).validate_python(["sk-secret", "b", "c", "d"])
    assert summary(caught.value).endswith("2 must be an integer, not 'c'; and 1 more")
    hidden = faults(caught.value.errors(), quoted=False)
    assert (hidden[0].path, hidden[0].message) == ("0", "must be an integer, not a string")


@pytest.mark.parametrize(
    ("loc", "given", "said"),
    [
        (("body", "role"), "king", "must be one of a, b"),
        (("query", "role"), "king", "must be one of a, b, not 'king'"),
    ],
)
def test_only_the_address_of_a_request_is_quoted(loc: tuple[str, ...], given: str, said: str) -> None:
    detail = {"type": "literal_error", "loc": loc, "msg": "", "input": given, "ctx": {"expected": "'a' or 'b'"}}
    assert message(detail, quoted=False) == said


def test_a_place_has_no_kinds_of_a_union() -> None:
    assert place(("inputs", "data.path", "function-after[check(), str]", 3)) == "inputs.data.path.3"
    assert place(("inputs", "constrained-str")) == "inputs"


def test_the_words_of_pydantic_are_read_in_one_place() -> None:
    package = Path(validation_errors.__file__).parent
    readers = {file.name for file in package.rglob("*.py") if re.search(r"""\[["']msg["']\]""", file.read_text())}
    assert readers == {"validation_errors.py"}
