"""What a push task knows of the files that it publishes: base model, method, runs, results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tunefleet.integrations.publishing.card import Lineage, figures_of
from tunefleet.schemas.job_folder import Job
from tunefleet.spec.base import is_written_as_path
from tunefleet.spec.documents.paths import RESULT
from tunefleet.spec.tasks.push_task import PushTaskSpec

_ADAPTER: Final = "adapter_config.json"
_MAX_BYTES: Final = 16 << 20


def lineage_of(spec: PushTaskSpec, job: Job, source: Path, digest: str) -> Lineage:
    """Return the lineage of the files to publish.

    Args:
        source: File or folder to publish.
        digest: Its digest.
    """
    adapter = _json(source / _ADAPTER)
    run = spec.start.task
    # A local path takes precedence over the task, whose result then describes other files.
    known = run is not None and spec.start_pointer not in job.inputs and RESULT in job.inputs
    result = _result(Path(job.inputs[RESULT])) if known else {}
    parents = _mapping(result.get("parents"))
    merged = [_mapping(parents.get("base")), *(_mapping(each) for each in parents.get("adapters") or ())]
    ids = [*([run] if run is not None else []), *(each["task_id"] for each in merged if each.get("task_id"))]
    kind = "adapter" if adapter else "gguf" if _is_gguf(source) else "model"
    return Lineage(
        title=spec.push.to.rstrip("/").rpartition("/")[2],
        kind=kind,
        base=_base(result, adapter),
        artifact=spec.start.filename or source.name,
        digest=digest,
        method=_method(adapter),
        runs=dict.fromkeys(ids, "published run") | dict.fromkeys(ids[1:], "merged into it"),
        figures=[] if run is None else figures_of(run, result),
    )


def _is_gguf(source: Path) -> bool:
    return source.suffix == ".gguf" or (source.is_dir() and next(source.glob("*.gguf"), None) is not None)


def _base(result: Mapping[str, Any], adapter: Mapping[str, Any]) -> str | None:
    base = result.get("model_name") or adapter.get("base_model_name_or_path")
    # A path tells nothing outside of the machine that it is on.
    return base if isinstance(base, str) and base and not is_written_as_path(base) else None


def _method(adapter: Mapping[str, Any]) -> str | None:
    rank, alpha = adapter.get("r"), adapter.get("lora_alpha")
    if adapter.get("peft_type") != "LORA" or not isinstance(rank, int):
        return None
    name = "DoRA" if adapter.get("use_dora") else "LoRA"
    return f"{name}, rank {rank}" + (f", alpha {alpha:g}" if isinstance(alpha, int | float) else "")


def _result(path: Path) -> Mapping[str, Any]:
    """Return the result of a task; the server adds an envelope to the file that the task wrote."""
    found = _json(path)
    return _mapping(found["result"]) if "result" in found else found


def _json(path: Path) -> Mapping[str, Any]:
    """Return a JSON object; an empty one if the file is missing or is something else."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            return {}
        return _mapping(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
