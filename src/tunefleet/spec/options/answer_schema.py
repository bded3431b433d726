"""`inference.templates`: what each answer must look like that is a JSON object."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from typing import Any, Final, Literal

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from tunefleet.spec.base import Block, Text, as_block, many_wrong, wrong
from tunefleet.spec.value_preview import show

Faults = list[tuple[str, str, str | None]]
_JSON_TYPES: Final = {
    "int": "integer", "integer": "integer", "float": "number", "number": "number", "bool": "boolean",
    "boolean": "boolean", "str": "string", "string": "string", "date": "string", "datetime": "string",
}  # fmt: skip
_BOUNDS: Final = {
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "string": ("minLength", "maxLength"),
}
_SHAPES: Final = {"type", "properties", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}


class AnswerField(Block):
    """`inference.templates[]`: a field of an answer that is a JSON object."""

    name: Text
    """Its name."""
    type: Literal["int", "integer", "float", "number", "bool", "boolean", "str", "string", "date", "datetime"] = "str"
    """Its type."""
    min: str | int | float | None = None
    """The least value; of a text its least length."""
    max: str | int | float | None = None
    """The greatest value; of a text its greatest length."""
    candidates: tuple[str | int | float | bool, ...] | None = None
    """The only values."""

    @model_validator(mode="after")
    def _fitting(self) -> AnswerField:
        faults: Faults = [
            (name, f"is no {self._bound}", f"of type {self.type}")
            for name in ("min", "max")
            if getattr(self, name) is not None and not self._fits(getattr(self, name))
        ]
        lost = [each for each in self.candidates or () if not self.holds(each)]
        if lost:
            faults.append(("candidates", f"has {show(lost[0])}, which is no {self.type}", None))
        if self.candidates is not None and not self.candidates:
            faults.append(("candidates", "has no values", "leave it out, or list some"))
        if faults:
            raise many_wrong(faults)
        return self

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of its values; bounds of dates are not in it."""
        kind = _JSON_TYPES[self.type]
        found: dict[str, Any] = {"type": kind}
        if self._is_date:
            found["format"] = "date" if self.type == "date" else "date-time"
        elif kind in _BOUNDS:
            given = zip(_BOUNDS[kind], (self.min, self.max), strict=True)
            found |= {name: value for name, value in given if value is not None}
        return found if self.candidates is None else found | {"enum": list(self.candidates)}

    def holds(self, value: Any) -> bool:
        """Whether a value is of its type, and a date between its bounds."""
        kind = _JSON_TYPES[self.type]
        if kind == "boolean":
            return isinstance(value, bool)
        if kind == "string":
            return isinstance(value, str) and (not self._is_date or self._is_between(value))
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
            return isinstance(bound, str) and self._moment(bound) is not None
        if kind == "string":
            return isinstance(bound, int) and bound >= 0
        return kind in _BOUNDS and isinstance(bound, int if kind == "integer" else int | float)

    def _moment(self, text: str) -> date | None:
        try:
            return date.fromisoformat(text) if self.type == "date" else datetime.fromisoformat(text)
        except ValueError:
            return None

    def _is_between(self, text: str) -> bool:
        found = self._moment(text)
        least, most = (self._moment(each) if isinstance(each, str) else None for each in (self.min, self.max))
        try:
            return found is not None and (least is None or found >= least) and (most is None or found <= most)
        except TypeError:  # one has a time zone, the other none
            return False


def object_schema(fields: Iterable[AnswerField]) -> dict[str, Any]:
    """Return the JSON Schema of an object that has all fields, and no others."""
    properties = {each.name: each.json_schema for each in fields}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def answer_templates(value: Any) -> Any:
    """Check `inference.templates`: a list of fields, or a JSON Schema.

    Raises:
        PydanticCustomError: If it is neither; names each fault.
    """
    return value if _is_schema(value) else _fields(value)


def _is_schema(value: Any) -> bool:
    if isinstance(value, dict) and not _SHAPES & set(value):
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
            faults.append((str(index), "must be a mapping with name", None))
        else:
            try:
                found.append(AnswerField.model_validate(as_block(AnswerField, entry)))
            except PydanticCustomError as error:
                inner: Faults = (error.context or {})["faults"]
                faults += [(f"{index}.{at}" if at else str(index), message, hint) for at, message, hint in inner]
    names = [each.name for each in found]
    faults += [(str(at), f"{show(name)} is given twice", None) for at, name in enumerate(names) if name in names[:at]]
    if faults:
        raise many_wrong(faults)
    return tuple(found)
