"""Values of a spec that may be files on the submitting machine, and those that a worker fetches. Does no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tunefleet.spec.base import BUILTIN_PREFIX, is_hub_name, is_url, is_written_as_path
from tunefleet.spec.options.checkpoint_storage import CheckpointLoadSpec
from tunefleet.spec.options.generation import RewardModelSpec
from tunefleet.spec.options.prompts import PromptData
from tunefleet.spec.options.rows import DataSource, JsonlFile
from tunefleet.spec.tasks.command import CommandSpec
from tunefleet.spec.tasks.data_task import DataTaskSpec
from tunefleet.spec.tasks.evaluate_task import EvaluateTaskSpec
from tunefleet.spec.tasks.item_tasks import AnsweringTaskSpec
from tunefleet.spec.tasks.merge_task import MergeTaskSpec
from tunefleet.spec.tasks.push_task import PushTaskSpec
from tunefleet.spec.tasks.retrieval import INDEX, RagIndexTaskSpec, RagTaskSpec
from tunefleet.spec.tasks.task_types import BaseTaskSpec
from tunefleet.spec.tasks.training_tasks import ModelTrainingSpec

# Key of a job's inputs for the database of an index task.
DATABASE: Final = "qdrant"
# Key of a job's inputs for the result of the task whose files it publishes.
RESULT: Final = "checkpoint.result"

PathRole = Literal["dataset", "model", "file"]
# May be a Hub id, or a folder on the worker that looks like one, such as `task-ID/final_lora`.
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
# Pointer → sibling keys with alternative sources.
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
# The same for values that are never uploaded: they refer to the worker's disk.
_WORKER_PLACES: Final[tuple[tuple[str, PathRole, bool], ...]] = (
    ("data.jsonl.worker_path", "dataset", True),
    ("evaluations.*.data.jsonl.worker_path", "dataset", True),
    ("sources.*.jsonl.worker_path", "dataset", True),
    ("model.vllm.download_dir", "file", True),
)
# Keys that may contain a link to a file of a task.
_LINKS: Final = (
    "data.path", "data.jsonl_path", "data.jsonl.path", "data.jsonl.url", "data.jsonl.download_url", "data.eval.path",
    "data.url", "model.adapters.*.url", "checkpoint.load.path", "checkpoint.load.url",
    "evaluations.*.data.path", "evaluations.*.data.jsonl_path", "evaluations.*.data.jsonl.path",
    "evaluations.*.data.jsonl.url", "evaluations.*.data.jsonl.download_url",
    "sources.*.path", "sources.*.jsonl_path", "sources.*.jsonl.path", "sources.*.jsonl.url",
    "sources.*.jsonl.download_url", "files.*",
)  # fmt: skip
_LINK: Final = re.compile(r"/api/v1/results/(?P<task>task-[^/?#]+)/files/")
# Keys whose absolute path may be on a mount that only the workers have.
_ON_WORKER: Final = frozenset({"checkpoint.load.path", "checkpoint.load.uri", "training.resume_from_path"})


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A value that may be, or must be, a local path.

    Args:
        pointer: Dotted path below `spec`, such as `data.path`; the key of `SubmitRequest.inputs`.
        role: What it is used for.
        required: Whether it can only be a local path; otherwise it may also be a Hub id, and counts as a local path if
            it looks like one or exists next to the workflow file.
        elsewhere: Whether it may also be a path on the worker, or an alternative source is given; then it is uploaded
            only if it exists next to the workflow file.
    """

    pointer: str
    value: str
    role: PathRole
    required: bool
    elsewhere: bool = False

    @property
    def looks_local(self) -> bool:
        """Whether it starts with `./`, `../`, `/` or `~`."""
        return is_written_as_path(self.value)


@dataclass(frozen=True, slots=True)
class WorkerPath:
    """A value that refers to the worker's disk.

    Args:
        pointer: Dotted path below `spec`.
        value: The path as written, without `file://`.
        beside: Pointers of alternative sources, one of which is sufficient.
        maybe_hub_name: Whether it may also be a Hub repository.
    """

    pointer: str
    value: str
    beside: tuple[str, ...] = ()
    maybe_hub_name: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """A download of the worker before the task runs.

    Args:
        pointer: Dotted path below `spec`; also its key in the job's `inputs`.
        url: The URL; `None` for a file of a task.
        task_id: The task of the file, if there is no URL.
        filename: Name of the file; default: the task's model or adapter.
        base_url: The server that has it; default: the server of the task.
        headers: HTTP headers of the request.
        timeout_s: Request timeout, in seconds.
        optional: Whether the task runs without it.
    """

    pointer: str
    url: str | None = None
    task_id: str | None = None
    filename: str | None = None
    base_url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0
    optional: bool = False


