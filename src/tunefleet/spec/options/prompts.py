"""`spec.data` of a task that goes through items one by one: prompts, queries, texts."""

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
_OF_DATASETS: Final = (
    "url", "name", "split", "column", "shuffle", "seed", "buffer_size", "revision", "trust_remote_code",
    "metadata_columns", "metadata_include_all",
)  # fmt: skip
_OF_LISTS: Final = ("items", "metadata", "items_metadata")
_KEYS: Final = {"dataset": _OF_DATASETS, "list": _OF_LISTS, "graph_template": ("template",)}
_NEEDED: Final = {"dataset": "url", "list": "items", "graph_template": "template"}


class ItemOfNode(Block):
    """`data.items[]`: a value of another task's result."""

    node: Text
    """Stage or node whose result it comes from; the task depends on it."""
    path: Text
    """Path in that result, such as `result.items[0].output`; `result.` may be left out."""


Item = Annotated[str | ItemOfNode, one_of(ItemOfNode, str)]


def _question(value: Any) -> Any:
    """Check an item of an inference: a list is a chat, whose last message is answered."""
    if isinstance(value, Mapping):
        return as_block(ItemOfNode, value)
    if isinstance(value, str | ItemOfNode):
        return value
    if not isinstance(value, list | tuple) or not value:
        raise wrong("must be a text, a list of messages, or a mapping with node, path")
    roles = [each.get("role", each.get("from")) if isinstance(each, Mapping) else None for each in value]
    for at, role in enumerate(roles):
        if not isinstance(role, str):
            raise wrong("is no message", "a message has role and content", at=str(at))
    if roles[-1] in _ANSWERERS:
        raise wrong("is the model's own answer", "end the chat with what is to be answered", at=str(len(value) - 1))
    return value


_ANSWERERS: Final = frozenset({"assistant", "gpt"})
Message = dict[str, Any]
Question = Annotated[str | ItemOfNode | tuple[Message, ...], BeforeValidator(_question)]


def _given_back(value: Any) -> Any:
    """Check what an echo gives back: anything; a mapping with `node` names a value of another task's result."""
    if isinstance(value, Mapping) and "node" in value:
        return as_block(ItemOfNode, value)
    if not _finite(value):
        raise wrong("has a number that is not finite", "results are JSON, which knows none")
    return value


def _leave(key: str) -> str:
    return f"leave one of them out; `{key}: null` in a stage or node drops what all share"


def _finite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_finite(each) for each in value.values())
    if isinstance(value, list | tuple):
        return all(_finite(each) for each in value)
    return not isinstance(value, float) or math.isfinite(value)


Given = Annotated[
    str | int | float | bool | list[Any] | dict[str, Any] | ItemOfNode | None, BeforeValidator(_given_back)
]


def _columns(value: Any) -> Any:
    """Take a list of columns for a mapping of each to itself."""
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list | tuple):
        if not all(isinstance(name, str) and name for name in names):
            raise wrong("must be a list of columns, or a mapping `column: alias`")
        return {name: name for name in names}
    return value


class ListSpec(Block):
    """The keys of a list of texts."""

    items: Annotated[tuple[Item, ...], Field(min_length=1)] | None = None
    """With `list`: texts, or `{node, path}` for a value of another task's result."""
    metadata: tuple[dict[str, Any], ...] | None = None
    """With `list`: one mapping an item."""
    items_metadata: tuple[dict[str, Any], ...] | None = None
    """The same as `metadata`."""

    @model_validator(mode="after")
    def _matching(self) -> ListSpec:
        if self.metadata is not None and self.items_metadata is not None:
            raise wrong("means the same as metadata", "leave one of them out", at="items_metadata")
        for name in ("metadata", "items_metadata"):
            notes = getattr(self, name)
            if notes is not None and len(notes) != len(self.items or ()):
                raise wrong(
                    f"has {len(notes)} entries for {len(self.items or ())} items", "one mapping an item", at=name
                )
        return self


