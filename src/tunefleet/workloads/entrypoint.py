"""The entry of every trainer process: reads `job.json`, calls the program that it names, says how it ended.

Started as `python -m tunefleet.workloads.entrypoint FOLDER`, or called by the fork server. Whoever supervises reads the
end from `status.json`; the exit code only repeats it.
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
from tunefleet.errors import TunefleetError, UnreachableError, is_disk_full
from tunefleet.runtime.disk_check import DiskTooSmallError
from tunefleet.schemas.job_folder import Job, JobFolder
from tunefleet.trainer_control import diagnostics
from tunefleet.trainer_control.distributed import world
from tunefleet.workloads.common import job_secrets
from tunefleet.workloads.distributed import ranks
from tunefleet.workloads.faults import FAILED, INPUT_FAILED, CommandFailedError, DivergedError, ErrorKind

logger = logging.getLogger(__name__)

_NEARLY_FULL_BYTES = 16 << 20
# Says at each import on a CPU that an optional kernel is missing; every request of the hub's client at INFO.
_CHATTY = ("bitsandbytes", "httpx", "httpx2")
# What gloo says of it; NCCL has an exception of its own.
_PEER_GONE = ("gloo/transport", "Connection closed by peer", "Connection reset by peer", "Gloo connectFullMesh failed")
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")


def main(folder: Path) -> int:
    """Run the job of a folder.

    Returns:
        The exit code: 0 if the program ended properly, 2 if something that the user named cannot be used, else 1.

    Raises:
        SystemExit: If the program was aborted by a command; its end is in the status already.
    """
    _log_to_stderr()
    diagnostics.listen()
    ranks.die_with_launcher()
    try:
        session = trainer_control.open_session(folder)
    except trainer_control.ResumeError as error:
        logger.error("%s", error)  # noqa: TRY400 - the status has it for the user; where it was raised tells nobody anything
        return INPUT_FAILED
    try:
        job = Job.model_validate(session.job)
        job_secrets.take(job)
        session.journal.event("launch.started", f"{job.program} starts.", data={"launch": job.launch})
        if JobFolder(folder).responses_json.exists():
            logger.info("The job has its result already: it is not run again")
        else:
            _program(job.program)(folder)
        session.finish()
    except Exception as error:
        session.settle()
        kind = kind_of(error, folder)
        foreseen = isinstance(error, DiskTooSmallError)
        message = sentence_of(error) if kind != "disk" or foreseen else _disk_sentence(folder)
        # A traceback tells the user nothing about a mistake of theirs; it is in the status for a maintainer.
        logger.log(logging.ERROR, "The job failed: %s", message, exc_info=kind == "bug")
        if kind == "disk":
            _discard_unfinished(folder)
        message = job_secrets.hidden(message)
        session.journal.event("launch.failed", message, "error")
        told = error.traceback if isinstance(error, CommandFailedError) else traceback.format_exc()
        session.fail(message, kind, told and job_secrets.hidden(told))
        return INPUT_FAILED if kind == "input" else FAILED
    finally:
        session.close()
    return 0


def kind_of(error: BaseException, folder: Path) -> ErrorKind:
    """Say what kind of failure an exception is: decides whether a retry makes sense."""
    if isinstance(error, CommandFailedError):
        return error.kind
    if isinstance(error, DiskTooSmallError) or _is_about_disk(error):
        return "disk"
    if isinstance(error, UnreachableError | ConnectionError | TimeoutError) or _is_about_peers(error):
        return "network"
    if isinstance(error, DivergedError):
        return "diverged"
    if isinstance(error, TunefleetError):
        return "input"
    # torch is not imported here: a program without it must start without it.
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        return "oom"
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _OUT_OF_MEMORY):
        return "oom"
    return "disk" if shutil.disk_usage(folder).free < _NEARLY_FULL_BYTES else "bug"


def _is_about_peers(error: BaseException) -> bool:
    """Whether a rank only says that it has lost another one."""
    if world.size() == 1:
        return False
    if type(error).__name__ in {"DistBackendError", "DistNetworkError", "DistStoreError"}:
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _PEER_GONE)


def _is_about_disk(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if is_disk_full(cause) or "No space left on device" in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def sentence_of(error: BaseException) -> str:
    """Say in one sentence what went wrong; ours are written for the user, others get their type in front."""
    if isinstance(error, TunefleetError | CommandFailedError):
        return str(error)
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _disk_sentence(folder: Path) -> str:
    # What libraries say about it names neither the disk nor the way out.
    free = shutil.disk_usage(folder).free
    return (
        f"The disk is full: {free:,} bytes are free where {folder} lies. Free some space, or keep fewer checkpoints "
        "(`training.save_total_limit`)."
    )


def _discard_unfinished(folder: Path) -> None:
    """Delete what a full disk cut off: it is of no use, and the report of the failure needs room."""
    doomed = [path for path in (folder / "checkpoints").glob("checkpoint-*") if not (path / "manifest.json").exists()]
    for path in [*doomed, *folder.glob(".*.partial")]:
        logger.warning("%s is deleted: the disk was full before it was whole", path.name)
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _program(name: str) -> Callable[[Path], None]:
    module, _, function = name.partition(":")
    # The libraries make a million objects that stay: to look for garbage among them takes a tenth of the import.
    gc.disable()
    try:
        program: Callable[[Path], None] = getattr(importlib.import_module(module), function)
    finally:
        gc.freeze()
        gc.enable()
    return program


def _log_to_stderr() -> None:
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
