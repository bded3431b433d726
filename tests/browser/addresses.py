"""The pages, each with what it shows where its part of the API has nothing, or does not give it.

A new page is added to `PAGES`; that it is accessible, fits a phone, and has a word for every state is tested with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Looked:
    """A page.

    Args:
        path: Its address below `/ui`; `{task}` and `{workflow}` are of the module's workflow, `{worker}` of its fleet.
        asks: What of the API it is about, as a glob behind `/api/v1`; nothing: it shows nothing of the API's.
        empty: Path behind `/api/v1` → an answer with nothing in it.
        words: What it says then.
    """

    path: str
    asks: str | None = None
    empty: dict[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()


_NO_POINTS = {"task_id": "t", "series": "train", "names": [], "total": 0, "points": []}
_NO_LOG = {"task_id": "t", "offset": 0, "next_offset": 0, "size_bytes": 0, "text": "", "final": True}
_NOTHING = {"tasks": {}, "workers": {}, "running": [], "queue": [], "failed": []}
_NO_COUNTS = {"total": 0, "status": {}, "kind": {}, "owner": {}, "worker_id": {}}
_TASK = "/ui/tasks/{task}"

PAGES = (
    Looked(
        "/ui/",
        "/overview",
        {"/overview": _NOTHING, "/workers*": {"items": []}},
        ("Nothing is running", "Queue is empty", "No workers yet"),
    ),
    Looked("/ui/tasks", "/tasks?*", {"/tasks?*": {"items": []}, "/tasks/counts*": _NO_COUNTS}, ("No runs yet",)),
    Looked(f"{_TASK}?tab=log", "/tasks/{task}", {"/tasks/*/log?*": _NO_LOG}, ("No log lines yet",)),
    Looked(
        f"{_TASK}?tab=files",
        "/tasks/*/checkpoints",
        {"/tasks/*/checkpoints": [], "/tasks/*/artifacts*": {"items": []}},
        ("No checkpoints yet", "No artifacts yet"),
    ),
    Looked(f"{_TASK}?tab=spec"),
    Looked(f"{_TASK}?tab=history", "/events?*"),
    Looked("/ui/compare?tasks={task},none", "/tasks/none"),
    Looked("/ui/compare", words=("No runs selected",)),
    Looked("/ui/new"),
    Looked("/ui/new?template=lora_sft"),
    Looked("/ui/workflows/{workflow}", "/workflows/{workflow}"),
    Looked("/ui/datasets"),
    Looked("/ui/models", "/artifacts?*", {"/artifacts?*": {"items": []}}, ("No models yet",)),
    Looked("/ui/playground"),
    Looked("/ui/federations", "/federations?*", {"/federations?*": {"items": []}}, ("No federations yet",)),
    Looked("/ui/campaigns", "/campaigns?*", {"/campaigns?*": {"items": []}}, ("No campaigns yet",)),
    Looked("/ui/workers", "/workers?*", {"/workers?*": {"items": []}}),
    Looked("/ui/workers/{worker}", "/workers?*"),
    Looked("/ui/federations/none", "/federations/none"),
    Looked("/ui/campaigns/none", "/campaigns/none"),
    Looked("/ui/settings"),
    Looked("/ui/docs/"),
    Looked("/ui/docs/how-to/join-a-worker"),
)