class PromptData(ListSpec):
    """`spec.data` of a task that goes through items: a dataset, a list, or a text made of other tasks' results."""

    type: Literal["dataset", "list", "graph_template"]
    """Where the items come from."""
    url: Annotated[Text, ABuiltinDataset] | None = None
    """With `dataset`: hub id, a local file or folder, which travels with the submit, or the address of a file."""
    name: Text | None = None
    """With `dataset`: configuration of a hub dataset."""
    split: Text = "train"
    """With `dataset`: split, with the hub's slices: `train[:5%]`."""
    column: Text = "text"
    """With `dataset`: column with the texts; of an inference also with lists of messages."""
    shuffle: bool = False
    """With `dataset`: take the rows in random order."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1), NotBool] = 42
    """With `dataset`: seed of that order."""
    buffer_size: PositiveInt | None = None
    """With `dataset`: rows among which the next one is drawn; by default all."""
    revision: Revision | None = None
    """With `dataset`: branch, tag or commit of a hub dataset."""
    trust_remote_code: Annotated[
        bool, only(False, "datasets that run code of their own cannot be loaded", "leave it out, or write false")
    ] = False
    """Always false: the `datasets` library no longer runs a dataset's own code."""
    metadata_columns: (
        Annotated[
            dict[str, Text],
            BeforeValidator(_columns),
            WithJsonSchema({"type": ["object", "array"], "additionalProperties": {"type": "string"}}),
        ]
        | None
    ) = None
    """With `dataset`: columns that are kept beside each item: a list, or a mapping `column: alias`."""
    metadata_include_all: bool = False
    """With `dataset`: keep all columns."""
    template: TemplateSpec | None = None
    """With `graph_template`: how the text is made."""

    @model_validator(mode="after")
    def _fitting(self) -> PromptData:
        needed = _NEEDED[self.type]
        faults: Faults = []
        if getattr(self, needed) is None:
            faults.append((needed, f"is required with type: {self.type}", None))
        for kind, keys in _KEYS.items():
            if kind != self.type:
                faults += [
                    (key, f"belongs to type: {kind}", _leave(key))
                    for key in keys
                    if key in self.model_fields_set and getattr(self, key) is not None
                ]
        if self.metadata_include_all and self.metadata_columns is not None:
            faults.append(("metadata_columns", "has no effect with metadata_include_all", "leave one of them out"))
        if self.buffer_size is not None and not self.shuffle:
            faults.append(("buffer_size", "has no effect without shuffle: true", "add shuffle: true"))
        if faults:
            raise many_wrong(faults)
        return self


class InferenceData(PromptData):
    """`spec.data` of an inference, whose items may be chats."""

    items: Annotated[tuple[Question, ...], Field(min_length=1)] | None = None  # type: ignore[assignment]  # chats, too
    """With `list`: texts, lists of messages (`role`, `content`) of which the last is answered, or `{node, path}` for a
    value of another task's result."""


class EchoData(ListSpec):
    """`spec.data` of an echo: texts, written here or made of other tasks' results."""

    type: Literal["list", "graph_template"] = "list"
    """Where the items come from."""
    items: tuple[Given, ...] | None = None  # type: ignore[assignment]  # an echo takes more than texts
    """With `list`: texts, numbers, mappings, anything; or `{node, path}` for a value of another task's result."""
    template: TemplateSpec | None = None
    """With `graph_template`: how the text is made."""

    @model_validator(mode="after")
    def _fitting(self) -> EchoData:
        if self.type == "list" and self.template is not None:
            raise wrong("belongs to type: graph_template", _leave("template"), at="template")
        if self.type == "graph_template" and self.template is None:
            raise wrong("is required with type: graph_template", at="template")
        if self.type == "graph_template" and self.items is not None:
            raise wrong("belongs to type: list", _leave("items"), at="items")
        return self
