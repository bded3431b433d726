"""Which job `tunefleet control` means, and how it is reached."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tunefleet.errors import ConflictError, InputError
from tunefleet.runtime.control import JobSteering, RemoteHost, list_jobs
from tunefleet.settings import ClientSettings, load


def endpoints_dir() -> Path:
    """Return where the live jobs of this user are found."""
    return load(ClientSettings).endpoints_dir


def _complete(incomplete: str) -> list[tuple[str, str]]:
    return [
        (job.job_id, f"pid {job.endpoint.pid}")
        for job in list_jobs(endpoints_dir())
        if job.live and job.endpoint is not None and job.job_id.startswith(incomplete)
    ]


JobId = Annotated[
    str,
    typer.Argument(metavar="JOB", help="Id of a job; its first characters are enough.", autocompletion=_complete),
]
Remote = Annotated[
    str | None, typer.Option("--remote", metavar="HOST:PORT", help="The control port of a job on another machine.")
]
Token = Annotated[
    str | None, typer.Option("--token", metavar="TOKEN", help="The one in its endpoint.json; - reads it from stdin.")
]


def remote_host(remote: str, token: str | None) -> RemoteHost:
    """Return the host that the user named."""
    return RemoteHost.parse(remote, sys.stdin.readline().strip() if token == "-" else token)


def steer(job: str, remote: str | None, token: str | None) -> JobSteering:
    """Return the line to a job."""
    if remote is not None:
        return JobSteering.elsewhere(remote_host(remote, token), job)
    if token is not None:
        raise InputError("--token goes to another machine only.", hint="Name it with --remote HOST:PORT.")
    return JobSteering.here(endpoints_dir(), job)


def curl_line(
    steering: JobSteering | None, job: str, remote: RemoteHost | None, command: str | None, data: dict[str, Any]
) -> str:
    """Return the curl command line for a status or a command.

    Args:
        steering: A job of this machine; None for one elsewhere.
    """
    headers: list[str] = []
    if remote is not None:
        # Its Host is checked: only a local name is served, whatever tunnel the request came through.
        place, headers = f"{remote.host}:{remote.port}", ["Host: localhost", "Authorization: Bearer TOKEN"]
    else:
        endpoint = steering.found.endpoint if steering is not None and steering.found is not None else None
        if steering is None or endpoint is None or not endpoint.port:
            raise ConflictError(
                f"Job {job} has no control port; its commands are files.",
                hint="The other commands of `tunefleet control` write them.",
            )
        job, place = steering.job_id, f"localhost:{endpoint.port}"
        if sys.platform != "linux":
            headers = ["Authorization: Bearer TOKEN"]  # who the peer is cannot be looked up there
    url = f"http://{place}/jobs/{job}/" + ("control" if command else "status")
    words = ["curl", *(["-X", "POST"] if command else []), url]
    if command:
        body = {"command": command, **({"data": data} if data else {})}
        headers = ["Content-Type: application/json", *headers]
        words += ["-d", json.dumps(body)]
    for header in headers:
        words += ["-H", header]
    return shlex.join(words)
