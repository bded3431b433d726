"""Result keys of each task type, so that a wrong reference fails at the submit and not after the task has run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tunefleet.spec.expressions.placeholders import Reference
from tunefleet.spec.value_preview import nearest
from tunefleet.validation_errors import show

_MAX_SHOWN: Final = 12
_ARCHIVE: Final = ("", "_path", "_url", "_bytes", "_uploaded")


def _product(name: str) -> tuple[str, ...]:
    return (f"{name}_path", *(f"{name}_archive{end}" for end in _ARCHIVE))


_PRODUCTS: Final = (*_product("final_lora"), *_product("final_model"))
_TRAINING: Final = (
    "task_id", "training_successful", "error_message", "model_name", "output_dir", "checkpoints_dir",
    "training_time_seconds", "timings", "dataset_size", "resume_from_path", "steps", "epochs", "data", "used",
    "overrides", "memory", "throughput", *_PRODUCTS,
)  # fmt: skip
_SUPERVISED: Final = (*_TRAINING, "losses", "held_out", "tokens")
_BY_ANOTHER_TRAINER: Final = ("metrics", "trainer", "stopped_early")

# Task type → keys of its result. `python` and `command` are missing: they may return any keys.
RESULT_KEYS: Final[Mapping[str, frozenset[str]]] = {
    kind: frozenset(keys)
    for kinds, keys in (
        (("echo",), ("ok", "echo", "items", "count")),
        (("sft", "lora_sft"), (*_SUPERVISED, *_BY_ANOTHER_TRAINER)),
        (("dpo", "kto", "orpo", "reward", "grpo", "rloo"), _SUPERVISED),
        (("ppo",), (*_TRAINING, "rewards", "kl", "held_out_rewards", "early_stopped", "reward_model", "samples")),
        (("inference",), ("ok", "task_id", "model", "engine", "items", "count", "usage", "warning", "jsonl_export")),
        (("chat",), ("ok", "model", "models", "ended", "turns", "usage")),
        (("serve",), ("ok", "model", "models", "endpoint", "ended")),
        (("embedding",), ("ok", "executor", "model", "library", "normalized", "vectors", "items", "usage")),
        (("rag",), ("ok", "executor", "qdrant", "embedding", "search", "queries", "usage")),
        (("rag_index",), ("ok", "executor", "qdrant", "embedding", "documents", "chunks", "points", "usage")),
        (
            ("merge",),
            (
                "task_id", "merged", "into", "model_name", "output_dir", *_PRODUCTS, "parents", "vocabulary",
                "verification", "gguf", "modelfile", "timings", "tensors", "shards", "dtypes", "parameters",
                "tied_embeddings", "method", "rank", "error_of_sum",
            ),
        ),
        (
            ("verify",),
            (
                "ok", "task_id", "model_name", "commit", "files", "size_bytes", "parameters", "dtypes", "vocabulary",
                "forward", *_PRODUCTS,
            ),
        ),
        (("push",), ("ok", "task_id", "to", "url", "commit", "files", "size_bytes", "digest", "card_written")),
        (
            ("evaluate",),
            (
                "ok", "task_id", "model_name", "checkpoint", "adapters", "metrics", "passed", "gates", "fingerprint",
                "evaluations", "device", "versions",
            ),
        ),
        (("api",), ("ok", "executor", "status_code", "json", "text", "usage", "items")),
        (
            ("data",),
            ("ok", "rows", "bad_rows", "files", "steps", "recognised", "preview", "usage", "jsonl_export"),
        ),
    )
    for kind in kinds
}  # fmt: skip
# Keys of the results of sharded tasks, and of tasks with missing outputs.
_OF_ANY: Final = frozenset({"parts", "warnings"})
# Task type and key → the block that the key requires.
_ONLY_WITH: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("merge", "gguf"): ("merge", "gguf"),
    ("merge", "modelfile"): ("merge", "gguf"),
    ("inference", "jsonl_export"): ("postprocess", "jsonl_export"),
    ("inference", "jsonl_export_path"): ("postprocess", "jsonl_export"),
}
# Keys with scalar values, for all task types.
_SINGLE: Final = frozenset({
    "count", "task_id", "model_name", "training_time_seconds", "dataset_size", "output_dir", "checkpoints_dir",
    "epochs", *_PRODUCTS,
})  # fmt: skip
# Keys whose value has the same type in all task types, with an example.
_EXAMPLES: Final[Mapping[str, Any]] = {
    "task_id": "task-000000000000", "model_name": "name", "output_dir": "/folder", "checkpoints_dir": "/folder",
    "count": 1, "dataset_size": 1, "training_time_seconds": 1.0, "losses": {}, "timings": {}, "usage": {},
    "metrics": {}, "items": [],
    **{
        f"{name}{end}": value
        for name in ("final_lora", "final_model")
        for end, value in (
            ("_path", "/folder"), ("_archive", "https://host/x.tar.gz"), ("_archive_url", "https://host/x.tar.gz"),
            ("_archive_path", "/folder/x.tar.gz"), ("_archive_bytes", 1), ("_archive_uploaded", True),
        )
    },
}  # fmt: skip
_LOSSES: Final = frozenset({"train_first", "train_last", "held_out_before", "held_out_after", "held_out_best"})
# Task type and key → the keys below it; for a list, of each entry.
_BELOW: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("echo", "items"): frozenset({"index", "output"}),
    ("sft", "losses"): _LOSSES,
    ("lora_sft", "losses"): _LOSSES,
    ("inference", "items"): frozenset({
        "index", "prompt", "output", "finish_reason", "messages", "metadata", "error", "choices", "logprobs", "parsed",
    }),
    ("inference", "usage"): frozenset({
        "prompt_tokens", "completion_tokens", "total_tokens", "latency_sec", "num_requests", "computed", "resumed",
        "deduplicated", "failed", "aborted", "invalid",
    }),
}  # fmt: skip
# Keys below `spec` that accept a path, a name or a task id.
_LOADS: Final = frozenset({("checkpoint", "load"), ("model", "adapters"), ("reward_model", "taskId")})
_PATHS: Final = frozenset({("data", "path"), ("model", "source", "identifier"), ("training", "resume_from_path")})

# Task types that save a model or an adapter.
_SAVES: Final = frozenset({"sft", "lora_sft", "dpo", "kto", "orpo", "reward", "grpo", "rloo", "ppo"})


def fault_of(reference: Reference, upstream: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return why a reference cannot have a value, and a fix; `None` if it may have one.

    Args:
        reference: Into the result of `upstream`.
        upstream: The mapping below `spec` of that task, as written.
    """
    kind = upstream.get("taskType")
    keys = RESULT_KEYS.get(kind) if isinstance(kind, str) else None
    # Without known keys nothing can be checked; the table does not cover federated tasks.
    if keys is None or len(reference.path) < 2 or reference.path[0] != "result" or upstream.get("federation"):
        return None
    key = reference.path[1]
    if key not in keys | _OF_ANY:
        guess = "items[0].output" if key == "output" and "items" in keys else nearest(key, sorted(keys))
        shown = sorted(keys - set(_PRODUCTS))
        more = ", …" if len(shown) > _MAX_SHOWN else ""
        hint = f"did you mean {guess}?" if guess else f"it has {', '.join(shown[:_MAX_SHOWN])}{more}"
        return (
            f"{reference.text} has no value: the result of {_article(str(kind))} {kind} task has no {show(key)}",
            hint,
        )
    wanted = _ONLY_WITH.get((str(kind), key))
    if wanted is not None and _within(upstream, *wanted) is None:
        block = ".".join(wanted)
        return f"{reference.text} has no value: {reference.node} has no {block}", f"add {block} to {reference.node}"
    return _fault_below(reference, str(kind)) or _product_fault(reference, key, str(kind), upstream)


