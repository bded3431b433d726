"""The program of a `python` task.

pip requirements are a layer over the worker's environment, cached for later tasks:

    <cache>/python-layers/<hash of the requirements>/            a virtual environment
    <cache>/python-layers/<hash of the requirements>/ready.json  written last: without it the layer is created again
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import platformdirs
from filelock import FileLock

from tunefleet.artifacts import hash_file
from tunefleet.errors import InputError, MachineError
from tunefleet.schemas.job_folder import Job
from tunefleet.schemas.worker_guide import FILE_KIND
from tunefleet.settings import inherited_environment, without_credentials
from tunefleet.spec import PythonTaskSpec
from tunefleet.trainer_control import JobSession
from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.workloads.common import job_secrets, subprocesses
from tunefleet.workloads.common.job import open_task
from tunefleet.workloads.faults import CommandFailedError
from tunefleet.workloads.python_function import runner

# Folder in the job folder in which the function runs.
WORK: Final = "python"
OUTPUT: Final = "output"
_OURS: Final = ("TUNEFLEET_", "ORCHESTRATOR_", "NEBULA_", "REDIS_", "PYTHON", "LD_")
_LOOK_S: Final = 1.0
_LOG_BYTES: Final = 256 << 20
# Result keys that the task itself uses.
RESERVED: Final = ("ok", "outputs", "run", "files", "children")
_RESULT_BYTES: Final = 16 << 20
logger = logging.getLogger(__name__)
_READY = "ready.json"
_INSTALL_S = 1800.0


def main(folder: Path) -> None:
    """Run the function of a job.

    Raises:
        CommandFailedError: If the function failed, ran too long or wrote too much.
        InputError: If its result does not match the spec, or its packages cannot be installed.
        MachineError: If network isolation is required and this machine does not support it.
    """
    # Secrets are not filled into the code, where `${` is plain text.
    task = open_task(folder, PythonTaskSpec, filled=False)
    job, spec, session = task.job, task.spec, task.session
    variables: dict[str, str] = job_secrets.filled({"env": dict(spec.env)})["env"]
    work = _fresh(folder, spec.code)
    session.status.write(state="running", phase="installing" if spec.requirements else "running")
    python = _python_with(spec.requirements, _environment({}))
    session.status.write(phase="running")
    seconds = _run(spec, job, work, python, _environment(variables))
    result = returned(work / "result.json", spec.emits)
    outputs = _delivered(folder, work, result)
    _record(session, result["metrics"])
    about = {"seconds": round(seconds, 3), "network": spec.network, "requirements": list(spec.requirements)}
    write_json(task.folder.responses_json, {"ok": True, **result, "outputs": outputs, "run": about}, sync=True)


def _fresh(folder: Path, code: str) -> Path:
    """Return an empty folder with the code: an interrupted function starts again."""
    work = folder / WORK
    shutil.rmtree(work, ignore_errors=True)
    (work / OUTPUT).mkdir(parents=True)
    (work / "task.py").write_text(code, encoding="utf-8")
    return work


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the function's environment: no credentials, server addresses or variables of ours, plus its spec's."""
    inherited = without_credentials(inherited_environment())
    plain = {name: value for name, value in inherited.items() if not name.startswith(_OURS)}
    return {**plain, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", **variables}


def _run(spec: PythonTaskSpec, job: Job, work: Path, python: str, environment: Mapping[str, str]) -> float:
    call, failure = work / "call.json", work / "failure.json"
    stages = {name.partition(".")[2]: path for name, path in job.inputs.items() if name.startswith("upstream.")}
    limits = {
        # The log is a file as well, but does not count as output.
        "file_bytes": spec.output_limits.max_bytes + _LOG_BYTES,
        "memory_bytes": spec.resources.hardware.memory_bytes,
        "cpu_s": int(spec.timeout_s * (os.cpu_count() or 1)) + 60,
    }
    write_json(call, {
        "code": str(work / "task.py"), "entrypoint": spec.entrypoint, "inputs": stages, "network": spec.network,
        "limits": limits, "result": str(work / "result.json"), "failure": str(failure),
    })  # fmt: skip
    began = time.monotonic()
    try:
        returncode = subprocesses.run(
            [python, "-I", "-u", str(Path(runner.__file__).resolve()), str(call)],
            env=environment, cwd=work, timeout_s=spec.timeout_s, while_running=_weighing(work, spec),
        )  # fmt: skip
    except subprocesses.TimeUpError:
        raise CommandFailedError(f"The code ran longer than timeoutSeconds ({spec.timeout_s:g} s).", "input") from None
    # Once more after the end: the function may have written since the last check.
    _weighing(work, spec, every_s=0.0)()
    failure_report = read_json(failure) or {}
    if returncode == runner.NO_ISOLATION:
        raise MachineError(
            "The code requires network isolation, which this worker does not support: "
            f"{failure_report.get('message')}.",
            hint="Set network: bridge to allow network access, or enable user namespaces on the worker.",
        )
    if failure_report:
        raise CommandFailedError(
            f"The code failed: {failure_report['message']}.",
            failure_report.get("kind", "input"),
            failure_report.get("traceback"),
        )
    if returncode != 0:
        raise _ended_by(returncode)
    return time.monotonic() - began


def _ended_by(returncode: int) -> CommandFailedError:
    if returncode < 0:
        how = f"was ended by signal {-returncode}; the machine or the run may have run out of memory"
        return CommandFailedError(f"The code {how}.", "oom" if returncode == -9 else "bug")
    return CommandFailedError(f"The code ended with exit code {returncode} and returned nothing.", "input")


def _weighing(work: Path, spec: PythonTaskSpec, every_s: float = _LOOK_S) -> Callable[[], None]:
    """Return a callback that raises if the function writes more than allowed."""
    looked_at = 0.0

    def look() -> None:
        nonlocal looked_at
        if time.monotonic() - looked_at < every_s:
            return
        size_bytes = size_of(work)
        looked_at = time.monotonic()
        if size_bytes > spec.output_limits.max_bytes:
            raise CommandFailedError(
                f"The code wrote {size_bytes:,} bytes; pythonOutput.maxBytes allows {spec.output_limits.max_bytes:,}.",
                "input",
            )

    return look


def _delivered(folder: Path, work: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Move the outputs to the job folder, and describe them."""
    write_json(folder / "metrics.json", result["metrics"])
    (work / "result.json").replace(folder / "result.json")
    found: dict[str, Any] = {name: _file(folder, name) for name in ("result.json", "metrics.json")}
    _refuse_links(work / OUTPUT)
    if any((work / OUTPUT).iterdir()):
        shutil.rmtree(folder / OUTPUT, ignore_errors=True)
        (work / OUTPUT).rename(folder / OUTPUT)
        found[OUTPUT] = {"kind": "folder", "relative_path": OUTPUT, "bytes": size_of(folder / OUTPUT)}
    return found


def _refuse_links(output: Path) -> None:
    """Reject links: they could deliver files of the worker itself."""
    for path in output.rglob("*"):
        if path.is_symlink():
            raise InputError(f"The code wrote a link to output: {path.relative_to(output)}.", hint="Copy the file.")


def _file(folder: Path, name: str) -> dict[str, Any]:
    digest, size_bytes = hash_file(folder / name)
    return {"kind": FILE_KIND, "relative_path": name, "bytes": size_bytes, "sha256": digest}


def _record(session: JobSession, metrics: Mapping[str, Any]) -> None:
    numbers = {
        name: value for name, value in metrics.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if numbers:
        session.journal.metric(0, numbers)
        session.journal.event("code.returned", f"The function returned {json.dumps(numbers)}.")


def returned(path: Path, emits: Sequence[str]) -> dict[str, Any]:
    """Return the function's return value, as a mapping with its `metrics`."""
    size_bytes = path.stat().st_size
    if size_bytes > _RESULT_BYTES:
        raise InputError(
            f"The function returned {size_bytes:,} bytes; at most {_RESULT_BYTES:,} are allowed.",
            hint="Write large data to the folder output.",
        )
    value = json.loads(path.read_bytes())
    result: dict[str, Any] = dict(value) if isinstance(value, dict) else {"value": value}
    taken = [name for name in RESERVED if name in result]
    if taken:
        raise InputError(f"The function returned {taken[0]!r}, a reserved name in the result.")
    metrics = result.get("metrics", {})
    if not isinstance(metrics, Mapping):
        raise InputError("The function returned metrics that are not a mapping of names to numbers.")
    for name in emits:
        if name not in metrics:
            raise InputError(f"spec.emits: the function returned no metric {name!r}; it has {_names(metrics)}.")
        number = metrics[name]
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise InputError(f"spec.emits: the metric {name!r} is {number!r}, not a number.")
    return {**result, "metrics": dict(metrics)}


def size_of(folder: Path) -> int:
    """Return the size of a folder in bytes; files that disappear meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if not path.is_dir() else 0
        except FileNotFoundError:
            continue
    return total


def _names(metrics: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, metrics))) or "none"


def _python_with(requirements: Sequence[str], environment: Mapping[str, str], cache: Path | None = None) -> str:
    """Return an interpreter with the given packages; the layer is created on first use."""
    if not requirements:
        return sys.executable
    root = cache or Path(platformdirs.user_cache_dir("tunefleet")) / "python-layers"
    root.mkdir(parents=True, exist_ok=True)
    # Another interpreter or worker environment needs another layer.
    text = "\n".join([sys.version, sysconfig.get_path("purelib"), *sorted(requirements)])
    layer = root / hashlib.sha256(text.encode()).hexdigest()[:24]
    # Several tasks of one worker may need the same layer at the same time.
    with FileLock(f"{layer}.lock"):
        if read_json(layer / _READY) is None:
            _create_layer(layer, requirements, environment)
    return str(layer / "bin" / "python")


def _create_layer(layer: Path, requirements: Sequence[str], environment: Mapping[str, str]) -> None:
    logger.info("Installing %s.", ", ".join(requirements))
    shutil.rmtree(layer, ignore_errors=True)
    _run_installer([sys.executable, "-m", "venv", "--without-pip", str(layer)], environment)
    worker_packages = Path(sysconfig.get_path("purelib"))
    layer_packages = layer / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    # In a .pth file, which comes after the layer's own packages in sys.path, so that those take precedence.
    (layer_packages / "zz_worker.pth").write_text(f"{worker_packages}\n", encoding="utf-8")
    wanted = layer / "requirements.txt"
    wanted.write_text("\n".join(requirements) + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(layer / "bin" / "python"), "install", "--no-input"]
    _run_installer([*pip, "--disable-pip-version-check", "--quiet", "-r", str(wanted)], environment)
    write_json(layer / _READY, {"requirements": list(requirements)}, sync=True)


def _run_installer(command: Sequence[str], environment: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError("Installing the packages of spec.requirements took more than half an hour.") from None
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")]
        last = (errors or lines or ["no error message"])[-1].removeprefix("ERROR: ")
        raise InputError(f"The packages of spec.requirements cannot be installed: {last}", detail="\n".join(lines))
