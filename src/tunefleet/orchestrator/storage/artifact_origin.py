"""The origin of artifacts: the task that produced them, and what it read. For lists of models and datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import tasks, workflows
from tunefleet.db.rows import ArtifactRow, DocumentRow, TaskRow
from tunefleet.orchestrator import redaction
from tunefleet.schemas.api import ArtifactOrigin
from tunefleet.spec.options.data import TrainingData

# Keys below `data` that name the rows of a training run, in the order of precedence.
_DATA_KEYS: Final = ("artifact", "dataset_name", "path", "url")
# Rows of prompt and response that are trained as plain text, with this between them by default.
_PAIR: Final = "pair"
_SEPARATOR: Final[str] = TrainingData.model_fields["separator"].default
# Campaigns submit workflows with keys that begin with their id.
_CAMPAIGN_KEY: Final = "camp-"


def origins(connection: Connection, rows: Sequence[ArtifactRow]) -> dict[str, ArtifactOrigin]:
    """Return the origins of artifacts by task id; artifacts without a task, or with a deleted one, have none."""
    found = tasks.by_ids(connection, sorted({row.task_id for row in rows if row.task_id is not None}))
    documents = tasks.documents(connection, [task.seq for task in found.values()])
    submitted = workflows.by_ids(connection, sorted({task.workflow_id for task in found.values()}))
    keys = {id_: workflow.idempotency_key or "" for id_, workflow in submitted.items()}
    return {
        id_: _origin(task, documents[task.seq], campaign=keys.get(task.workflow_id, "").startswith(_CAMPAIGN_KEY))
        for id_, task in found.items()
    }


def _origin(task: TaskRow, document: DocumentRow, *, campaign: bool) -> ArtifactOrigin:
    spec, inputs = redaction.tree(orjson.loads(document.as_run)), orjson.loads(document.inputs)
    result = _block(_block(orjson.loads(document.result) if document.result else None, "result"))
    match = _block(_block(result, "held_out"), "exact_match")
    shape = _block(result, "data").get("shape")
    return ArtifactOrigin(
        task_name=task.name,
        task_kind=task.kind,
        status=task.status,
        model=_block(_block(spec, "model"), "source"),
        data=_data(_block(spec, "data"), inputs),
        inputs={pointer: each["digest"] for pointer, each in inputs.items()},
        loads=_loaded_tasks(spec),
        eval_loss=_pair(_block(result, "losses"), "held_out_before", "held_out_after"),
        exact_match=_pair(match, "before", "after"),
        row_shape=shape,
        separator=_block(spec, "data").get("separator", _SEPARATOR) if shape == _PAIR else None,
        campaign=campaign,
    )


def _data(block: Mapping[str, Any], inputs: Mapping[str, Any]) -> str | None:
    key = next((key for key in _DATA_KEYS if block.get(key)), None)
    # A spec may name a dataset by its id.
    return None if key is None else str(_block(inputs, f"data.{key}").get("name") or block[key])


def _loaded_tasks(spec: Mapping[str, Any]) -> tuple[str, ...]:
    adapters = _block(spec, "model").get("adapters")
    load = _block(_block(spec, "checkpoint"), "load")
    blocks = [*(adapters if isinstance(adapters, list) else ()), load]
    named = [block.get("taskId") or block.get("task_id") for block in blocks if isinstance(block, Mapping)]
    return tuple(each for each in named if isinstance(each, str))


def _pair(block: Mapping[str, Any], before: str, after: str) -> tuple[float, float] | None:
    first, last = block.get(before), block.get(after)
    return (first, last) if isinstance(first, int | float) and isinstance(last, int | float) else None


def _block(value: Any, key: str | None = None) -> dict[str, Any]:
    """Return a mapping, or the mapping behind one of its keys; results of custom tasks have any shape."""
    found = value.get(key) if key is not None and isinstance(value, Mapping) else value
    return found if isinstance(found, dict) else {}
