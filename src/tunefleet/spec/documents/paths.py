"""Which values of a spec may be files on the machine that submits, and which a worker fetches. Looks at no disk."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tunefleet.spec.base import BUILTIN_PREFIX, is_hub_name, is_url, is_written_as_path
from tunefleet.spec.options.checkpoint import CheckpointLoadSpec
from tunefleet.spec.options.generation import RewardModelSpec
from tunefleet.spec.options.prompts import PromptData
from tunefleet.spec.options.rows import DataSource, JsonlFile
from tunefleet.spec.tasks.command import CommandSpec
from tunefleet.spec.tasks.data_task import DataTaskSpec
from tunefleet.spec.tasks.evaluate_task import EvaluateTaskSpec
from tunefleet.spec.tasks.item_tasks import AnsweringTaskSpec
from tunefleet.spec.tasks.merge_task import MergeTaskSpec
from tunefleet.spec.tasks.retrieval import INDEX, RagIndexTaskSpec, RagTaskSpec
from tunefleet.spec.tasks.task_types import BaseTaskSpec
from tunefleet.spec.tasks.training_tasks import ModelTrainingSpec

# Key of a job's inputs under which the database of an index task lies.
DATABASE: Final = "qdrant"

PathRole = Literal["dataset", "model", "file"]


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A value that may be, or must be, a local path.

    Args:
        pointer: Dotted path below `spec`, such as `data.path`; the key of `SubmitRequest.inputs`.
        role: What it is used as.
        required: Whether it can only be a local path; otherwise it may also be a hub id, and is a local path if it
            looks like one or exists beside the document.
        elsewhere: Whether it may be a path on the worker, too, or another place is named beside it; then it travels
            only if it exists beside the document.
    """

    pointer: str
    value: str
    role: PathRole
    required: bool
    elsewhere: bool = False

    @property
    def looks_local(self) -> bool:
        """Whether it is written as a path: it starts with `./`, `../`, `/` or `~`."""
        return is_written_as_path(self.value)


@dataclass(frozen=True, slots=True)
class WorkerPath:
    """A value that names something on the worker's disk.

    Args:
        pointer: Dotted path below `spec`.
        value: The path as written, without `file://`.
        beside: Pointers of other places that are named beside it: one of them will do.
        maybe_hub_name: Whether it may be the name of a repository of the hub as well.
    """

    pointer: str
    value: str
    beside: tuple[str, ...] = ()
    maybe_hub_name: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """Something that the worker fetches before the task runs.

    Args:
        pointer: Dotted path below `spec`; the key of the job's `inputs` under which it then lies.
        url: The address; None if it is a file of a task.
        task_id: The task whose file it is, if there is no address.
        filename: Which of its files; by default its model or adapter.
        base_url: The server that has it; by default the one that placed the task.
        headers: Sent with the request.
        timeout_s: Seconds to wait for an answer.
    """

    pointer: str
    url: str | None = None
    task_id: str | None = None
    filename: str | None = None
    base_url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class NamedTask:
    """A task whose model, adapter or file a spec names.

    Args:
        pointer: Dotted path below `spec` of the key that names it.
        alone: Whether no other place is named beside it.
    """

    pointer: str
    task_id: str
    alone: bool


