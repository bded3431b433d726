"""A task in the words of the protocol. Pure."""

from __future__ import annotations

from typing import Any


def settings_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the training parameters of a registration; whatever was sent in their place is none."""
    config = body.get("config")
    found = config.get("training") if isinstance(config, dict) else None
    return found if isinstance(found, dict) else {}


def state_of(status: str) -> str:
    """Return a task's status in the words of the protocol."""
    return {"dispatched": "pending", "pending": "queued", "skipped": "completed"}.get(status, status)


def model_of(spec: dict[str, Any]) -> str | None:
    """Return which model a spec names."""
    source = (spec.get("model") or {}).get("source") or {}
    name = source.get("identifier")
    return name if isinstance(name, str) else None


def dataset_of(spec: dict[str, Any]) -> str | None:
    """Return which data a spec names."""
    data = spec.get("data") or {}
    jsonl = data.get("jsonl") or {}
    found = (
        *(data.get(name) for name in ("dataset_name", "path", "artifact", "jsonl_path")),
        *(jsonl.get(name) for name in ("path", "worker_path")),
    )
    return next((name for name in found if isinstance(name, str)), None)