def _fault_below(reference: Reference, kind: str) -> tuple[str, str] | None:
    key, *rest = reference.path[1:]
    # List indexes are skipped: the known keys are those of the entries.
    below = next((part for part in rest if not part.isdecimal()), None)
    if rest and key in _SINGLE:
        return f"{reference.text} has no value: {key} is a single value", f"write {reference.node}.{key}"
    known = _BELOW.get((kind, key))
    if below is None or known is None or below in known:
        return None
    guess = nearest(below, sorted(known))
    hint = f"did you mean {guess}?" if guess else f"it has {', '.join(sorted(known))}"
    return f"{reference.text} has no value: {key} of {_article(kind)} {kind} task has no {show(below)}", hint


def example_of(reference: Reference, upstream: Mapping[str, Any]) -> Any:
    """Return an example with the type of a reference's value; `None` if unknown.

    Args:
        reference: Into the result of `upstream`.
        upstream: The mapping below `spec` of that task, as written.
    """
    path = reference.path
    own = path == ("task_id",) or (len(path) == 2 and path[0] == "result")
    return _EXAMPLES.get(path[-1]) if own and upstream.get("taskType") in RESULT_KEYS else None


def misplaced(
    where: Sequence[str | int], reference: Reference, before: str, upstream: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Return why a referenced value does not fit its key, and a fix; `None` if it may fit.

    Args:
        where: Path of the key below `spec`.
        reference: The reference, into the result of `upstream`.
        before: The text before it in the same value.
        upstream: The mapping below `spec` of that task, as written.
    """
    kind = upstream.get("taskType")
    loads = tuple(where[:2]) in _LOADS or tuple(where) in _PATHS
    named = reference.path == ("task_id",) or (len(reference.path) == 2 and reference.path[0] == "result")
    if not loads or not named or kind not in RESULT_KEYS:
        return None
    key, product = reference.path[-1], _made(str(kind), upstream) or "final_model"
    is_address = key.endswith(("_archive", "_archive_url"))
    match "path" if tuple(where) in _PATHS else str(where[-1]):
        case "url" | "uri" if before.startswith(("http://", "https://")):
            return None
        case "url" | "uri" if before or not is_address:
            return (
                f"{before}{reference.text} is not a URL: {where[-1]} must start with http:// or https://",
                f"write ${{{reference.node}.{product}_archive}}, or load it with taskId: ${{{reference.node}.task_id}}",
            )
        case "taskId" | "task_id" if key != "task_id" or kind not in {*_SAVES, "merge", "verify"}:
            what = "produces no model" if key == "task_id" else "is not a task id"
            return f"{reference.text} {what}", "refer to a stage that trains or merges: taskId: ${STAGE.task_id}"
        case "path" if is_address or key == "task_id" or key.endswith("_bytes"):
            return (
                f"{reference.text} is not a path",
                f"write ${{{reference.node}.{product}_path}}, or use url or taskId",
            )
    return None


def _article(kind: str) -> str:
    return "an" if kind[0] in "aeio" else "a"


def _product_fault(reference: Reference, key: str, kind: str, upstream: Mapping[str, Any]) -> tuple[str, str] | None:
    name = next((each for each in ("final_lora", "final_model") if key.startswith(each)), None)
    made = _made(kind, upstream)
    if name is None or made is None:
        return None
    # A task creates either an adapter or a model.
    if name != made:
        return f"{reference.text} has no value: {reference.node} produces {made}", f"write {key.replace(name, made)}"
    training = upstream.get("training")
    if isinstance(training, Mapping) and training.get("save_model") is False:
        return f"{reference.text} has no value: {reference.node} saves no model", "remove training.save_model: false"
    if "_archive" in key and not _archives(name, upstream.get("output")):
        hint = f"add `output: {{ artifacts: [{name}.tar.gz] }}` to {reference.node}, or load it with taskId"
        return f"{reference.text} has no value: {reference.node} creates no archive", hint
    return None


def _made(kind: str, upstream: Mapping[str, Any]) -> str | None:
    """Return which of the two products a task creates; `None` if unknown."""
    if kind == "merge":
        into = _within(upstream, "merge", "into") or "base"
        return {"base": "final_model", "adapter": "final_lora"}.get(into) if isinstance(into, str) else None
    if kind == "verify":
        return "final_model"
    if kind not in _SAVES:
        return None
    return "final_lora" if kind == "lora_sft" or upstream.get("lora") is not None else "final_model"


def _within(data: Any, *path: str) -> Any:
    """Return a value in nested mappings; `None` if it does not exist."""
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _archives(name: str, output: Any) -> bool:
    """Whether an archive is created; like `OutputSpec.wants_archive`, for unvalidated data."""
    if not isinstance(output, Mapping):
        return False
    destination, artifacts = output.get("destination"), output.get("artifacts")
    type_ = destination.get("type") if isinstance(destination, Mapping) else None
    listed: Sequence[Any] = artifacts if isinstance(artifacts, list) else (artifacts,)
    return (isinstance(type_, str) and ("${" in type_ or type_ in {"http", "s3"})) or f"{name}.tar.gz" in listed