# May be the name of a hub, or of a folder on the worker that looks like one, such as `task-ID/final_lora`.
_OF_ADAPTERS: Final = "model.adapters.*.path"
# Pointer, role, whether it can only be a local path.
_PLACES: Final[tuple[tuple[str, PathRole, bool], ...]] = (
    ("model.source.identifier", "model", False),
    ("model.tokenizer", "model", False),
    (_OF_ADAPTERS, "model", False),
    ("reward_model.identifier", "model", False),
    ("embedding.model", "model", False),
    ("qdrant.path", "dataset", True),
    ("data.dataset_name", "dataset", False),
    ("data.url", "dataset", False),
    ("data.path", "dataset", True),
    ("data.jsonl_path", "dataset", True),
    ("data.jsonl.path", "dataset", True),
    ("data.eval.path", "dataset", True),
    ("training.deepspeed", "file", True),
    ("training.resume_from_path", "model", True),
    ("checkpoint.load.path", "model", True),
    ("checkpoint.load.uri", "model", True),
    ("evaluations.*.data.dataset_name", "dataset", False),
    ("evaluations.*.data.path", "dataset", True),
    ("evaluations.*.data.jsonl_path", "dataset", True),
    ("evaluations.*.data.jsonl.path", "dataset", True),
    ("evaluations.*.data.eval.path", "dataset", True),
    ("evaluations.*.include_path", "dataset", True),
    ("sources.*.dataset_name", "dataset", False),
    ("sources.*.path", "dataset", True),
    ("sources.*.jsonl_path", "dataset", True),
    ("sources.*.jsonl.path", "dataset", True),
    ("steps.*.filter.tokenizer", "model", False),
    ("preview.model", "model", False),
    ("steps.*.convert.tokenizer", "model", False),
    ("workdir", "file", True),
    ("files.*", "file", True),
)
# Pointer → keys beside it that name another place.
_BESIDE: Final[dict[str, tuple[str, ...]]] = {
    "data.jsonl.path": ("url", "download_url", "worker_path"),
    "evaluations.*.data.jsonl.path": ("url", "download_url", "worker_path"),
    "sources.*.jsonl.path": ("url", "download_url", "worker_path"),
    "data.jsonl.worker_path": ("url", "download_url", "path"),
    "evaluations.*.data.jsonl.worker_path": ("url", "download_url", "path"),
    "sources.*.jsonl.worker_path": ("url", "download_url", "path"),
    "checkpoint.load.path": ("taskId", "task_id", "url"),
    "checkpoint.load.uri": ("taskId", "task_id", "url"),
    _OF_ADAPTERS: ("taskId", "task_id", "url"),
}
# The same, of values that never travel: what they name lies on the worker.
_WORKER_PLACES: Final[tuple[tuple[str, PathRole, bool], ...]] = (
    ("data.jsonl.worker_path", "dataset", True),
    ("evaluations.*.data.jsonl.worker_path", "dataset", True),
    ("sources.*.jsonl.worker_path", "dataset", True),
    ("model.vllm.download_dir", "file", True),
)
# Where a link to a file of a task may stand.
_LINKS: Final = (
    "data.path", "data.jsonl_path", "data.jsonl.path", "data.jsonl.url", "data.jsonl.download_url", "data.eval.path",
    "data.url", "model.adapters.*.url", "checkpoint.load.path", "checkpoint.load.url",
    "evaluations.*.data.path", "evaluations.*.data.jsonl_path", "evaluations.*.data.jsonl.path",
    "evaluations.*.data.jsonl.url", "evaluations.*.data.jsonl.download_url",
    "sources.*.path", "sources.*.jsonl_path", "sources.*.jsonl.path", "sources.*.jsonl.url",
    "sources.*.jsonl.download_url", "files.*",
)  # fmt: skip
_LINK: Final = re.compile(r"/api/v1/results/(?P<task>task-[^/?#]+)/files/")
_ON_WORKER: Final = frozenset({"checkpoint.load.path", "checkpoint.load.uri", "training.resume_from_path"})
"""Where an absolute path may be one of a mount that only the workers have."""


def local_paths(spec: BaseTaskSpec | Mapping[str, Any]) -> list[LocalPath]:
    """Return the values that may be local paths, in the order of the document's blocks.

    Args:
        spec: A task, or the mapping below its `spec`, which may have references (`TaskNode.raw`). Left out are
            references, `builtin:` names, addresses and paths on the worker.
    """
    data = spec.model_dump(mode="json", by_alias=True, exclude_unset=True) if isinstance(spec, BaseTaskSpec) else spec
    found = []
    for places, role, required in _PLACES:
        for pointer, value, around in values_at(data, places):
            if not isinstance(value, str) or _travels_not(value):
                continue
            elsewhere = places.startswith("model.adapters") or any(around.get(key) for key in _BESIDE.get(places, ()))
            elsewhere = elsewhere or (places in _ON_WORKER and value.startswith("/"))
            found.append(LocalPath(pointer, value, role, required and not elsewhere, elsewhere))
    return found


def worker_paths(spec: Mapping[str, Any]) -> list[WorkerPath]:
    """Return the values that a worker would look for on its own disk, unless something was uploaded in their place.

    Args:
        spec: The mapping below `spec`, without references. Left out are `builtin:` names, addresses and names of a
            hub.
    """
    found = []
    for places, _, required in (*_PLACES, *_WORKER_PLACES):
        for pointer, value, around in values_at(spec, places):
            if not isinstance(value, str) or value.startswith(BUILTIN_PREFIX) or is_url(value):
                continue
            block, path = pointer.rpartition(".")[0], value.removeprefix("file://")
            beside = tuple(f"{block}.{key}" for key in _BESIDE.get(places, ()) if around.get(key))
            named = is_hub_name(path) and not required
            if required or is_written_as_path(path) or places == _OF_ADAPTERS:
                found.append(WorkerPath(pointer, path, beside, maybe_hub_name=named))
    return found


def named_tasks(spec: Mapping[str, Any]) -> list[NamedTask]:
    """Return the tasks of the server that places a task whose files the task loads: by id, or by a link to a file.

    Args:
        spec: The mapping below `spec`. Left out are references, which are known once they are resolved, and tasks of
            another server (`base_url`).
    """
    found = []
    for places in ("model.adapters.*", "reward_model", "checkpoint.load", "qdrant"):
        for pointer, value, _ in values_at(spec, places):
            if not isinstance(value, Mapping) or value.get("base_url") is not None:
                continue
            key = "taskId" if value.get("taskId") is not None else "task_id"
            named = value.get(key)
            if isinstance(named, str) and "${" not in named:
                alone = all(value.get(other) is None for other in ("path", "uri", "url"))
                found.append(NamedTask(f"{pointer}.{key}", named, alone))
    for places in _LINKS:
        for pointer, value, _ in values_at(spec, places):
            link = _LINK.search(value) if isinstance(value, str) and is_url(value) else None
            if link is not None:
                found.append(NamedTask(pointer, link["task"], alone=False))
    return found