@dataclass(frozen=True, slots=True)
class NamedTask:
    """A task whose model, adapter or file a spec refers to.

    Args:
        pointer: Dotted path below `spec` of the key that names it.
        alone: Whether there is no alternative source.
    """

    pointer: str
    task_id: str
    alone: bool


def local_paths(spec: BaseTaskSpec | Mapping[str, Any]) -> list[LocalPath]:
    """Return the values that may be local paths, in the order of the blocks.

    Args:
        spec: A task, or the mapping below its `spec`, which may have references (`TaskNode.raw`). References,
            `builtin:` names, URLs and paths on the worker are skipped.
    """
    data = spec.model_dump(mode="json", by_alias=True, exclude_unset=True) if isinstance(spec, BaseTaskSpec) else spec
    found = []
    # Table order is also the order of messages and uploads.
    for places, role, required in _PLACES:
        for pointer, value, around in values_at(data, places):
            if not isinstance(value, str) or _is_never_uploaded(value):
                continue
            elsewhere = places.startswith("model.adapters") or any(around.get(key) for key in _BESIDE.get(places, ()))
            elsewhere = elsewhere or (places in _ON_WORKER and value.startswith("/"))
            found.append(LocalPath(pointer, value, role, required and not elsewhere, elsewhere))
    return found


def worker_paths(spec: Mapping[str, Any]) -> list[WorkerPath]:
    """Return the values that a worker would look up on its own disk, unless a file was uploaded for them.

    Args:
        spec: The mapping below `spec`, without references. `builtin:` names, URLs and Hub ids are skipped.
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
    """Return the tasks on this server whose files a task loads: by id, or by a link to a file.

    Args:
        spec: The mapping below `spec`. References, which are not resolved yet, and tasks of another server
            (`base_url`) are skipped.
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
    """Return the downloads of the worker, in the order of the blocks; local sources take precedence.

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
    reward = getattr(spec, "reward_model", None)
    if isinstance(reward, RewardModelSpec) and reward.task_id is not None:
        found.append(Fetch("reward_model.identifier", None, reward.task_id))
    loads = ModelTrainingSpec | AnsweringTaskSpec | MergeTaskSpec | PushTaskSpec
    start = spec.start if isinstance(spec, loads) else None
    if start is not None:
        found += _fetched_weights(start)
    if isinstance(spec, PushTaskSpec) and spec.start.task is not None and spec.start.base_url is None:
        found.append(Fetch(RESULT, None, spec.start.task, "responses.json", optional=True))
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
            found += _from_urls(source.at(index), source.jsonl)
    if isinstance(spec, EvaluateTaskSpec):
        for index, each in enumerate(spec.evaluations):
            found += [] if each.data is None else _from_urls(each.data.at(index), each.data.jsonl)
    return found


def _fetched_for_training(spec: ModelTrainingSpec) -> list[Fetch]:
    found = _from_urls(spec.data.sources, spec.data.jsonl)
    eval_set = spec.data.eval
    if eval_set is not None and eval_set.path is not None and is_url(eval_set.path):
        found.append(Fetch("data.eval.path", eval_set.path))
    return found


def _from_urls(places: Sequence[DataSource], jsonl: object) -> list[Fetch]:
    request: dict[str, Any] = {}
    if isinstance(jsonl, JsonlFile):
        request = {"headers": jsonl.request_headers, "timeout_s": jsonl.timeout_s}
    return [Fetch(each.pointer, each.value, **request) for each in places if each.kind == "url"]


def _fetched_weights(load: CheckpointLoadSpec) -> list[Fetch]:
    request: dict[str, Any] = {"headers": load.headers or {}, "timeout_s": load.timeout_s}
    if load.place is not None and is_url(load.place):
        return [Fetch("checkpoint.load", load.place, **request)]
    if load.task is not None:
        return [Fetch("checkpoint.load", None, load.task, load.filename, load.base_url, **request)]
    return [] if load.url is None else [Fetch("checkpoint.load", load.url, **request)]


def values_at(data: Any, places: str) -> list[tuple[str, Any, Mapping[str, Any]]]:
    """Return the values at a path, in which `*` matches all list entries, with their paths and parents.

    Args:
        data: The mapping below `spec`.
        places: The dotted path pattern.
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


def _is_never_uploaded(value: str) -> bool:
    return value.startswith((BUILTIN_PREFIX, "{", "file://")) or "${" in value or is_url(value)
