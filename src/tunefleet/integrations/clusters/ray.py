"""Nodes of a Ray cluster: a job of its Jobs API holds a placement group, and starts a command in each bundle.

The job runs `tunefleet.workloads.ray_nodes` in Ray's environment. Its order contains a key, so it is not passed in
environment variables, which Ray shows to every user of the dashboard and writes into logs: it is stored in the head's
memory until the program fetches it.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

import httpx

from tunefleet.client import trust
from tunefleet.errors import ConflictError, InputError, UnreachableError
from tunefleet.integrations.clusters.base import Cluster, ClusterJobState, NodeRequest
from tunefleet.integrations.clusters.ray_order import ENDED, HOPELESS, KEY, LASTING, RUNNING, SERVER, WAITING, pack

PROGRAM: Final = "tunefleet.workloads.ray_nodes"
_OVER: Final = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
_AFTER_GRACE_S: Final = 20
"""The program stops the nodes' processes after the grace period, then exits; Ray kills it after this extra time."""
_NOT_FOUND: Final = 127
_MAX_WORDS: Final = 300
_UNAUTHENTICATED: Final = 401
_FORBIDDEN: Final = 403
_HTTP_NOT_FOUND: Final = 404
_SERVER: Final = 500
_WHERE: Final = "Set TUNEFLEET_RAY_ADDRESS to the URL of its dashboard, such as http://head:8265."


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
            raise ConflictError(f"Ray reports the unknown status {status} for job {name}.")
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


class RayJobs:
    """Client of a Ray cluster's dashboard, which serves the Jobs API. Thread-safe.

    Args:
        address: URL of the dashboard, such as `http://head:8265`.
        token: The cluster's token; `None` if it requires none.
    """

    def __init__(self, address: str, token: str | None, *, timeout_s: float) -> None:
        self.address = address.rstrip("/")
        if not self.address.startswith(("http://", "https://")):
            raise InputError(
                f"TUNEFLEET_RAY_ADDRESS={address} is not a URL of a Ray dashboard.",
                hint="Use an http:// or https:// URL, such as http://head:8265.",
            )
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(
            base_url=self.address, headers=headers, timeout=timeout_s, **trust.options(self.address)
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def job(self, name: str) -> dict[str, Any] | None:
        """Return Ray's data of a job; `None` if it does not exist."""
        answer = self._ask("GET", _job(name), absent=True)
        return None if answer is None else self._read(answer)

    def log(self, name: str, until: str) -> str:
        """Return the log of a job, or only `until` if a line starts with it: reading stops there."""
        # Ray always sends the complete log, which is large for a job that has run for days.
        sign, text = re.compile(rf"(?<!\\)\\n{re.escape(until)}"), ""
        with self._reached(), self._http.stream("GET", f"{_job(name)}/logs") as answer:
            if not answer.is_success:
                answer.read()
                self._exists(answer, absent=True)
                return ""
            for piece in answer.iter_text():
                begin, text = max(0, len(text) - len(until) - 3), text + piece
                if sign.search(text, begin) is not None:
                    return until
        return str(self._object(text).get("logs") or "")

    def submit(self, body: dict[str, Any]) -> bool:
        """Submit a job; returns false if one of that name exists already."""
        answer = self._send("POST", "/api/jobs/", json=body)
        if answer.status_code == httpx.codes.BAD_REQUEST and "already exists" in answer.text:
            return False
        self._raise_for_status(answer)
        self._read(answer)
        return True

    def stop(self, name: str) -> None:
        """Stop a job; does nothing if it does not exist or has ended."""
        self._ask("POST", f"{_job(name)}/stop", absent=True)

    def forget(self, name: str) -> None:
        """Delete an ended job."""
        self._ask("DELETE", _job(name), absent=True)

    def store(self, package: str, content: bytes) -> None:
        """Store a small file in the head's memory; Ray deletes it after ten minutes."""
        path = f"/api/packages/gcs/{package}"
        self._ask("PUT", path, content=content)
        # Reading a package starts the time after which Ray deletes it if no job references it.
        self._ask("GET", path)

    def _ask(self, method: str, path: str, *, absent: bool = False, **sent: Any) -> httpx.Response | None:
        answer = self._send(method, path, **sent)
        return answer if self._exists(answer, absent=absent) else None

    def _exists(self, answer: httpx.Response, *, absent: bool) -> bool:
        """Return whether the requested object exists; raises for every other error."""
        if answer.status_code == _HTTP_NOT_FOUND:
            # A server other than Ray responds with 404, too.
            if "does not exist" not in answer.text:
                raise self._not_ray()
            if absent:
                return False
        self._raise_for_status(answer)
        return True

    def _send(self, method: str, path: str, **sent: Any) -> httpx.Response:
        with self._reached():
            return self._http.request(method, path, **sent)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"No Ray cluster responds at {self.address}.",
                hint=_WHERE,
                detail=repr(error),
            ) from error

    def _raise_for_status(self, answer: httpx.Response) -> None:
        code = answer.status_code
        if answer.is_success:
            return
        if code in {_UNAUTHENTICATED, _FORBIDDEN}:
            problem = "requires a token" if code == _UNAUTHENTICATED else "rejects the token"
            raise ConflictError(
                f"The Ray cluster at {self.address} {problem}.", hint="Set TUNEFLEET_RAY_TOKEN to the cluster's token."
            )
        problem = _words(answer.text) or f"HTTP {code}"
        if code >= _SERVER:
            raise UnreachableError(f"The Ray cluster at {self.address} failed: {problem}")
        raise ConflictError(f"The Ray cluster at {self.address} rejected the request: {problem}")

    def _read(self, answer: httpx.Response) -> dict[str, Any]:
        return self._object(answer.text)

    def _object(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._not_ray()
        return found

    def _not_ray(self) -> ConflictError:
        return ConflictError(f"The server at {self.address} is not a Ray cluster.", hint=_WHERE)


def _job(name: str) -> str:
    return f"/api/jobs/{quote(name, safe='')}"


def _words(text: str) -> str:
    """Return the last line of a traceback or other response."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_MAX_WORDS] if lines else ""
