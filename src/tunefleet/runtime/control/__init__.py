"""Finds running jobs and controls them: over a control port, or through files if a job has no port.

Only connects to the process that wrote the endpoint: with a recycled pid, after a reboot, or on another machine that
shares the home folder, no token is sent.
"""

from tunefleet.runtime.control.clients import ControlClient, FileControlClient, RemoteHost
from tunefleet.runtime.control.discovery import (
    LocalJob,
    find_endpoint,
    find_job,
    list_jobs,
    paused_jobs,
    withdraw_endpoint,
)
from tunefleet.runtime.control.job_control import SAVING, JobController, is_settled, wait_for

__all__ = [
    "SAVING",
    "ControlClient",
    "FileControlClient",
    "JobController",
    "LocalJob",
    "RemoteHost",
    "find_endpoint",
    "find_job",
    "is_settled",
    "list_jobs",
    "paused_jobs",
    "wait_for",
    "withdraw_endpoint",
]
