"""Nodes of a Ray cluster: a job of its Jobs API holds a placement group, and starts a command in each bundle.

The job runs `tunefleet.workloads.ray_nodes` in Ray's environment. Its order contains a key, so it is not passed in
environment variables, which Ray shows to every user of the dashboard and writes into logs: it is stored in the head's
memory until the program fetches it.
"""

from __future__ import annotations

import math
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from tunefleet.errors import ConflictError
from tunefleet.integrations.clusters.base import Cluster, ClusterJobState, NodeRequest
from tunefleet.integrations.clusters.ray_http import RayJobs
from tunefleet.integrations.clusters.ray_order import ENDED, HOPELESS, KEY, LASTING, RUNNING, SERVER, WAITING, pack

PROGRAM: Final = "tunefleet.workloads.ray_nodes"
_OVER: Final = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
_AFTER_GRACE_S: Final = 20
"""The program stops the nodes' processes after the grace period, then exits; Ray kills it after this extra time."""
_NOT_FOUND: Final = 127


class Ray(Cluster):
    """A running Ray cluster, accessed through its dashboard.

    Args:
        address: URL of the dashboard, such as `http://head:8265`.
        token: The cluster's token; `None` if it requires none.
    """

    def __init__(self, address: str, token: str | None, *, python: str = "python", timeout_s: float = 30.0) -> None:
        self._jobs = RayJobs(address, token, timeout_s=timeout_s)
        self._python = python
        self._running: set[str] = set()

    def close(self) -> None:
        """Close the connections."""
        self._jobs.close()

    def submit(self, ask: NodeRequest) -> str:
        """Start the job that requests the nodes; its name is that of the ask."""
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

    def look(self, names: Sequence[str]) -> dict[str, ClusterJobState]:
        """Query each job."""
        found = {name: self._jobs.job(name) for name in names}
        self._running -= {name for name, job in found.items() if job is None}
        return {name: self._seen(name, job) for name, job in found.items() if job is not None}

    def cancel(self, name: str) -> None:
        """Stop the job: its program forwards SIGTERM, and kills after the grace period of the ask."""
        self._jobs.stop(name)

    def _seen(self, name: str, job: dict[str, Any]) -> ClusterJobState:
        status, message = str(job.get("status")), str(job.get("message") or "")
        if status in _OVER:
            self._running.discard(name)
        if status == "SUCCEEDED":
            return ClusterJobState(name, "ended")
        if status == "STOPPED":
            return ClusterJobState(name, "ended", "The job was stopped on the Ray cluster.", withdrawn=True)
        if status == "FAILED":
            return _failed(name, message, job.get("driver_exit_code"), self._python)
        if status == "PENDING":
            return ClusterJobState(name, "waiting", message)
        if status != "RUNNING":
            raise ConflictError(f"Ray reports the unknown status {status} for the job {name}.")
        return self._live(name)

    def _live(self, name: str) -> ClusterJobState:
        """Return the state of a running job, which is in its log."""
        # The log is short until the nodes are assigned; afterwards it may be large, so it is not read again.
        if name in self._running:
            return ClusterJobState(name, "running")
        report_lines = [
            line for line in self._jobs.log(name, RUNNING).splitlines() if line.startswith((WAITING, RUNNING))
        ]
        if not report_lines:
            return ClusterJobState(name, "waiting", "Ray is starting the job.")
        if report_lines[-1].startswith(WAITING):
            return ClusterJobState(name, "waiting", report_lines[-1].removeprefix(WAITING))
        self._running.add(name)
        return ClusterJobState(name, "running")


def lasting(ask: NodeRequest, *, server: str = "", key: str = "") -> NodeRequest:
    """Return a request for long-running workers: nodes are independent, and their command is restarted when it ends."""
    return replace(ask, options={**ask.options, LASTING: "true", SERVER: server, KEY: key})


def _failed(name: str, message: str, code: object, python: str) -> ClusterJobState:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    report_lines = next((line.removeprefix(ENDED) for line in reversed(lines) if line.startswith(ENDED)), None)
    if report_lines is not None:
        return ClusterJobState(name, "ended", report_lines, hopeless=code == HOPELESS)
    if "No module named 'tunefleet" in message:
        return ClusterJobState(
            name,
            "ended",
            f"Tunefleet is not installed in the Ray cluster's {python}. Install it on all nodes.",
            hopeless=True,
        )
    if code == _NOT_FOUND:
        return ClusterJobState(name, "ended", f"The Ray cluster's head has no program {python!r}.", hopeless=True)
    return ClusterJobState(
        name, "ended", lines[-1] if lines else "The job failed on the Ray cluster, which reports no reason."
    )
