"""`command` and `python`: custom code of the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tunefleet.executors.base import JobExecutor, Output
from tunefleet.schemas.control import TRAINING_COMMANDS
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control.files import read_json


class CommandExecutor(JobExecutor):
    """Runs the spec's `command`; delivers its outputs, and an adapter or a model that it has written."""

    kind = "command"
    brings_code = True
    program = "tunefleet.workloads.command:main"
    supported_commands = TRAINING_COMMANDS

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the outputs of the command, as listed by its program."""
        return left_in(folder)


def left_in(folder: JobFolder) -> list[Output]:
    """Return the outputs listed under `outputs` of a result: name → `kind` and `relative_path`."""
    listed: Any = (read_json(folder.responses_json) or {}).get("outputs")
    if not isinstance(listed, dict):
        return []
    return [
        Output(name=name, kind=str(about["kind"]), path=folder.root / Path(str(about["relative_path"])))
        for name, about in listed.items()
    ]


class PythonExecutor(JobExecutor):
    """Runs the code of a spec; delivers `result.json`, `metrics.json` and the folder `output`."""

    kind = "python"
    brings_code = True
    program = "tunefleet.workloads.python_function:main"

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the outputs of the function."""
        return left_in(folder)
