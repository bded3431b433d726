"""Model configurations: of built-in models, from the server's Hub cache, or from the Hub."""

from __future__ import annotations

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
from tunefleet.errors import TunefleetError
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
