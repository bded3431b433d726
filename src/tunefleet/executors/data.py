"""`data`: makes a dataset out of others."""

from __future__ import annotations

from tunefleet.executors.base import JobExecutor, Output
from tunefleet.executors.needs import missing
from tunefleet.schemas.compat.task_results import FILE_KIND
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control.files import read_json


class DataExecutor(JobExecutor):
    """Reads rows, changes them step by step, and delivers the files that were written."""

    kind = "data"
    program = "tunefleet.workloads.data_pipeline:main"

    def unavailable_reason(self) -> str | None:
        """Name the libraries that read data and are missing."""
        return missing("datasets", "pyarrow", "numpy", extra="train")

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the files, as the result lists them."""
        files = (read_json(folder.responses_json) or {}).get("files") or []
        return [Output(name=each["name"], kind=FILE_KIND, path=folder.root / each["name"]) for each in files]
