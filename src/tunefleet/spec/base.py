"""The base of every block of a document, and the number types that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError


class Block(BaseModel):
    """A mapping in a document: frozen, unknown keys refused, a key without a value counts as not given.

    The docstring under an attribute is its description in the JSON Schema and in the reference.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:
        # `training:` with every line below it commented out is null; people mean "the defaults".
        if not isinstance(data, dict):
            return data
        known = known_keys(cls) | set(cls.model_fields)
        return {key: value for key, value in data.items() if value is not None or key not in known}


def known_keys(block: type[BaseModel]) -> set[str]:
    """Return the keys that a block takes, as they are spelled in a document."""
    return {field.alias or name for name, field in block.model_fields.items()}


def wrong(message: str, hint: str | None = None, *, at: str = "") -> PydanticCustomError:
    """Make an error for a validator to raise.

    Args:
        message: What is wrong.
        hint: What to write instead.
        at: Key, below the validated block, that is to blame.
    """
    return many_wrong([(at, message, hint)])


def many_wrong(faults: Sequence[tuple[str, str, str | None]]) -> PydanticCustomError:
    """Make one error out of several `(key, message, hint)`; a validator can raise only one."""
    text = "; ".join(message for _, message, _ in faults)
    return PydanticCustomError("tunefleet", "{text}", {"text": text, "faults": list(faults)})


def only(allowed: Any, message: str, hint: str) -> BeforeValidator:
    """Accept a single value; refuse every other one with a reason, so that no option is silently without effect."""

    def check(value: Any) -> Any:
        if type(value) is not type(allowed) or value != allowed:
            raise wrong(message, hint)
        return value

    return BeforeValidator(check)


def one_of_words(aliases: dict[str, str]) -> Callable[[Any], Any]:
    """Return a validator that replaces other spellings of a word; case is ignored."""

    def check(value: Any) -> Any:
        return aliases.get(value.lower(), value.lower()) if isinstance(value, str) else value

    return check


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise wrong(f"must be a number, not {str(value).lower()}")
    return value


def as_list(value: Any) -> Any:
    """Take one string for a list of one."""
    return [value] if isinstance(value, str) else value


def _plain(value: str) -> str:
    if "${" in value:
        raise wrong("has a reference, and references are not available in this version", "write the value itself")
    if not value.strip() or any(character in value for character in "\0\r\n"):
        raise wrong("must be one line of text")
    return value


NotBool = BeforeValidator(_no_bool)
PositiveInt = Annotated[int, Field(ge=1), NotBool]
NaturalInt = Annotated[int, Field(ge=0), NotBool]
PositiveFloat = Annotated[float, Field(gt=0), NotBool]
NaturalFloat = Annotated[float, Field(ge=0), NotBool]
Share = Annotated[float, Field(ge=0, lt=1), NotBool]
"""A part of one, one itself excluded."""
Text = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_plain)]
"""A name or a path: one line that is not empty."""


def _inside(value: str) -> str:
    parts = value.replace("\\", "/").split("/")
    if value.startswith(("/", "~")) or ".." in parts or ":" in parts[0]:
        raise wrong("must be a path inside the folder", "write it without a leading / and without ..")
    return value


RelativePath = Annotated[Text, AfterValidator(_inside)]
"""A path below some folder."""
