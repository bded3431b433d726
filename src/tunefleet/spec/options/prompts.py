"""`spec.data` of tasks that process items: prompts, queries, texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from tunefleet.spec.base import (
    ABuiltinDataset,
    Block,
    NotBool,
    PositiveInt,
    Revision,
    Text,
    as_block,
    many_wrong,
    one_of,
    only,
    wrong,
)
from tunefleet.spec.expressions.graph_template import TemplateSpec

Faults = list[tuple[str, str, str | None]]
_DATASET_KEYS: Final = (
    "url", "name", "split", "column", "shuffle", "seed", "buffer_size", "revision", "trust_remote_code",
    "metadata_columns", "metadata_include_all",
)  # fmt: skip
_LIST_KEYS: Final = ("items", "metadata", "items_metadata")
_KEYS_BY_TYPE: Final = {"dataset": _DATASET_KEYS, "list": _LIST_KEYS, "graph_template": ("template",)}
_REQUIRED_KEY: Final = {"dataset": "url", "list": "items", "graph_template": "template"}
# `gpt` is the assistant's role in ShareGPT data.
_ANSWERERS: Final = frozenset({"assistant", "gpt"})


class ItemOfNode(Block):
    """`data.items[]`: a value of another task's result."""

    node: Text
    """Stage or node that produces the result; becomes a dependency of the task."""
    path: Text
    """Path in that result, such as `result.items[0].output`; `result.` is optional."""


Item = Annotated[str | ItemOfNode, one_of(ItemOfNode, str)]


def _question(value: Any) -> Any:
    """Validate an item of an inference task; a list is a chat, whose last message is answered."""
    if isinstance(value, Mapping):
        return as_block(ItemOfNode, value)
    if isinstance(value, str | ItemOfNode):
        return value
    # Only chats are left; they need at least one message.
    if not isinstance(value, list | tuple) or not value:
        raise wrong("must be a string, a list of messages, or a mapping with node and path")
    roles = [each.get("role", each.get("from")) if isinstance(each, Mapping) else None for each in value]
    for at, role in enumerate(roles):
        if not isinstance(role, str):
            raise wrong("is not a message", "a message has role and content", at=str(at))
    # A chat that ends with the model's own message leaves nothing to answer.
    if roles[-1] in _ANSWERERS:
        raise wrong("is an assistant message", "end the chat with the message to answer", at=str(len(value) - 1))
    return value


Message = dict[str, Any]
Question = Annotated[str | ItemOfNode | tuple[Message, ...], BeforeValidator(_question)]


def _echo_item(value: Any) -> Any:
    """Validate an item of an echo task: any value; a mapping with `node` refers to another task's result."""
    if isinstance(value, Mapping) and "node" in value:
        return as_block(ItemOfNode, value)
    if not _finite(value):
        raise wrong("contains a number that is not finite", "results are JSON, which has no NaN or infinity")
    return value


def _leave(key: str) -> str:
    return f"remove one of them; `{key}: null` in a stage or node removes the shared value"


def _finite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_finite(each) for each in value.values())
    if isinstance(value, list | tuple):
        return all(_finite(each) for each in value)
    return not isinstance(value, float) or math.isfinite(value)


Given = Annotated[
    str | int | float | bool | list[Any] | dict[str, Any] | ItemOfNode | None, BeforeValidator(_echo_item)
]


def _columns(value: Any) -> Any:
    """Convert a list of columns to a mapping of each to itself."""
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list | tuple):
        if not all(isinstance(name, str) and name for name in names):
            raise wrong("must be a list of columns, or a mapping `column: alias`")
        return {name: name for name in names}
    return value


class ListSpec(Block):
    """The keys of an inline list of items."""

    items: Annotated[tuple[Item, ...], Field(min_length=1)] | None = None
    """With `list`: texts, or `{node, path}` for a value of another task's result."""
    metadata: tuple[dict[str, Any], ...] | None = None
    """With `list`: metadata, one mapping per item."""
    items_metadata: tuple[dict[str, Any], ...] | None = None
    """Alias of `metadata`."""

    @model_validator(mode="after")
    def _matching(self) -> ListSpec:
        if self.metadata is not None and self.items_metadata is not None:
            raise wrong("is an alias of metadata", "remove one of them", at="items_metadata")
        for name in ("metadata", "items_metadata"):
            entries = getattr(self, name)
            if entries is not None and len(entries) != len(self.items or ()):
                raise wrong(
                    f"has {len(entries)} entries for {len(self.items or ())} items",
                    "write one mapping per item",
                    at=name,
                )
        return self


