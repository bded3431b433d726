"""Errors and warnings that apply at the submit only.

These errors were not checked in earlier releases; tasks that were stored then continue to run unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tunefleet.errors import Fault
from tunefleet.spec.documents.nodes import TaskNode
from tunefleet.spec.expressions.placeholders import rooted
from tunefleet.spec.expressions.references import texts_with
from tunefleet.spec.expressions.result_keys import fault_of
from tunefleet.spec.tasks.base_task import BaseTaskSpec
from tunefleet.spec.tasks.training_tasks import ModelTrainingSpec
from tunefleet.spec.text import dotted
from tunefleet.validation_errors import cut, show

# All repetitions are bounded, so that matching takes time linear in the text.
_BRACES: Final = re.compile(r"\{\{[ \t]{0,20}([^{}\s][^{}\r\n]{0,399})\}\}")
# Maximum number of warnings per workflow file.
_MAX_WARNINGS: Final = 20


def new_faults(tasks: Iterable[tuple[TaskNode, BaseTaskSpec | None]]) -> list[Fault]:
    """Find values that new tasks must not have.

    Args:
        tasks: Tasks, each with its spec as far as known.
    """
    listed = list(tasks)
    found = [
        node.fault(
            "resources.nodes",
            "cannot be combined with on_lost: wait: the other nodes stop when a worker is lost",
            "remove on_lost: all nodes resume from the newest uploaded checkpoint, without using up a retry",
        )
        for node, spec in listed
        if spec is not None and spec.on_lost == "wait" and spec.resources.most_nodes > 1
    ]
    return found + [
        node.fault(
            "training.fp16" if spec.training.fp16 else "model.config.fp16",
            "contradicts resources.hardware.gpu.count: 0, since fp16 requires a GPU",
            "remove one of them",
        )
        for node, spec in listed
        if isinstance(spec, ModelTrainingSpec) and spec.fp16 and spec.devices.count == 0
    ]


def remarks(tasks: Iterable[tuple[TaskNode, BaseTaskSpec | None]]) -> list[str]:
    """Return a warning for each value that is valid but probably a mistake.

    Args:
        tasks: All tasks of the file, each with its spec as far as known.
    """
    listed = list(tasks)
    nodes = {node.name: node for node, _ in listed}
    found = [
        each
        for node, spec in listed
        for each in (*_braces(node, nodes), *_unknown_artifacts(node, spec), *_without_effect(node))
    ]
    more = len(found) - _MAX_WARNINGS
    return [*found[:_MAX_WARNINGS], f"{more} more warnings are not shown."] if more > 0 else found


def _braces(node: TaskNode, nodes: Mapping[str, TaskNode]) -> Iterator[str]:
    """Find references in the syntax of other systems, which are used as literal text here."""
    for where, text in texts_with("{{", node.raw):
        for match in _BRACES.finditer(text):
            meant = match[1].rstrip()
            first = re.split(r"[.\[]", meant, maxsplit=1)
            if len(first) == 2 and first[0] in nodes:
                written = _as_reference(meant, nodes[first[0]])
                place = f"{node.name}: spec.{dotted(where)}"
                yield f"{place} contains {cut(match[0])}, which is not replaced; write the reference as {written}."


def _as_reference(meant: str, upstream: TaskNode) -> str:
    """Return the valid reference that is closest to the text."""
    first_output = (f"{upstream.name}.items[0].output",) if meant.endswith("output") else ()
    for path in (meant, *first_output):
        found = rooted(path, (upstream.name,))
        if found is not None and fault_of(found, upstream.raw) is None:
            return f"${{{path}}}"
    return f"${{{upstream.name}.result.KEY}}"


def _without_effect(node: TaskNode) -> Iterator[str]:
    model = node.raw.get("model")
    vllm = model.get("vllm") if isinstance(model, Mapping) else None
    if isinstance(vllm, Mapping) and vllm.get("release_after_run") is True:
        warning = "spec.model.vllm.release_after_run has no effect"
        yield f"{node.name}: {warning}; an engine is unloaded when its memory is needed."


def _unknown_artifacts(node: TaskNode, spec: BaseTaskSpec | None) -> Iterator[str]:
    if spec is None or type(spec) is BaseTaskSpec:  # the outputs are known only when the references are resolved
        return
    left = spec.left
    for name in spec.output.artifacts:
        if name not in left:
            yield (
                f"{node.name}: spec.output.artifacts lists {show(name)}, which {spec.task_type} tasks do not create "
                f"automatically; they create {', '.join(left)}."
            )
