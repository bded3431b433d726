"""Models on the Hub: search, and their configurations, also of built-in models and from the Hub cache."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final

import orjson

from tunefleet.artifacts import BlobStore
from tunefleet.client.external import hub_config
from tunefleet.db import Connection
from tunefleet.db.repositories import artifacts
from tunefleet.errors import ConflictError, TunefleetError
from tunefleet.orchestrator.access.permissions import Actor, may_submit
from tunefleet.orchestrator.context import ServerContext
from tunefleet.schemas.datasets import HubModel, HubModels
from tunefleet.settings.server import ServerSettings
from tunefleet.spec.base import BUILTIN_PREFIX

_BUILTIN: Final = "workloads/assets/models"
_NAME: Final = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
_REVISION: Final = re.compile(r"[\w.-]{1,96}")
_KEPT_S: Final = 600.0
_MOST: Final = 256
_MAX_BYTES: Final = 1 << 20
# Where a submission gives the digest of an uploaded model.
_POINTER: Final = "model.source.identifier"
# A configuration, or why there is none.
Found = Mapping[str, Any] | str
_LIMIT: Final = 12
_AT_ONCE: Final = 2


def uploaded(
    connection: Connection, project: str, tasks: Iterable[str], inputs: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[str, int]]:
    """Return digest and size of the `config.json` of models that are submitted as folders, by task."""
    found = {}
    for task in tasks:
        model = inputs.get(task, {}).get(_POINTER)
        rows = artifacts.find(connection, project=project, column="digest", value=model) if model else []
        for path, digest, size in artifacts.files(connection, rows[0].id) if rows else ():
            if path == "config.json":
                found[task] = (digest, size)
    return found


def read_uploaded(blobs: BlobStore, digest: str, size_bytes: int) -> Found:
    """Return a stored `config.json`, or why it cannot be read; blocks."""
    if size_bytes > _MAX_BYTES:
        return "its config.json is too large for a model configuration"
    try:
        found = orjson.loads(b"".join(blobs.pieces(digest)))
    except (TunefleetError, ValueError):
        return "its config.json cannot be read"
    return found if isinstance(found, dict) else "its config.json is not a model configuration"


@dataclass
class Configurations:
    """A cache of configurations and of failed lookups, with an expiry."""

    _known: dict[tuple[str, str], tuple[float, Found]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, name: str, revision: str | None, settings: ServerSettings, now: float) -> Found:
        """Return a model's configuration, or the reason why there is none; may block for some seconds."""
        if name.startswith(BUILTIN_PREFIX):
            return _shipped(name.removeprefix(BUILTIN_PREFIX))
        key = (name, revision or "main")
        with self._lock:
            # The lock is not held during the lookup, which may take seconds: two lookups of one model are harmless.
            known = self._known.get(key)
        if known is not None and now - known[0] < _KEPT_S:
            return known[1]
        found = _look_up(*key, settings)
        with self._lock:
            if len(self._known) >= _MOST:
                # A full cache is simply dropped: entries are cheap to look up again.
                self._known.clear()
            self._known[key] = (now, found)
        return found


def _shipped(name: str) -> Found:
    file = resources.files("tunefleet").joinpath(_BUILTIN, name, "config.json")
    found: dict[str, Any] = orjson.loads(file.read_bytes())
    return found


def _look_up(name: str, revision: str, settings: ServerSettings) -> Found:
    if not _NAME.fullmatch(name) or not _REVISION.fullmatch(revision):
        return "the model is a local folder, which is not on the server"
    cached = _cached(name, revision, settings)
    if cached is not None:
        return cached
    if settings.hub_offline:
        return "its configuration is not in the server's cache, and the server is offline (HF_HUB_OFFLINE)"
    url = f"{settings.hub_endpoint.rstrip('/')}/{name}/resolve/{revision}/config.json"
    try:
        return hub_config.fetch(url, settings.url_allow)
    except TunefleetError as error:
        return f"its configuration could not be fetched: {error.message.rstrip('.')}"


def _cached(name: str, revision: str, settings: ServerSettings) -> Found | None:
    home = settings.hf_home or Path("~/.cache/huggingface")
    folder = (settings.hub_cache or home / "hub").expanduser() / f"models--{name.replace('/', '--')}"
    try:
        commit = (folder / "refs" / revision).read_text(encoding="utf-8").strip()
    except OSError:
        # The revision may be a commit itself, which has no file below refs/.
        commit = revision
    try:
        found = orjson.loads((folder / "snapshots" / commit / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


@dataclass(slots=True)
class _Searches:
    """The searches of this server."""

    at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))


async def search_models(core: ServerContext, actor: Actor, text: str) -> HubModels:
    """Return text generation models on the Hub that match a text, most downloaded first.

    Raises:
        ConflictError: If the server is offline (`HF_HUB_OFFLINE`).
        UnreachableError: If the Hub does not answer within a few seconds.
    """
    may_submit(actor)
    settings = core.settings
    if settings.hub_offline:
        raise ConflictError(
            "This server cannot reach the Hugging Face Hub because HF_HUB_OFFLINE is set.",
            hint="Enter the complete id of a model that the workers have in their cache, such as Qwen/Qwen3-0.6B.",
        )
    # A slow Hub must not take all threads of the server.
    async with core.state(_Searches).at_once:
        found = await asyncio.to_thread(hub_config.search, settings.hub_endpoint, text, _LIMIT, settings.url_allow)
    return HubModels(models=tuple(hub_model(each) for each in found if isinstance(each, Mapping) and "id" in each))


def hub_model(found: Mapping[str, Any]) -> HubModel:
    """Return a model as the Hub describes it."""
    tensors, downloads = found.get("safetensors"), found.get("downloads")
    total = tensors.get("total") if isinstance(tensors, Mapping) else None
    return HubModel(
        id=str(found["id"]),
        weights=total if isinstance(total, int) and total > 0 else None,
        downloads=downloads if isinstance(downloads, int) else 0,
        # "auto" or "manual" where a person, or a program, has to agree.
        gated=bool(found.get("gated")),
    )
