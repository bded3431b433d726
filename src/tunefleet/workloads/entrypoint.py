"""Entry point of every trainer process: reads `job.json`, calls the program that it names, reports the outcome.

Started as `python -m tunefleet.workloads.entrypoint FOLDER`, or called by the fork server. The supervisor reads the
outcome from `status.json`; the exit code only repeats it.
"""

from __future__ import annotations

import gc
import importlib
import logging
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from tunefleet import trainer_control
from tunefleet.errors import MachineError, TunefleetError, UnreachableError, is_disk_full, names_machine_error
from tunefleet.runtime.disk_check import DiskTooSmallError
from tunefleet.schemas.job_folder import Job, JobFolder
from tunefleet.trainer_control import diagnostics
from tunefleet.trainer_control.distributed import world
from tunefleet.workloads.common import job_secrets
from tunefleet.workloads.distributed import ranks
from tunefleet.workloads.faults import FAILED, INPUT_FAILED, CommandFailedError, DivergedError, ErrorKind

logger = logging.getLogger(__name__)

_NEARLY_FULL_BYTES = 16 << 20
# bitsandbytes warns about an optional kernel at each import on a CPU; httpx logs every hub request at INFO.
_NOISY_LOGGERS = ("bitsandbytes", "httpx", "httpx2")
# Messages of gloo when a peer is lost; NCCL raises a dedicated exception instead.
_PEER_LOST = ("gloo/transport", "Connection closed by peer", "Connection reset by peer", "Gloo connectFullMesh failed")
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")


def main(folder: Path) -> int:
    """Run the job of a folder.

    Returns:
        The exit code: 0 on success, 2 if something that the user named cannot be used, else 1.

    Raises:
        SystemExit: If a command aborted the program; the status is already written.
    """
    _log_to_stderr()
    diagnostics.listen()
    ranks.die_with_launcher()
    try:
        session = trainer_control.open_session(folder)
    except trainer_control.ResumeError as error:
        logger.error("%s", error)  # noqa: TRY400 - the status has it for the user; the traceback adds nothing
        return INPUT_FAILED
    try:
        job = Job.model_validate(session.job)
        # Before any program is imported: no library code may find the secrets in the environment.
        job_secrets.read_secrets(job)
        session.journal.event(
            "launch.started", "Process started.", data={"launch": job.launch, "prepared_at": job.prepared_at}
        )
        if JobFolder(folder).responses_json.exists():
            # A launch was killed between writing its result and its final status.
            logger.info("The job already has its result; it is not run again")
        else:
            _program(job.program)(folder)
        session.journal.event("launch.ended", "Process finished.", data={"launch": job.launch})
        session.finish()
    except Exception as error:
        session.settle()
        kind = kind_of(error, folder)
        predicted = isinstance(error, DiskTooSmallError)
        message = message_of(error) if kind != "disk" or predicted else _disk_full_message(folder)
        # A traceback does not help the user with an input error; the status keeps it for maintainers.
        logger.log(logging.ERROR, "The job failed: %s", message, exc_info=kind == "bug")
        if kind == "disk":
            _discard_unfinished(folder)
        message = job_secrets.redacted(message)
        session.journal.event("launch.failed", message, "error")
        stack = error.traceback if isinstance(error, CommandFailedError) else traceback.format_exc()
        session.fail(message, kind, stack and job_secrets.redacted(stack))
        return INPUT_FAILED if kind == "input" else FAILED
    finally:
        session.close()
    return 0


def kind_of(error: BaseException, folder: Path) -> ErrorKind:
    """Return the kind of failure of an exception, which decides whether the task is retried."""
    if isinstance(error, CommandFailedError):
        return error.kind
    if isinstance(error, DiskTooSmallError) or _is_about_disk(error):
        return "disk"
    if isinstance(error, UnreachableError | ConnectionError | TimeoutError) or _is_about_peers(error):
        return "network"
    if isinstance(error, DivergedError):
        return "diverged"
    if isinstance(error, TunefleetError) and not (isinstance(error, MachineError) and _is_about_machine(error)):
        return "input"
    if _is_out_of_memory(error):
        return "oom"
    if _is_about_machine(error):
        return "machine"
    # Some libraries hide the errno of a failed write: a disk without space left is the likelier cause then.
    return "disk" if shutil.disk_usage(folder).free < _NEARLY_FULL_BYTES else "bug"


def _is_out_of_memory(error: BaseException) -> bool:
    # Matched by name: importing torch for its exception class would slow down programs that do not use it.
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _OUT_OF_MEMORY)


def _is_about_peers(error: BaseException) -> bool:
    """Whether the error of a rank only means that it lost another rank."""
    if world.size() == 1:
        return False
    if type(error).__name__ in {"DistBackendError", "DistNetworkError", "DistStoreError"}:
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _PEER_LOST)


def _is_about_machine(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ImportError):
            return True
        if isinstance(cause, RuntimeError | OSError) and names_machine_error(str(cause)):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _is_about_disk(error: BaseException) -> bool:
    # Libraries wrap the OSError of a failed write, so the whole chain of causes is searched.
    cause: BaseException | None = error
    while cause is not None:
        if is_disk_full(cause) or "No space left on device" in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def message_of(error: BaseException) -> str:
    """Return the error as one sentence; messages of third-party exceptions are prefixed with their type."""
    if isinstance(error, TunefleetError | CommandFailedError):
        return str(error)
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _disk_full_message(folder: Path) -> str:
    # The messages of libraries name neither the disk nor a fix.
    free = shutil.disk_usage(folder).free
    return (
        f"The disk is full: {free:,} bytes are free on the disk of {folder}. Free some space, or keep fewer "
        "checkpoints (`training.save_total_limit`)."
    )


def _discard_unfinished(folder: Path) -> None:
    """Delete incomplete files: they are unusable, and the failure report needs the space."""
    incomplete = [
        path for path in (folder / "checkpoints").glob("checkpoint-*") if not (path / "manifest.json").exists()
    ]
    for path in [*incomplete, *folder.glob(".*.partial")]:
        logger.warning("%s is deleted: the disk filled up before it was complete", path.name)
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _program(name: str) -> Callable[[Path], None]:
    module, _, function = name.partition(":")
    # Imports create about a million permanent objects; collecting garbage among them takes a tenth of the import time.
    gc.disable()
    try:
        program: Callable[[Path], None] = getattr(importlib.import_module(module), function)
    finally:
        # Moves them out of the collector's generations, so that later collections skip them.
        gc.freeze()
        gc.enable()
    return program


def _log_to_stderr() -> None:
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
