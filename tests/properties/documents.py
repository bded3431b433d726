"""The workflows that the queue's machine submits, and what the model is told of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.properties.model import Task

Node = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """A document and its tasks.

    Args:
        nodes: Its tasks in order.
        tasks: Makes the model's task of each: ids of all in, one task out; null where the model does not follow it.
    """

    nodes: tuple[Node, ...]
    tasks: Callable[[list[str]], list[Task]] | None

    @property
    def text(self) -> str:
        """The document."""
        spec = {"graph": {"nodes": self.nodes}}
        return json.dumps({"apiVersion": "tunefleet/v1", "metadata": {"name": "any"}, "spec": spec})


def node(name: str, *upstream: str, kind: str = "echo", **spec: Any) -> Node:
    """A task of a document."""
    data = {"type": "list", "items": [name]} if kind in {"echo", "inference"} else {"prompts": ["one", "two"]}
    model = {} if kind == "echo" else {"model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}}}
    return {"name": name, "dependsOn": list(upstream), "spec": {"taskType": kind, "data": data, **model, **spec}}


def _chain(ids: list[str]) -> list[Task]:
    a, b, c = ids
    return [Task(a), Task(b, (a,)), Task(c, (b,), kind="lora_sft")]


def _diamond(ids: list[str]) -> list[Task]:
    a, b, c, d = ids
    return [Task(a), Task(b, (a,), wants=True), Task(c, (a,)), Task(d, (b, c))]


OK = {"node": "a", "field": "result.ok", "equals": True}
SHAPES: dict[str, Shape] = {
    "echo": Shape((node("a"),), lambda ids: [Task(ids[0])]),
    "train": Shape((node("a", kind="lora_sft"),), lambda ids: [Task(ids[0], kind="lora_sft")]),
    "waits": Shape(
        (node("a", kind="lora_sft", on_lost="wait"),), lambda ids: [Task(ids[0], on_lost="wait", kind="lora_sft")]
    ),
    "once": Shape((node("a", retry={"max_attempts": 1}),), lambda ids: [Task(ids[0], max_attempts=1)]),
    "eager": Shape(
        (node("a", kind="lora_sft", retry={"max_attempts": 2, "backoff_s": 0}),),
        lambda ids: [Task(ids[0], max_attempts=2, backoff_s=0.0, kind="lora_sft")],
    ),
    "limited": Shape((node("a", limits={"max_queue_s": 9, "max_runtime_s": 5}),), lambda ids: [Task(ids[0])]),
    "chain": Shape((node("a"), node("b", "a"), node("c", "b", kind="lora_sft")), _chain),
    "diamond": Shape((node("a"), node("b", "a", condition=OK), node("c", "a"), node("d", "b", "c")), _diamond),
    "gang": Shape((node("a", kind="lora_sft", resources={"nodes": 2, "hardware": {"gpu": {"count": 0}}}),), None),
    "asked": Shape((node("a", kind="inference"),), None),
    "spread": Shape(
        (
            node("a", data={"type": "list", "items": list("abcd")}, parallel={"enabled": True, "max_shards": 2}),
            node("b", "a"),
        ),
        None,
    ),
}
