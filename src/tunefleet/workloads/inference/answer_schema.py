"""JSON answers: parsed, and validated against the schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs

from tunefleet.errors import InputError
from tunefleet.spec.options.answer_schema import AnswerField
from tunefleet.spec.options.generation import InferenceSpec


class AnswerSchema:
    """The schema of the answers."""

    def __init__(self, inference: InferenceSpec) -> None:
        templates = inference.templates
        self._fields = {each.name: each for each in templates} if isinstance(templates, tuple) else {}
        try:
            self._validator = jsonschema_rs.validator_for(inference.json_schema or {}, validate_formats=True)
        except (ValueError, jsonschema_rs.ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"spec.inference.templates is not a JSON Schema: {reason}") from error

    def parse(self, answer: str, finish_reason: str) -> tuple[Any, str | None]:
        """Parse and validate an answer; return the value and the error."""
        try:
            found = json.loads(answer)
        except ValueError as error:
            cut = " It was truncated: raise inference.max_tokens." if finish_reason == "length" else ""
            return None, f"The answer is not JSON: {error}.{cut}"
        # One error is enough for the message.
        fault = next(self._validator.iter_errors(found), None)
        if fault is not None:
            where = ".".join(str(part) for part in fault.instance_path)
            return found, f"The answer does not match the schema{f' at {where}' if where else ''}: {fault.message}."
        field = self._out_of_bounds(found)
        return found, None if field is None else f"The answer does not match the schema at {field}: out of bounds."

    def _out_of_bounds(self, found: Any) -> str | None:
        if not isinstance(found, dict):
            return None
        fields: dict[str, AnswerField] = self._fields
        return next((name for name, field in fields.items() if not field.holds(found.get(name))), None)
