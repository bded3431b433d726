"""Warm engines of this machine: processes that keep a model loaded and outlive the job that loaded it.

Files of an engine in the user's socket folder: `engine-<key>.sock`, `.json` (identity), `.lock` (held while it runs),
`.log`. A process that needs its GPUs or its memory requests its end; an idle engine ends immediately. The engine itself
is in `workloads.engine`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tunefleet.errors import MachineError
from tunefleet.runtime.warm.client import socket_folder
from tunefleet.settings import inherited_environment
from tunefleet.trainer_control import process_identity
from tunefleet.trainer_control.files import read_json

logger = logging.getLogger(__name__)

_ANSWER_S: Final = 5.0
_END_S: Final = 10.0
_LOOK_S: Final = 0.02
_OURS: Final = "TUNEFLEET_"
_KEPT: Final = ("TUNEFLEET_ENVS_DIR",)
_MAX_LINE_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A running engine.

    Args:
        base: Path of its files, without a suffix.
        started_at: Start time of its process, to detect a reused pid.
        site: Endpoint folder of the supervisor that uses it.
    """

    base: Path
    pid: int
    started_at: float | None
    gpus: tuple[str, ...]
    site: str
    model: str
    digest: str

    @property
    def alive(self) -> bool:
        """Whether it is running."""
        return self.started_at is not None and process_identity.process_started_at(self.pid) == self.started_at


def base_of(gpus: Sequence[str], site: str, apart: str = "") -> Path:
    """Return the path of an engine's files, without a suffix: one per set of GPUs, on a CPU one per site.

    Raises:
        MachineError: If the folder belongs to another user.
    """
    text = json.dumps([sorted(gpus) or site, apart])
    return socket_folder() / f"engine-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def environment(gpus: Sequence[str]) -> dict[str, str]:
    """Return the environment of an engine: this process's, without keys, secrets and Tunefleet's own variables."""
    inherited = inherited_environment()
    found = {name: value for name, value in inherited.items() if not name.startswith(_OURS) or name in _KEPT}
    found["TOKENIZERS_PARALLELISM"] = "false"
    return {**found, "CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else found


def running() -> Iterator[EngineProcess]:
    """Yield the running engines of this user."""
    try:
        folder = socket_folder()
    except MachineError as error:
        logger.warning("Could not list engines: %s", error)
        return
    for path in folder.glob("engine-*.json"):
        facts = read_json(path)
        if facts is None or facts.get("boot_id") != process_identity.boot_id():
            continue
        found = EngineProcess(
            path.with_suffix(""),
            int(facts["pid"]),
            facts.get("process_started_at"),
            tuple(facts.get("gpus") or ()),
            str(facts.get("site")),
            str(facts.get("model")),
            str(facts.get("digest")),
        )
        if found.alive:
            yield found


def connect(base: Path) -> socket.socket | None:
    """Return a connection to an engine of this user; None if none listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(base.with_suffix(".sock")))
        if peer_uid(connection) != os.geteuid():
            raise PermissionError("it belongs to another user")
    except OSError as error:
        logger.debug("No engine listens at %s: %s", base.name, error)
        connection.close()
        return None
    return connection


def peer_uid(connection: socket.socket) -> int:
    """Return the user id of the process at the other end."""
    uid: int = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    return uid


def leave(engine: EngineProcess, *, patience_s: float = 0.0, force: bool = False) -> bool:
    """Request the end of an engine; returns whether it has ended.

    Args:
        patience_s: How long to wait for a busy engine.
        force: End it with SIGTERM if it is still busy.
    """
    deadline = time.monotonic() + patience_s
    while (answer := _ask(engine.base)) is not None and answer.get("busy"):
        if time.monotonic() >= deadline:
            if not force:
                return False
            break
        time.sleep(_LOOK_S * 5)
    if answer is None or answer.get("busy"):
        if not (force or answer is None):
            return False
        _signal(engine, signal.SIGTERM)
    return _gone(engine)


def end_idle(site: str | None = None) -> None:
    """End idle engines."""
    for engine in running():
        if (site is None or engine.site == site) and leave(engine):
            logger.info("Ended the engine of %s", engine.model)


def free_gpus(gpus: Sequence[str], *, wants_engine: bool) -> None:
    """End the engines on GPUs that are allocated to a job, except for one that the job can use."""
    if not gpus:
        return
    for engine in running():
        if not set(engine.gpus) & set(gpus) or (wants_engine and set(engine.gpus) == set(gpus)):
            continue
        logger.info("Ending the engine of %s: its GPU is allocated to a job", engine.model)
        # Forced: the GPU is allocated to the job, so no other job may use the engine.
        leave(engine, patience_s=_ANSWER_S, force=True)


def is_one(pids: Sequence[int], gpu: str | None = None) -> bool:
    """Return whether one of these processes is an engine of this user."""
    return any(engine.pid in pids and (gpu is None or gpu in engine.gpus) for engine in running())


def is_on(gpu: str) -> bool:
    """Return whether an engine of this user uses a GPU."""
    return any(gpu in engine.gpus for engine in running())


def _ask(base: Path) -> dict[str, Any] | None:
    connection = connect(base)
    if connection is None:
        return None
    with connection:
        connection.settimeout(_ANSWER_S)
        try:
            connection.sendall(b'{"op": "leave"}\n')
            line = connection.makefile("rb").readline(_MAX_LINE_BYTES)
            answer = json.loads(line) if line else {}
        except (OSError, ValueError) as error:
            logger.debug("The engine at %s does not respond: %s", base.name, error)
            return None
    return answer if isinstance(answer, dict) else None


def _gone(engine: EngineProcess) -> bool:
    deadline = time.monotonic() + _END_S
    while engine.alive:
        if time.monotonic() > deadline:
            logger.warning("Killing the engine of %s (pid %d), which does not exit", engine.model, engine.pid)
            _signal(engine, signal.SIGKILL)
            return True
        time.sleep(_LOOK_S)
    return True


def _signal(engine: EngineProcess, number: int) -> None:
    if engine.alive:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(engine.pid, number)