class PromptData(ListSpec):
    """`spec.data` of tasks that process items: a dataset, a list, or a text built from other tasks' results."""

    type: Literal["dataset", "list", "graph_template"]
    """Source of the items."""
    url: Annotated[Text, ABuiltinDataset] | None = None
    """With `dataset`: Hub id, local file or folder, which is uploaded with the workflow, or the URL of a file."""
    name: Text | None = None
    """With `dataset`: configuration name of a Hub dataset."""
    split: Text = "train"
    """With `dataset`: split, optionally with a slice as in `datasets`: `train[:5%]`."""
    column: Text = "text"
    """With `dataset`: column with the texts; for inference also with lists of messages."""
    shuffle: bool = False
    """With `dataset`: shuffle the rows."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1), NotBool] = 42
    """With `dataset`: random seed of the shuffle."""
    buffer_size: PositiveInt | None = None
    """With `dataset`: size of the shuffle buffer, in rows; default: all rows."""
    revision: Revision | None = None
    """With `dataset`: branch, tag or commit on the Hub."""
    trust_remote_code: Annotated[
        bool, only(False, "datasets with custom code cannot be loaded", "remove it, or use false")
    ] = False
    """Always false: the `datasets` library no longer runs dataset scripts."""
    metadata_columns: (
        Annotated[
            dict[str, Text],
            BeforeValidator(_columns),
            WithJsonSchema({"type": ["object", "array"], "additionalProperties": {"type": "string"}}),
        ]
        | None
    ) = None
    """With `dataset`: columns to keep as metadata of each item: a list, or a mapping `column: alias`."""
    metadata_include_all: bool = False
    """With `dataset`: keep all columns as metadata."""
    template: TemplateSpec | None = None
    """With `graph_template`: the template of the text."""

    @model_validator(mode="after")
    def _fitting(self) -> PromptData:
        required = _REQUIRED_KEY[self.type]
        faults: Faults = []
        if getattr(self, required) is None:
            faults.append((required, f"is required with type: {self.type}", None))
        for kind, keys in _KEYS_BY_TYPE.items():
            if kind != self.type:
                faults += [
                    (key, f"is only for type: {kind}", _leave(key))
                    for key in keys
                    # An explicit null removes a shared key, so it is not an error.
                    if key in self.model_fields_set and getattr(self, key) is not None
                ]
        if self.metadata_include_all and self.metadata_columns is not None:
            faults.append(("metadata_columns", "has no effect with metadata_include_all", "remove one of them"))
        if self.buffer_size is not None and not self.shuffle:
            faults.append(("buffer_size", "has no effect without shuffle: true", "add shuffle: true"))
        if faults:
            raise many_wrong(faults)
        return self


class InferenceData(PromptData):
    """`spec.data` of an inference task, whose items may be chats."""

    items: Annotated[tuple[Question, ...], Field(min_length=1)] | None = None  # type: ignore[assignment]  # chats, too
    """With `list`: texts, chats (lists of messages with `role` and `content`), or `{node, path}` for a value of another
    task's result."""


class EchoData(ListSpec):
    """`spec.data` of an echo task: inline items, or a text built from other tasks' results."""

    type: Literal["list", "graph_template"] = "list"
    """Source of the items."""
    items: tuple[Given, ...] | None = None  # type: ignore[assignment]  # an echo takes more than texts
    """With `list`: values of any type, or `{node, path}` for a value of another task's result."""
    template: TemplateSpec | None = None
    """With `graph_template`: the template of the text."""

    @model_validator(mode="after")
    def _fitting(self) -> EchoData:
        if self.type == "list" and self.template is not None:
            raise wrong("is only for type: graph_template", _leave("template"), at="template")
        if self.type == "graph_template" and self.template is None:
            raise wrong("is required with type: graph_template", at="template")
        if self.type == "graph_template" and self.items is not None:
            raise wrong("is only for type: list", _leave("items"), at="items")
        return self