def fetches(spec: BaseTaskSpec) -> list[Fetch]:
    """Return what the worker fetches, in the order of the document's blocks; local places have precedence over it.

    Args:
        spec: A task without references.
    """
    found = _fetched_rows(spec)
    if isinstance(spec, CommandSpec):
        found += [Fetch(f"files.{index}", each) for index, each in enumerate(spec.files) if is_url(each)]
    if isinstance(spec, AnsweringTaskSpec | MergeTaskSpec):
        for index, adapter in enumerate(spec.model.adapters):
            if adapter.task_id is not None or adapter.url is not None:
                url = None if adapter.task_id is not None else adapter.url
                headers = adapter.headers or {}
                found.append(Fetch(f"model.adapters.{index}", url, adapter.task_id, headers=headers))
    judge = getattr(spec, "reward_model", None)
    if isinstance(judge, RewardModelSpec) and judge.task_id is not None:
        found.append(Fetch("reward_model.identifier", None, judge.task_id))
    start = spec.start if isinstance(spec, ModelTrainingSpec | AnsweringTaskSpec | MergeTaskSpec) else None
    if start is not None:
        found += _fetched_weights(start)
    if isinstance(spec, RagTaskSpec | RagIndexTaskSpec) and spec.qdrant.task_id is not None:
        found.append(Fetch(DATABASE, None, spec.qdrant.task_id, INDEX))
    return found


def _fetched_rows(spec: BaseTaskSpec) -> list[Fetch]:
    if isinstance(spec, ModelTrainingSpec):
        return _fetched_for_training(spec)
    found: list[Fetch] = []
    items = getattr(spec, "data", None)
    if isinstance(items, PromptData) and items.url is not None and is_url(items.url):
        found.append(Fetch("data.url", items.url))
    if isinstance(spec, DataTaskSpec):
        for index, source in enumerate(spec.sources):
            found += _from_addresses(source.at(index), source.jsonl)
    if isinstance(spec, EvaluateTaskSpec):
        for index, each in enumerate(spec.evaluations):
            found += [] if each.data is None else _from_addresses(each.data.at(index), each.data.jsonl)
    return found


def _fetched_for_training(spec: ModelTrainingSpec) -> list[Fetch]:
    found = _from_addresses(spec.data.sources, spec.data.jsonl)
    held_out = spec.data.eval
    if held_out is not None and held_out.path is not None and is_url(held_out.path):
        found.append(Fetch("data.eval.path", held_out.path))
    return found


def _from_addresses(places: Sequence[DataSource], jsonl: object) -> list[Fetch]:
    ask: dict[str, Any] = {}
    if isinstance(jsonl, JsonlFile):
        ask = {"headers": jsonl.request_headers, "timeout_s": jsonl.timeout_s}
    return [Fetch(each.pointer, each.value, **ask) for each in places if each.kind == "url"]


def _fetched_weights(load: CheckpointLoadSpec) -> list[Fetch]:
    ask: dict[str, Any] = {"headers": load.headers or {}, "timeout_s": load.timeout_s}
    if load.place is not None and is_url(load.place):
        return [Fetch("checkpoint.load", load.place, **ask)]
    if load.task is not None:
        return [Fetch("checkpoint.load", None, load.task, load.filename, load.base_url, **ask)]
    return [] if load.url is None else [Fetch("checkpoint.load", load.url, **ask)]


def values_at(data: Any, places: str) -> list[tuple[str, Any, Mapping[str, Any]]]:
    """Return the values at a path whose `*` stands for each entry of a list, with their paths and what is around them.

    Args:
        data: The mapping below `spec`.
        places: The dotted path.
    """
    found: list[tuple[tuple[str, ...], Any, Mapping[str, Any]]] = [((), data, {})]
    for key in places.split("."):
        deeper: list[tuple[tuple[str, ...], Any, Mapping[str, Any]]] = []
        for path, value, around in found:
            if key == "*" and isinstance(value, list | tuple):
                deeper += [((*path, str(index)), entry, around) for index, entry in enumerate(value)]
            elif isinstance(value, Mapping) and key in value:
                deeper.append(((*path, key), value[key], value))
        found = deeper
    return [(".".join(path), value, around) for path, value, around in found]


def _travels_not(value: str) -> bool:
    return value.startswith((BUILTIN_PREFIX, "{", "file://")) or "${" in value or is_url(value)
