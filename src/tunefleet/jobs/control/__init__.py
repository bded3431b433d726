"""Finds live jobs and steers them: over a control port, or by files where a job has no port.

Talks only to the process that wrote the endpoint. A recycled pid, another boot, another machine that shares the home
folder: then no token is sent anywhere.
"""

from tunefleet.jobs.control.by_file import FileControlClient
from tunefleet.jobs.control.by_http import ControlClient, RemoteHost
from tunefleet.jobs.control.discovery import (
    FoundJob,
    find_endpoint,
    find_job,
    list_jobs,
    paused_jobs,
    withdraw_endpoint,
)
from tunefleet.jobs.control.outcome import SAVING, is_settled, wait_for
from tunefleet.jobs.control.steering import JobSteering

__all__ = [
    "SAVING",
    "ControlClient",
    "FileControlClient",
    "FoundJob",
    "JobSteering",
    "RemoteHost",
    "find_endpoint",
    "find_job",
    "is_settled",
    "list_jobs",
    "paused_jobs",
    "wait_for",
    "withdraw_endpoint",
]
