"""`tunefleet run`: control, journal and resume for any script, without code changes."""

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

# How long a run that has reported its end may take to exit.
_EXIT_TIMEOUT_S = 30.0
# Differ between terminals: no warning if they are missing at a resume.
_IGNORED_VARIABLES = frozenset(
    {"_", "OLDPWD", "SHLVL", "PWD", "TERM", "COLUMNS", "LINES", "WINDOWID", "XDG_SESSION_ID"}
)


def _complete(incomplete: str) -> list[str]:
    return [path.parent.name for path in RUNS_DIR.glob("*/job.json") if path.parent.name.startswith(incomplete)]


@examples(
    "tunefleet run -- python train.py --lr 1e-4",
    "tunefleet run --name my-run -- torchrun --nproc-per-node 2 train.py",
    "tunefleet run --resume my-run",
)
def run(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND…", help="The command to run, such as python train.py.")
    ] = None,
    *,
    name: Annotated[
        str | None,
        typer.Option("--name", "--job-id", metavar="ID", help="Id of the run; default: script name and time."),
    ] = None,
    results: Annotated[
        Path, typer.Option("--results", metavar="DIR", help="Parent folder of the run's folder.")
    ] = RUNS_DIR,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="JOB", help="Resume a run from its newest checkpoint.", autocompletion=_complete
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="GPUS", help="GPUs to claim: all, none, or comma-separated indexes or UUIDs."),
    ] = None,
    no_http: Annotated[
        bool, typer.Option("--no-http", help="Do not open a port; commands are sent through files.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a training script with control, pause and resume.

    Adds control, a journal and verified checkpoints to each Hugging Face Trainer in the script, including under
    torchrun and accelerate. Ctrl-C is passed to the script; SIGTERM pauses the run. The exit code is that of the
    script.
    """
    settings = load(ClientSettings)
    environment = inherited_environment()
    folder, previous = _folder(results, resume, name, command)
    _check_id(settings.endpoints_dir, folder.root.name)
    job = (
        _resumed(previous, folder, gpu, environment)
        if previous is not None
        else _new(folder, command or [], gpu, environment)
    )
    job = job.model_copy(
        update={"endpoint_dir": str(settings.endpoints_dir), "spec": {**job.spec, "http": not no_http}}
    )
    _print_start(job, resumed=previous is not None)
    # With --json standard output is for the JSON alone: the script prints to standard error.
    streams = (2, 2) if as_json else (1, 2)
    # The script writes to the same descriptor next.
    sys.stdout.flush()
    end = ForegroundRun(folder, job, environment, streams=streams, say=_say).run()
    _report_end(job, folder, end, as_json=as_json)
    raise typer.Exit(end.exit_code)


def _folder(results: Path, resume: str | None, name: str | None, command: list[str] | None) -> tuple[JobFolder, Any]:
    if resume is None:
        if not command:
            raise InputError("No command to run.", hint="Put it after --, such as: tunefleet run -- python train.py")
        folder = _safe(results, name or _name_of(command))
        # A command that failed before it trained may be corrected and run under the same name.
        if trainings.recorded(folder.root) or locks.is_held(folder.lock):
            raise ConflictError(
                f"Run {folder.root.name} already exists in {results}.",
                hint=f"Resume it with `tunefleet run --resume {folder.root.name}`, or use another --name.",
            )
        return folder, None
    if command or name:
        raise InputError("--resume runs the recorded command.", hint="Omit the command and --name.")
    folder = JobFolder(Path(resume)) if "/" in resume else _safe(results, resume)
    return folder, _load_previous(folder, resume)


def _check_id(endpoints_dir: Path, job_id: str) -> None:
    if find_endpoint(endpoints_dir, job_id) is not None:
        raise ConflictError(f"Job {job_id} is already running; it was started elsewhere.", hint="Use another --name.")


def _load_previous(folder: JobFolder, resume: str) -> Job:
    if not folder.job_json.is_file():
        raise NotFoundError(f"Run {resume} not found in {folder.root.parent}.", hint="Set its folder with --results.")
    job = Job.model_validate_json(folder.job_json.read_bytes())
    if "command" not in job.spec:
        raise InputError(
            f"{resume} was not started with `tunefleet run`.", hint="Resume a run with `tunefleet resume`."
        )
    status = read_status(folder)
    if not _wait_until_ended(folder, status):
        raise ConflictError(f"Run {resume} is still running.", hint=f"See it with `tunefleet control watch {resume}`.")
    if status is not None and status.state == "completed":
        raise ConflictError(f"Run {resume} has completed.", hint="Start a new run with another --name.")
    return job


def _wait_until_ended(folder: JobFolder, status: JobStatus | None) -> bool:
    """Whether all processes of a run have ended; waits for one that has reported its end."""
    deadline = time.monotonic() + (_EXIT_TIMEOUT_S if status is not None and status.state in FINAL_STATES else 0.0)
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
    missing = [
        name for name in job.spec.get("environment", []) if name not in environment and name not in _IGNORED_VARIABLES
    ]
    if missing:
        _say(f"Variables missing since the first start: {', '.join(missing[:10])}{' …' if len(missing) > 10 else ''}")
    changes = {"attempt": job.attempt + 1, "launch": new_launch_id(), "gpus": uuids, "env": variables}
    # End of the previous launch: runs that finished before it belong to this run.
    ended_at = (read_json(folder.exit_json) or {}).get("at")
    return job.model_copy(update={**changes, "spec": {**job.spec, "gpu": wanted, "lived_until": ended_at}})


def _devices(gpu: str | None, visible: str | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the GPU UUIDs to claim and the variables to set, from --gpu or the environment."""
    # An empty value hides all GPUs from CUDA.
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
            raise MachineError(f"This machine has no GPU {word}.", hint="List the GPUs with `tunefleet doctor`.")
        uuids += fitting[:1]
    return tuple(uuids), {}


def _say(text: str) -> None:
    err().print(Text(f"tunefleet: {text}", style="dim"), soft_wrap=True)


def _print_start(job: Job, *, resumed: bool) -> None:
    again = f", attempt {job.attempt}" if resumed else ""
    _say(
        f"run {job.job_id}{again}. From another terminal, once it is training: "
        f"tunefleet control watch|save|pause|stop {job.job_id}"
    )


def _report_end(job: Job, folder: JobFolder, end: RunEnd, *, as_json: bool) -> None:
    status = end.status
    if as_json:
        fields = status.model_dump(mode="json") if status else None
        print_json(
            {"job_id": job.job_id, "folder": str(folder.root), "exit_code": end.exit_code, "attached": end.attached,
             "status": fields}
        )  # fmt: skip
    if not end.attached:
        _say(_not_attached_reason(end))
        return
    if status is None:
        return
    where = f"step {status.step}" + (f" of {status.max_steps}" if status.max_steps else "")
    _say(f"run {job.job_id} is {status.state} at {where}." + (f" {status.error}" if status.error else ""))
    if status.state != "completed":
        _say(f"Resume: tunefleet run --resume {job.job_id}")


def _not_attached_reason(end: RunEnd) -> str:
    if end.imported:
        return "No Trainer ran in this command, so nothing was controlled or recorded."
    return (
        "No Trainer was created in this command, so nothing was controlled or recorded. "
        "Isolated Python (-I, -E, -S) is not supported; use `tunefleet.control` in your own training loop."
    )
