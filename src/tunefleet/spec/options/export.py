"""`spec.postprocess`: export of the answers of an inference task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from tunefleet.spec.base import Block, RelativePath, Text, as_block, many_wrong, one_of_words, wrong
from tunefleet.validation_errors import show

ExportOrigin = Literal["literal", "prompt", "output", "metadata", "item"]


class ExportField(Block):
    """A field of an exported JSONL line."""

    origin: Annotated[ExportOrigin, BeforeValidator(one_of_words({}))] | None = Field(default=None, alias="from")
    """Source of the value: the prompt, the output, a key of the item's metadata or of the item, or a literal."""
    source: Annotated[ExportOrigin, BeforeValidator(one_of_words({}))] | None = None
    """Alias of `from`."""
    key: Text | None = None
    """Key in `metadata` or `item`."""
    value: str | int | float | bool | None = None
    """Value of a `literal`."""
    literal: str | int | float | bool | None = None
    """Alias of `value`."""
    fallback: Annotated[Any, WithJsonSchema({"type": ["string", "object"]})] = None
    """Field to use if this one has no value."""
    default: str | int | float | bool | None = None
    """Default if neither field has a value."""

    @model_validator(mode="after")
    def _consistent(self) -> ExportField:
        origin = self.origin or self.source
        value = self.value if self.value is not None else self.literal
        leave = "leave one of them out"
        checks: tuple[tuple[bool, str, str, str | None], ...] = (
            (origin is None, "from", "is required", "one of literal, prompt, output, metadata, item"),
            (None not in (self.origin, self.source), "source", "is an alias of from", leave),
            (None not in (self.value, self.literal), "literal", "is an alias of value", leave),
            (origin in {"metadata", "item"} and self.key is None, "key", f"is required with from: {origin}", None),
            (
                origin in {"literal", "prompt", "output"} and self.key is not None,
                "key",
                f"has no effect with from: {origin}",
                leave,
            ),
            (origin == "literal" and value is None, "value", "is required with from: literal", None),
            (origin != "literal" and value is not None, "value", f"has no effect with from: {origin}", "use default"),
        )
        faults = [(at, message, hint) for failed, at, message, hint in checks if failed]
        # The fallback is a field itself; it is validated here, since the annotation is `Any`.
        if not faults and self.fallback is not None:
            _export_field(self.fallback)
        if faults:
            raise many_wrong(faults)
        return self

    @property
    def kind(self) -> ExportOrigin | None:
        """The source of the value from either spelling."""
        return self.origin or self.source

    @property
    def text(self) -> str | int | float | bool | None:
        """The value of a literal from either spelling."""
        return self.value if self.value is not None else self.literal

    @property
    def other(self) -> ExportField | None:
        """The fallback field, parsed."""
        if self.fallback is None:
            return None
        return ExportField.model_validate(_export_field(self.fallback), by_alias=True, by_name=False)


def _export_field(value: Any) -> Any:
    """Expand `prompt`, `output`, `metadata.KEY` and `item.KEY` to mappings; any other string is a literal."""
    if isinstance(value, ExportField):
        return value
    if isinstance(value, Mapping):
        return as_block(ExportField, value)
    if not isinstance(value, str):
        raise wrong("must be a string, or a mapping with from")
    # A string such as `metadata.KEY` is a reference, any other one a literal.
    head, dot, key = value.partition(".")
    if value in {"prompt", "output"}:
        return {"from": value}
    if head in {"metadata", "item"} and dot and key:
        return {"from": head, "key": key}
    return {"from": "literal", "value": value}


class JsonlExportSpec(Block):
    """`postprocess.jsonl_export`: a JSONL file with all answers, usable as training data."""

    path: RelativePath
    """File in the task's folder, such as `artifacts/pairs.jsonl`."""
    fields: Annotated[dict[str, Annotated[ExportField, BeforeValidator(_export_field)]], Field(min_length=1)]
    """Field name → value: `prompt`, `output`, `metadata.KEY`, `item.KEY`, a literal, or a mapping."""
    required_fields: tuple[Text, ...] = ()
    """Fields that must have a value in every line; otherwise the task fails."""

    @model_validator(mode="after")
    def _known(self) -> JsonlExportSpec:
        unknown = [
            (f"required_fields.{index}", f"{show(name)} is not one of fields", "add it to fields")
            for index, name in enumerate(self.required_fields)
            if name not in self.fields
        ]
        if unknown:
            raise many_wrong(unknown)
        return self


class PostprocessSpec(Block):
    """`spec.postprocess`: export of the answers."""

    jsonl_export: JsonlExportSpec | None = None
    """JSONL file with all answers."""
