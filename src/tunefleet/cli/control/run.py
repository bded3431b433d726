"""`tunefleet run`: control, journal and resume for any script, without a changed line."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tunefleet.cli.console import Json, err, print_json
from tunefleet.cli.lazy_group import examples
from tunefleet.errors import ConflictError, InputError, MachineError, NotFoundError
from tunefleet.runtime import locks
from tunefleet.runtime.control.discovery import RUNS_DIR, find_endpoint
from tunefleet.runtime.exit_classification import read_status
from tunefleet.runtime.foreground import ForegroundRun, RunEnd
from tunefleet.runtime.gpu.info import read_gpus
from tunefleet.runtime.supervisor import new_launch_id
from tunefleet.schemas.job_folder import Job, JobFolder, JobStatus
from tunefleet.settings import ClientSettings, inherited_environment, load
from tunefleet.trainer_control.autoload import trainings
from tunefleet.trainer_control.files import read_json
from tunefleet.trainer_control.journal.status import FINAL_STATES

# How long a run that has said its last word may take to be gone.
_ENDING_S = 30.0
_UNTOLD = frozenset({"_", "OLDPWD", "SHLVL", "PWD", "TERM", "COLUMNS", "LINES", "WINDOWID", "XDG_SESSION_ID"})


def _complete(incomplete: str) -> list[str]:
    return [path.parent.name for path in RUNS_DIR.glob("*/job.json") if path.parent.name.startswith(incomplete)]


@examples(
    "tunefleet run -- python train.py --lr 1e-4",
    "tunefleet run --name my-run -- torchrun --nproc-per-node 2 train.py",
    "tunefleet run --resume my-run",
)
def run(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND…", help="What you would type without `tunefleet run --`.")
    ] = None,
    *,
    name: Annotated[
        str | None, typer.Option("--name", "--job-id", metavar="ID", help="The run's id; default: script and time.")
    ] = None,
    results: Annotated[
        Path, typer.Option("--results", metavar="DIR", help="Where the run's folder is made.")
    ] = RUNS_DIR,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="JOB", help="Start a run again from its newest checkpoint.", autocompletion=_complete
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="GPUS", help="all, none, or indexes and UUIDs by commas; they are claimed."),
    ] = None,
    no_http: Annotated[bool, typer.Option("--no-http", help="Open no port; commands are files.")] = False,
    as_json: Json = False,
) -> None:
    """Run a training script so that it can be steered, paused and resumed.

    Whatever builds a Hugging Face Trainer in it, also under torchrun or accelerate, gets control, a journal and
    checked checkpoints. Ctrl-C is the script's, as ever; SIGTERM pauses. The exit code is the script's.
    """
    settings = load(ClientSettings)
    environment = inherited_environment()
    folder, before = _folder(results, resume, name, command)
    _check_id(settings.endpoints_dir, folder.root.name)
    job = (
        _resumed(before, folder, gpu, environment)
        if before is not None
        else _new(folder, command or [], gpu, environment)
    )
    job = job.model_copy(
        update={"endpoint_dir": str(settings.endpoints_dir), "spec": {**job.spec, "http": not no_http}}
    )
    _greet(job, resumed=before is not None)
    streams = (2, 2) if as_json else (1, 2)
    sys.stdout.flush()
    end = ForegroundRun(folder, job, environment, streams=streams, say=_say).run()
    _part(job, folder, end, as_json=as_json)
    raise typer.Exit(end.exit_code)


def _folder(results: Path, resume: str | None, name: str | None, command: list[str] | None) -> tuple[JobFolder, Any]:
    if resume is None:
        if not command:
            raise InputError("There is no command to run.", hint="Write it after --: tunefleet run -- python train.py")
        folder = _safe(results, name or _name_of(command))
        # A command that never came to train, such as one with a mistake in it, may be corrected and run again.
        if trainings.recorded(folder.root) or locks.is_held(folder.lock):
            raise ConflictError(
                f"There is a run {folder.root.name} in {results} already.",
                hint=f"Go on with it by `tunefleet run --resume {folder.root.name}`, or take another --name.",
            )
        return folder, None
    if command or name:
        raise InputError("--resume runs the command that was recorded.", hint="Leave out the command and --name.")
    folder = JobFolder(Path(resume)) if "/" in resume else _safe(results, resume)
    return folder, _before(folder, resume)


def _check_id(endpoints_dir: Path, job_id: str) -> None:
    if find_endpoint(endpoints_dir, job_id) is not None:
        raise ConflictError(f"A job {job_id} lives already, started elsewhere.", hint="Take another --name.")


def _before(folder: JobFolder, resume: str) -> Job:
    if not folder.job_json.is_file():
        raise NotFoundError(f"There is no run {resume} in {folder.root.parent}.", hint="Name its folder by --results.")
    job = Job.model_validate_json(folder.job_json.read_bytes())
    if "command" not in job.spec:
        raise InputError(f"{resume} is no run of a command.", hint="Resume a task by `tunefleet resume`.")
    status = read_status(folder)
    if not _let_end(folder, status):
        raise ConflictError(f"Run {resume} is alive.", hint=f"See it with `tunefleet control watch {resume}`.")
    if status is not None and status.state == "completed":
        raise ConflictError(f"Run {resume} has completed.", hint="Start another one with a --name of its own.")
    return job


def _let_end(folder: JobFolder, status: JobStatus | None) -> bool:
    """Tell whether nothing of a run lives; one that has said its last word gets the time to go."""
    deadline = time.monotonic() + (_ENDING_S if status is not None and status.state in FINAL_STATES else 0.0)
    while locks.is_held(folder.lock):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def _safe(results: Path, name: str) -> JobFolder:
    from tunefleet.trainer_control.control.discovery import safe_job_id

    try:
        return JobFolder((results / safe_job_id(name)).absolute())
    except ValueError as error:
        raise InputError(str(error)) from None


def _name_of(command: list[str]) -> str:
    scripts = [Path(word) for word in command if word.endswith(".py")]
    stem = scripts[0].stem if scripts else Path(command[0]).name
    plain = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in stem).strip("-") or "run"
    return f"{plain[:40]}-{time.strftime('%Y%m%d-%H%M%S')}"


def _new(folder: JobFolder, command: list[str], gpu: str | None, environment: Mapping[str, str]) -> Job:
    uuids, variables = _devices(gpu, environment.get("CUDA_VISIBLE_DEVICES"))
    # Names only: values may be secrets, and the folder may be shared.
    spec = {"command": list(command), "cwd": str(Path.cwd()), "environment": sorted(environment), "gpu": gpu}
    job_id = folder.root.name
    return Job(
        job_id=job_id, task_id=job_id, attempt=1, launch=new_launch_id(), kind="run", name=job_id, program="command",
        spec=spec, gpus=uuids, env=variables,
    )  # fmt: skip


def _resumed(job: Job, folder: JobFolder, gpu: str | None, environment: Mapping[str, str]) -> Job:
    wanted = gpu if gpu is not None else job.spec.get("gpu")
    uuids, variables = _devices(wanted, environment.get("CUDA_VISIBLE_DEVICES"))
    missing = [name for name in job.spec.get("environment", []) if name not in environment and name not in _UNTOLD]
    if missing:
        _say(f"Set at the first start and not now: {', '.join(missing[:10])}{' …' if len(missing) > 10 else ''}")
    changes = {"attempt": job.attempt + 1, "launch": new_launch_id(), "gpus": uuids, "env": variables}
    # When the launch before ended: what was finished until then is of this run.
    ended_at = (read_json(folder.exit_json) or {}).get("at")
    return job.model_copy(update={**changes, "spec": {**job.spec, "gpu": wanted, "lived_until": ended_at}})


def _devices(gpu: str | None, visible: str | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the UUIDs to claim and the variables to set, for what the user chose or the environment allows."""
    if gpu == "none":
        return (), {"CUDA_VISIBLE_DEVICES": ""}
    chosen = visible if gpu in (None, "all") else gpu
    if chosen is not None and not chosen.strip():
        return (), {}
    found = read_gpus()
    if chosen is None:
        return tuple(device.uuid for device in found), {}
    uuids = []
    for word in (part.strip() for part in chosen.split(",")):
        fitting = [d.uuid for d in found if (str(d.index) == word if word.isdigit() else d.uuid.startswith(word))]
        if not fitting and gpu is not None:
            raise MachineError(f"There is no GPU {word} here.", hint="See them with `tunefleet doctor`.")
        uuids += fitting[:1]
    return tuple(uuids), {}


