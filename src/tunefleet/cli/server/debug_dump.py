"""`tunefleet debug-dump`: diagnostics in one archive, without secrets."""

from __future__ import annotations

import io
import os
import platform
import sys
import tarfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
import typer
from pydantic import BaseModel

import tunefleet
from tunefleet.cli.console import Json, print_json, say
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import connect
from tunefleet.cli.server.dump_redaction import Redactor, data_dir, loaded
from tunefleet.client import Client
from tunefleet.client.call import Call
from tunefleet.errors import MachineError, TunefleetError
from tunefleet.settings import (
    AgentSettings,
    CampaignSettings,
    ClientSettings,
    ProcessSettings,
    ServerSettings,
    TrackingSettings,
    WorkerSettings,
    load,
    load_agent,
    variables_of,
)

_PRIVATE = 0o600
# Last lines of each log.
LINES: Final = 1000
_MOST_BYTES: Final = 2 << 20
_EVENTS: Final = 250
_KNOWN: Final[dict[str, type[ProcessSettings]]] = {
    "server": ServerSettings,
    "worker": WorkerSettings,
    "client": ClientSettings,
    "campaign": CampaignSettings,
    "tracking": TrackingSettings,
}
_ASKED: Final[dict[str, tuple[str, dict[str, str | int]]]] = {
    "healthz.json": ("/healthz", {}),
    "info.json": ("/info", {}),
    "server.json": ("/server", {}),
    "storage.json": ("/storage", {}),
    "workers.json": ("/workers", {"limit": 200}),
    "tasks-newest.json": ("/tasks", {"limit": 200}),
    "tasks-queued.json": ("/tasks", {"status": "queued", "limit": 200}),
    "tasks-running.json": ("/tasks", {"status": "running", "limit": 200}),
    "workflows.json": ("/workflows", {"limit": 100}),
    "campaigns.json": ("/campaigns", {}),
    "federations.json": ("/federations", {}),
}
_OURS: Final = ("TUNEFLEET_", "OTEL_", "HF_", "CUDA_", "OMP_", "LOG_", "REDIS_", "RESULTS_", "WORKER_", "ORCHESTRATOR_")


