"""Resolve the job of a `tunefleet control` command and connect to it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tunefleet.errors import ConflictError, InputError
from tunefleet.runtime.control import JobController, RemoteHost, list_jobs
from tunefleet.settings import ClientSettings, load


def endpoints_dir() -> Path:
    """Return the folder with the endpoints of this user's live jobs."""
    return load(ClientSettings).endpoints_dir


def _complete(incomplete: str) -> list[tuple[str, str]]:
    return [
        (job.job_id, f"pid {job.endpoint.pid}")
        for job in list_jobs(endpoints_dir())
        if job.live and job.endpoint is not None and job.job_id.startswith(incomplete)
    ]


JobId = Annotated[
    str,
    typer.Argument(metavar="JOB", help="Job id or a unique prefix.", autocompletion=_complete),
]
Remote = Annotated[
    str | None, typer.Option("--remote", metavar="HOST:PORT", help="Control port of a job on another machine.")
]
Token = Annotated[
    str | None,
    typer.Option("--token", metavar="TOKEN", help="Token from the job's endpoint.json; - reads standard input."),
]


def remote_host(remote: str, token: str | None) -> RemoteHost:
    """Return the host that the user named."""
    return RemoteHost.parse(remote, sys.stdin.readline().strip() if token == "-" else token)


def open_job(job: str, remote: str | None, token: str | None) -> JobController:
    """Return the control handle of a job."""
    if remote is not None:
        return JobController.elsewhere(remote_host(remote, token), job)
    if token is not None:
        raise InputError("--token is for jobs on other machines.", hint="Add --remote HOST:PORT.")
    return JobController.here(endpoints_dir(), job)


def curl_line(
    control: JobController | None, job: str, remote: RemoteHost | None, command: str | None, data: dict[str, Any]
) -> str:
    """Return the curl command line for a status or a command.

    Args:
        control: The handle of a job on this machine; None for one elsewhere.
    """
    headers: list[str] = []
    if remote is not None:
        # The control port only accepts a local name as Host, also through a tunnel.
        address, headers = f"{remote.host}:{remote.port}", ["Host: localhost", "Authorization: Bearer TOKEN"]
    else:
        endpoint = control.found.endpoint if control is not None and control.found is not None else None
        if control is None or endpoint is None or not endpoint.port:
            raise ConflictError(
                f"Job {job} has no control port; it receives commands as files.",
                hint="Use the other `tunefleet control` commands, which write these files.",
            )
        job, address = control.job_id, f"localhost:{endpoint.port}"
        if sys.platform != "linux":
            headers = [
                "Authorization: Bearer TOKEN"
            ]  # only Linux can identify the peer of a local connection, all others need the token
    url = f"http://{address}/jobs/{job}/" + ("control" if command else "status")
    words = ["curl", *(["-X", "POST"] if command else []), url]
    if command:
        body = {"command": command, **({"data": data} if data else {})}
        headers = ["Content-Type: application/json", *headers]
        words += ["-d", json.dumps(body)]
    for header in headers:
        words += ["-H", header]
    return shlex.join(words)
