"""Nodes of a Ray cluster: a job of its Jobs API holds a placement group, and starts a command in each bundle.

The job runs `tunefleet.workloads.ray_nodes` in Ray's environment. What it is told holds a key, so it does not go
the way of a job's variables, which Ray shows to everybody who may look, and writes into logs: it lies in the head's
memory until the program takes it.
"""

from __future__ import annotations

import math
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from tunefleet.errors import ConflictError
from tunefleet.integrations.clusters.base import Ask, Cluster, Seen
from tunefleet.integrations.clusters.ray_http import RayJobs
from tunefleet.integrations.clusters.ray_order import ENDED, HOPELESS, KEY, LASTING, RUNNING, SERVER, WAITING, pack

PROGRAM: Final = "tunefleet.workloads.ray_nodes"
_OVER: Final = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
_AFTER_GRACE_S: Final = 20
"""The program ends what runs on the nodes after the grace, and then itself; Ray kills it after this."""
_NOT_FOUND: Final = 127


class Ray(Cluster):
    """A Ray cluster that is there, reached by its dashboard.

    Args:
        address: Of the dashboard, such as `http://head:8265`.
        token: The cluster's token; None if it asks for none.
    """

    def __init__(self, address: str, token: str | None, *, python: str = "python", timeout_s: float = 30.0) -> None:
        self._jobs = RayJobs(address, token, timeout_s=timeout_s)
        self._python = python
        self._running: set[str] = set()

    def close(self) -> None:
        """Close the connections."""
        self._jobs.close()

    def submit(self, ask: Ask) -> str:
        """Start the job that takes the nodes; its name is that of the ask."""
        known = self._jobs.job(ask.name)
        if known is not None and known.get("status") not in _OVER:
            return ask.name
        if known is not None:
            self._jobs.forget(ask.name)
        package = f"_tunefleet_{secrets.token_hex(16)}.zip"
        self._jobs.store(package, pack(ask))
        command = (self._python, "-m", PROGRAM, f"gcs://{package}")
        self._jobs.submit(
            {
                "submission_id": ask.name,
                "entrypoint": f"exec {shlex.join(command)}",
                "runtime_env": {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(math.ceil(ask.grace_s) + _AFTER_GRACE_S)}},
            }
        )
        return ask.name

    def look(self, names: Sequence[str]) -> dict[str, Seen]:
        """Ask for each job."""
        found = {name: self._jobs.job(name) for name in names}
        self._running -= {name for name, job in found.items() if job is None}
        return {name: self._seen(name, job) for name, job in found.items() if job is not None}

    def cancel(self, name: str) -> None:
        """Stop the job: its program passes SIGTERM on, and kills after the grace of the ask."""
        self._jobs.stop(name)

    def _seen(self, name: str, job: dict[str, Any]) -> Seen:
        status, message = str(job.get("status")), str(job.get("message") or "")
        if status in _OVER:
            self._running.discard(name)
        if status == "SUCCEEDED":
            return Seen(name, "ended")
        if status == "STOPPED":
            return Seen(name, "ended", "The job was stopped on the Ray cluster.", withdrawn=True)
        if status == "FAILED":
            return _failed(name, message, job.get("driver_exit_code"), self._python)
        if status == "PENDING":
            return Seen(name, "waiting", message)
        if status != "RUNNING":
            raise ConflictError(f"Ray says {status} of the job {name}: this release does not know what that means.")
        return self._live(name)

    def _live(self, name: str) -> Seen:
        """Whether it has its nodes stands in its log, which is short until then; no more of it is read, nor again."""
        if name in self._running:
            return Seen(name, "running")
        told = [line for line in self._jobs.log(name, RUNNING).splitlines() if line.startswith((WAITING, RUNNING))]
        if not told:
            return Seen(name, "waiting", "Ray starts the job.")
        if told[-1].startswith(WAITING):
            return Seen(name, "waiting", told[-1].removeprefix(WAITING))
        self._running.add(name)
        return Seen(name, "running")


def lasting(ask: Ask, *, server: str = "", key: str = "") -> Ask:
    """Return an ask for workers that last: each of its nodes by itself, and the command begun again when it ends."""
    return replace(ask, options={**ask.options, LASTING: "true", SERVER: server, KEY: key})


def _failed(name: str, message: str, code: object, python: str) -> Seen:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    told = next((line.removeprefix(ENDED) for line in reversed(lines) if line.startswith(ENDED)), None)
    if told is not None:
        return Seen(name, "ended", told, hopeless=code == HOPELESS)
    if "No module named 'tunefleet" in message:
        return Seen(
            name, "ended", f"The Ray cluster's {python} has no Tunefleet: install it on all its nodes.", hopeless=True
        )
    if code == _NOT_FOUND:
        return Seen(name, "ended", f"The Ray cluster's head has no program {python!r}.", hopeless=True)
    return Seen(name, "ended", lines[-1] if lines else "The job failed on the Ray cluster, which does not say why.")