@examples("tunefleet debug-dump", "tunefleet debug-dump /tmp/what-is-wrong.tar.gz")
def debug_dump(
    file: Annotated[
        Path | None, typer.Argument(help="Output file; default: tunefleet-debug-<time>.tar.gz in this folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Collect diagnostics into one archive.

    Contains versions, settings, the findings of `tunefleet doctor`, the server's state, queue, workers, newest
    events and metrics, and the last lines of the logs on this machine. Keys, tokens and passwords are redacted.
    Parts that could not be collected, for example because the server does not respond, are listed in missing.txt.
    """
    name = f"tunefleet-debug-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    target = file or Path(f"{name}.tar.gz")
    redactor = Redactor.of_this_machine()
    made = list(_parts())
    missing = [part for part in made if part.missing is not None]
    made.append(_missing(missing))
    try:
        _write(target, name, [part for part in made if part.missing is None], redactor)
    except OSError as error:
        raise MachineError(
            f"{target} cannot be written: {error.strerror or error}.", hint="Choose another file."
        ) from error
    if as_json:
        print_json({"file": str(target), "missing": {part.name: redactor.text(part.missing or "") for part in missing}})
        return
    say(f"Wrote {target} with {len(made) - len(missing)} files. Review it before you share it.")
    for part in missing:
        say(f"  without {part.name}: {redactor.text(part.missing or '')}", style="warn")


def _missing(parts_: list[Part]) -> Part:
    lines = [f"{part.name}: {part.missing}" for part in parts_] or ["Nothing is missing."]
    return Part("missing.txt", text="\n".join(lines) + "\n")


def _write(target: Path, folder: str, made: list[Part], redactor: Redactor) -> None:
    # Created with its mode: no other user may open it, not even while it is empty.
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE), "wb") as stream:
        # An existing file keeps its mode when it is opened.
        os.fchmod(stream.fileno(), _PRIVATE)
        with tarfile.open(fileobj=stream, mode="w:gz") as archive:
            for part in made:
                data = redactor.text(redactor.document(part.data) if part.data is not None else part.text).encode()
                entry = tarfile.TarInfo(f"{folder}/{part.name}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), _PRIVATE
                archive.addfile(entry, io.BytesIO(data))


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the archive: text or data, or the reason why it is missing."""

    name: str
    text: str = ""
    data: Any = None
    missing: str | None = None


def _parts() -> Iterator[Part]:
    """Collect every part."""
    yield _tried("about.json", _about)
    yield from (_tried(f"settings/{name}.json", partial(_settings, cls)) for name, cls in _KNOWN.items())
    yield _tried("settings/agent.json", lambda: _plain(load_agent()))
    yield _tried("environment.json", lambda: variables_of(_OURS))
    yield _tried("doctor.json", _findings)
    yield from _of_server()
    yield from _logs()


def _tried(name: str, make: Callable[[], Any]) -> Part:
    try:
        made = make()
    except (TunefleetError, OSError, ValueError) as error:
        return Part(name, missing=str(error))  # ValueError: a proxy answered with something other than JSON
    return Part(name, text=made) if isinstance(made, str) else Part(name, data=made)


def _about() -> dict[str, Any]:
    return {
        "made_at": datetime.now(UTC).isoformat(),
        "tunefleet": tunefleet.__version__,
        "python": sys.version,
        "executable": sys.executable,
        "platform": platform.platform(),
        "packages": {each.name: each.version for each in sorted(distributions(), key=lambda each: each.name.lower())},
    }


def _settings(cls: type[ProcessSettings]) -> dict[str, Any]:
    return _plain(load(cls))


def _plain(settings: BaseModel) -> dict[str, Any]:
    # `SecretStr` serializes as stars.
    return settings.model_dump(mode="json")


def _findings() -> list[dict[str, Any]]:
    from tunefleet.cli.server.checks import findings

    return [finding.model_dump(mode="json") for finding in findings()]


def _of_server() -> Iterator[Part]:
    try:
        with connect() as client:
            # Fails here if the server does not respond: one missing part instead of many.
            client.info()
            yield from (
                _tried(f"server/{name}", partial(_asked, client, path, **params))
                for name, (path, params) in _ASKED.items()
            )
            yield _tried("server/events.json", lambda: _newest_events(client))
            yield _tried("server/metrics.txt", lambda: _metrics(client, "text/plain").decode())
            yield _tried("server/metrics.json", lambda: orjson.loads(_metrics(client, "application/json")))
    except TunefleetError as error:
        yield Part("server", missing=str(error))


def _asked(client: Client, path: str, **params: str | int) -> Any:
    return client.transport.run(Call("GET", path, orjson.loads, params))


def _metrics(client: Client, accept: str) -> bytes:
    found: bytes = client.transport.run(Call("GET", f"{client.url}/metrics", bytes, headers={"Accept": accept}))
    return found


def _newest_events(client: Client) -> Any:
    """Return the newest events."""
    # The route lists from the oldest on and has no order option: find the last id by doubling, then bisection.
    known, beyond = 0, 1
    while found := _asked(client, "/events", after=beyond, limit=1):
        known = int(found[0]["id"])
        beyond = 2 * known
    while beyond - known > _EVENTS:
        middle = (known + beyond) // 2
        found = _asked(client, "/events", after=middle, limit=1)
        known, beyond = (int(found[0]["id"]), beyond) if found else (known, middle)
    return _asked(client, "/events", after=max(0, known - _EVENTS), limit=2 * _EVENTS)


def _logs() -> Iterator[Part]:
    seen: set[Path] = set()
    for path in _log_files():
        resolved = path.expanduser().absolute()
        if resolved in seen or not resolved.is_file():
            continue
        seen.add(resolved)
        yield _tried(f"logs/{len(seen)}-{resolved.name}", partial(_tail, resolved))
    if not seen:
        yield Part("logs", missing="No log file was found at the configured paths.")


def _log_files() -> Iterator[Path]:
    server, worker, agent, data = loaded(ServerSettings), loaded(WorkerSettings), _agent_or_none(), data_dir()
    for settings in (server, worker):
        if settings is not None and settings.log_file is not None:
            yield settings.log_file
    yield from sorted((data / "logs").glob("*.log"))
    yield from sorted(data.glob("*.log"))
    if worker is not None:
        yield worker.results_dir / "worker.log"
    yield from sorted(data.glob("results*/worker.log"))
    if agent is not None:
        yield agent.logs_dir / "agent.log"


def _agent_or_none() -> AgentSettings | None:
    try:
        return load_agent()
    except TunefleetError:
        return None  # reported by settings/agent.json


def _tail(path: Path) -> str:
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        # Not the resolved file: a log may be huge.
        stream.seek(max(0, size - _MOST_BYTES))
        lines = deque(stream, maxlen=LINES)
    return b"".join(lines).decode(errors="replace")
