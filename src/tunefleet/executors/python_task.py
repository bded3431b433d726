"""`python`: a function that stands in the document, run in a process of its own."""

from __future__ import annotations

from tunefleet.executors.base import JobExecutor, Output
from tunefleet.executors.command import left_in
from tunefleet.schemas.job_folder import JobFolder


class PythonExecutor(JobExecutor):
    """Runs the code of a spec; delivers `result.json`, `metrics.json` and the folder `output`."""

    kind = "python"
    brings_code = True
    program = "tunefleet.workloads.python_function:main"

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return what the function has left."""
        return left_in(folder)
