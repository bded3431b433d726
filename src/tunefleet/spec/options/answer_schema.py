"""`inference.templates`: the schema of answers that are JSON objects."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from typing import Any, Final, Literal

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from tunefleet.spec.base import Block, Text, as_block, many_wrong, wrong
from tunefleet.validation_errors import show

Faults = list[tuple[str, str, str | None]]
# Accepts both Python's and JSON Schema's type names.
_JSON_TYPES: Final = {
    "int": "integer", "integer": "integer", "float": "number", "number": "number", "bool": "boolean",
    "boolean": "boolean", "str": "string", "string": "string", "date": "string", "datetime": "string",
}  # fmt: skip
_BOUNDS: Final = {
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "string": ("minLength", "maxLength"),
}
# A mapping without any of these keywords is a mistake rather than a schema that allows everything.
_SCHEMA_KEYWORDS: Final = {"type", "properties", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}


class AnswerField(Block):
    """`inference.templates[]`: one field of a JSON answer."""

    name: Text
    """Name of the field."""
    type: Literal["int", "integer", "float", "number", "bool", "boolean", "str", "string", "date", "datetime"] = "str"
    """Type of the field."""
    min: str | int | float | None = None
    """Minimum value; for strings, the minimum length."""
    max: str | int | float | None = None
    """Maximum value; for strings, the maximum length."""
    candidates: tuple[str | int | float | bool, ...] | None = None
    """Allowed values."""

    @model_validator(mode="after")
    def _fitting(self) -> AnswerField:
        faults: Faults = [
            (name, f"is not a valid {self._bound}", f"of type {self.type}")
            for name in ("min", "max")
            if getattr(self, name) is not None and not self._fits(getattr(self, name))
        ]
        invalid = [each for each in self.candidates or () if not self.holds(each)]
        if invalid:
            faults.append(("candidates", f"has {show(invalid[0])}, which is not a {self.type}", None))
        if self.candidates is not None and not self.candidates:
            faults.append(("candidates", "is empty", "remove it, or list the allowed values"))
        if faults:
            raise many_wrong(faults)
        return self

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of its values, without the bounds of dates."""
        kind = _JSON_TYPES[self.type]
        found: dict[str, Any] = {"type": kind}
        if self._is_date:
            found["format"] = "date" if self.type == "date" else "date-time"
        elif kind in _BOUNDS:
            given = zip(_BOUNDS[kind], (self.min, self.max), strict=True)
            found |= {name: value for name, value in given if value is not None}
        return found if self.candidates is None else found | {"enum": list(self.candidates)}

    def holds(self, value: Any) -> bool:
        """Whether a value has the field's type and, for a date, is within its bounds."""
        kind = _JSON_TYPES[self.type]
        # JSON Schema has no bounds for dates, so they are checked here; all other bounds are in `json_schema`.
        if kind == "boolean":
            return isinstance(value, bool)
        if kind == "string":
            return isinstance(value, str) and (not self._is_date or self._is_between(value))
        # `bool` is a subclass of `int` in Python, but not a number in JSON.
        return isinstance(value, int if kind == "integer" else int | float) and not isinstance(value, bool)

    @property
    def _is_date(self) -> bool:
        return self.type in {"date", "datetime"}

    @property
    def _bound(self) -> str:
        return self.type if self._is_date else "length" if _JSON_TYPES[self.type] == "string" else "bound"

    def _fits(self, bound: Any) -> bool:
        kind = _JSON_TYPES[self.type]
        if self._is_date:
            return isinstance(bound, str) and self._parse_date(bound) is not None
        if kind == "string":
            return isinstance(bound, int) and bound >= 0
        return kind in _BOUNDS and isinstance(bound, int if kind == "integer" else int | float)

    def _parse_date(self, text: str) -> date | None:
        try:
            return date.fromisoformat(text) if self.type == "date" else datetime.fromisoformat(text)
        except ValueError:
            return None

    def _is_between(self, text: str) -> bool:
        parsed = self._parse_date(text)
        least, most = (self._parse_date(each) if isinstance(each, str) else None for each in (self.min, self.max))
        try:
            return parsed is not None and (least is None or parsed >= least) and (most is None or parsed <= most)
        except TypeError:  # a datetime with a time zone cannot be compared with one without
            return False


def object_schema(fields: Iterable[AnswerField]) -> dict[str, Any]:
    """Return the JSON Schema of an object with exactly these fields."""
    properties = {each.name: each.json_schema for each in fields}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        # Constrained decoding must not add fields of its own.
        "additionalProperties": False,
    }


def answer_templates(value: Any) -> Any:
    """Check `inference.templates`: a list of fields, or a JSON Schema.

    Raises:
        PydanticCustomError: If it is neither; lists every error.
    """
    return value if _is_schema(value) else _fields(value)


def _is_schema(value: Any) -> bool:
    if isinstance(value, dict) and not _SCHEMA_KEYWORDS & set(value):
        raise wrong("is not a JSON Schema", "write a list of fields, or a schema with type or properties")
    return isinstance(value, dict)


def _fields(value: Any) -> tuple[AnswerField, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise wrong("must be a list of fields, or a JSON Schema")
    found: list[AnswerField] = []
    faults: Faults = []
    for index, entry in enumerate(value):
        if isinstance(entry, AnswerField):
            found.append(entry)
        elif not isinstance(entry, dict):
            faults.append((str(index), "must be a mapping with a name", None))
        else:
            try:
                found.append(AnswerField.model_validate(as_block(AnswerField, entry)))
            except PydanticCustomError as error:
                inner: Faults = (error.context or {})["faults"]
                faults += [(f"{index}.{at}" if at else str(index), message, hint) for at, message, hint in inner]
    # Duplicates are found here, since a single field does not know the others.
    names = [each.name for each in found]
    faults += [(str(at), f"{show(name)} is given twice", None) for at, name in enumerate(names) if name in names[:at]]
    if faults:
        raise many_wrong(faults)
    return tuple(found)
