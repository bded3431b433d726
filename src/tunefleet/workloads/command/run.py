"""The program of `taskType: command`: prepare the files, run the command, record its outputs."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunefleet.spec import CommandSpec
from tunefleet.spec.tasks.command import file_name
from tunefleet.trainer_control import JobSession
from tunefleet.trainer_control.autoload import trainings
from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.workloads.command.discovered_outputs import collected
from tunefleet.workloads.command.trainer_launch import Ran, environment_of, run_attached
from tunefleet.workloads.common import job_secrets
from tunefleet.workloads.common.job import open_task

logger = logging.getLogger(__name__)

# Folder of the job in which the command runs.
WORK = "work"
_READY = "work.json"


def main(folder: Path) -> None:
    """Run the command of a job.

    Raises:
        InputError: If a file, an output or the environment is missing.
        CommandFailedError: If the command failed.
    """
    task = open_task(folder, CommandSpec, filled=False)
    spec, session = task.spec, task.session
    work = _prepared(folder, spec, task.job.inputs)
    # Filled in as late as possible; the spec itself keeps the references.
    filled = job_secrets.filled({"command": list(spec.command), "env": dict(spec.env)})
    env = environment_of(spec.environment, filled["env"])
    session.journal.event("command.started", f"Running {spec.command[0]}.", data={"arguments": len(spec.command) - 1})
    ran = run_attached(session, filled["command"], env=env, cwd=work)
    if ran.ended:
        return
    session.status.update(phase="collecting")
    result = {**_facts(session, spec, ran), "outputs": collected(folder, work, spec)}
    write_json(task.folder.responses_json, result, sync=True)


def _prepared(folder: Path, spec: CommandSpec, inputs: Mapping[str, str]) -> Path:
    """Return the folder with all uploaded files; created once, since a later launch finds its checkpoints in it."""
    work = folder / WORK
    if (read_json(folder / _READY) or {}).get("ready"):
        return work
    # Not ready: an earlier launch was killed while copying.
    shutil.rmtree(work, ignore_errors=True)
    if spec.workdir is not None:
        shutil.copytree(inputs["workdir"], work, symlinks=True)
    work.mkdir(exist_ok=True)
    for index, name in enumerate(spec.files):
        source, target = Path(inputs[f"files.{index}"]), work / file_name(name)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(source, target)
    # Written last: a killed copy is repeated.
    write_json(folder / _READY, {"ready": True}, sync=True)
    return work


def _facts(session: JobSession, spec: CommandSpec, ran: Ran) -> dict[str, Any]:
    status = session.status.fields
    trained = [
        {"output_dir": _below(session.folder, item["output_dir"]), "resumed_from_step": _step_of(item)}
        for item in trainings.recorded(session.folder)
        if item.get("launch") == session.job["launch"]
    ]
    return {
        "ok": True,
        "command": list(spec.command),
        "exit_code": 0,
        "seconds": round(ran.seconds, 3),
        "trained": ran.attached,
        "trainings": trained,
        "steps": status["step"],
        "metrics": status["values"],
        "stopped_early": ran.state == "stopped",
    }


def _below(folder: Path, path: str) -> str:
    place = Path(path)
    return place.relative_to(folder).as_posix() if place.is_relative_to(folder) else path


def _step_of(item: Mapping[str, Any]) -> int | None:
    found = item.get("checkpoint")
    return int(found["rest"][0]) if found else None