def _say(text: str) -> None:
    err().print(Text(f"tunefleet: {text}", style="dim"), soft_wrap=True)


def _greet(job: Job, *, resumed: bool) -> None:
    again = f", attempt {job.attempt}" if resumed else ""
    _say(
        f"run {job.job_id}{again}. From another terminal, once it trains: "
        f"tunefleet control watch|save|pause|stop {job.job_id}"
    )


def _part(job: Job, folder: JobFolder, end: RunEnd, *, as_json: bool) -> None:
    status = end.status
    if as_json:
        told = status.model_dump(mode="json") if status else None
        print_json(
            {"job_id": job.job_id, "folder": str(folder.root), "exit_code": end.exit_code, "attached": end.attached,
             "status": told}
        )  # fmt: skip
    if not end.attached:
        _say(_why_not(end))
        return
    if status is None:
        return
    where = f"step {status.step}" + (f" of {status.max_steps}" if status.max_steps else "")
    _say(f"run {job.job_id} is {status.state} at {where}." + (f" {status.error}" if status.error else ""))
    if status.state != "completed":
        _say(f"Go on with `tunefleet run --resume {job.job_id}`.")


def _why_not(end: RunEnd) -> str:
    if end.imported:
        return "Nothing in this command trained with a Trainer, so there was nothing to steer and nothing was recorded."
    return (
        "Nothing in this command built a Trainer, so there was nothing to steer and nothing was recorded. "
        "Python that runs isolated (-I, -E, -S) cannot be reached; a loop of your own takes `tunefleet.control`."
    )
