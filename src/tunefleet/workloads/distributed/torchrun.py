"""The launcher of a job with several processes: torchrun, in the place of the trainer.

Started by the keeper as `python -m tunefleet.workloads.distributed.torchrun FOLDER PROCESSES`. The ranks inherit the
job's locks, so the job is not over before the last one is gone, and die with the launcher. When one fails the others
are ended, and the error of the one that failed first becomes that of the job: those that follow only say that somebody
is missing.
"""

from __future__ import annotations

import logging
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from subprocess import Popen
from typing import Any, NoReturn

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler
from torch.distributed.run import parse_args, run

from tunefleet.runtime.environment import thread_count
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control import diagnostics
from tunefleet.trainer_control.diagnostics import RANKS
from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.workloads.distributed import torchrun_nodes
from tunefleet.workloads.distributed.ranks import LAUNCHER
from tunefleet.workloads.faults import FAILED, INPUT_FAILED

logger = logging.getLogger(__name__)

_ENTRY = "tunefleet.workloads.entrypoint"
# The end of a rank by one of these is nobody else's doing; SIGABRT is how NCCL ends a rank whose peer has gone.
_CAUSES = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_BLANK = {"phase": "loading"}
_DELIBERATE = ("completed", "stopped", "paused", "aborted")


def main(folder: Path, processes: int) -> int:
    """Run a job's ranks until the last has ended.

    Returns:
        The exit code: 0 if all ended properly, 2 if something that the user named cannot be used, else 1. If a rank
        was killed, this process ends by the same signal.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    diagnostics.listen()
    shutil.rmtree(folder / RANKS, ignore_errors=True)
    gang = (read_json(folder / "job.json") or {}).get("gang")
    _pass_locks_on()
    _prepare_environment(processes, gang)
    try:
        run(parse_args(arguments(folder, processes, gang)))
    except ChildFailedError as error:
        return _blame(JobFolder(folder), error.failures)
    except SignalException as error:
        _end_by(signal.Signals(error.sigval))
    except (DistStoreError, DistNetworkError, TimeoutError) as error:
        if gang is None:
            raise
        _fail(JobFolder(folder), torchrun_nodes.missed(gang, error), "network")
        return FAILED
    if gang is not None and gang["rank"] > 0:
        # Nobody else says so here: the first node reports.
        status = {"state": "completed", "phase": "training", "at": time.time(), "pid": os.getpid()}
        write_json(folder / "status.json", status, sync=True)
    return 0


def arguments(folder: Path, processes: int, gang: Mapping[str, Any] | None = None) -> list[str]:
    """Return what torchrun is told."""
    if gang is not None:
        return [*torchrun_nodes.arguments(gang, processes), "--module", _ENTRY, str(folder)]
    # Reachable on this machine only, whatever the machine is called.
    where = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={processes}"]
    return [*where, "--module", _ENTRY, str(folder)]


def _prepare_environment(processes: int, gang: Mapping[str, Any] | None) -> None:
    os.environ["OMP_NUM_THREADS"] = str(max(1, thread_count(os.environ) // processes))
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ[LAUNCHER] = str(os.getpid())
    if gang is not None:
        torchrun_nodes.prepare_environment(gang)
    elif sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _pass_locks_on() -> None:
    """Let ranks inherit what this process has inherited: the locks of the job and of its GPUs; torch closes all."""

    def start(handler: Any, args: tuple[str, ...], env: dict[str, str]) -> Popen[bytes]:
        return Popen(
            args,
            env=env,
            stdout=handler._stdout,
            stderr=handler._stderr,
            start_new_session=True,
            pass_fds=_inheritable(),
        )

    if not hasattr(SubprocessHandler, "_popen"):
        logger.warning("This torch starts processes in a way that is not known; the ranks do not hold the job's lock")
    SubprocessHandler._popen = start


def _inheritable() -> tuple[int, ...]:
    found: list[int] = []
    for number in (int(entry.name) for entry in Path("/dev/fd").iterdir()):
        try:
            if number > 2 and os.get_inheritable(number):
                found.append(number)
        except OSError:
            continue  # the one that the list was read from
    return tuple(found)


def _blame(folder: JobFolder, failures: dict[int, ProcessFailure]) -> int:
    """Make the first failure that of the job."""
    status = read_json(folder.status_json) or {}
    if status.get("state") in _DELIBERATE:
        return 0  # its leader has ended all of them
    reports = [report for path in sorted((folder.root / RANKS).glob("*.json")) if (report := read_json(path))]
    signals = {rank: -failure.exitcode for rank, failure in failures.items() if failure.exitcode < 0}
    killed = next((rank for rank, number in sorted(signals.items()) if number in _CAUSES), None)
    if killed is None and not reports:
        killed = next((rank for rank, number in sorted(signals.items()) if number != signal.SIGTERM), None)
    if killed is not None:
        number = signal.Signals(signals[killed])
        logger.error("Rank %d was ended by %s; the others are ended too", killed, number.name)
        if status:
            # What another rank said afterwards is not the cause.
            unsaid = {"state": "running", "error": None, "error_kind": None, "traceback": None}
            write_json(folder.status_json, {**status, **unsaid}, sync=True)
        _end_by(number)
    if not reports:
        codes = {rank: failure.exitcode for rank, failure in failures.items()}
        logger.error("Ranks ended with exit codes %s and did not say why", codes)
        return next((code for code in codes.values() if code > 0), FAILED)
    # A rank that has lost the connection to another has lost it because that one failed, whoever says so first.
    first = min(reports, key=lambda report: (report["kind"] == "network", float(report["at"])))
    logger.error("Rank %s failed first: %s", first["rank"], first["error"])
    said = {"state": "failed", "error": first["error"], "error_kind": first["kind"], "traceback": first["traceback"]}
    blank = {"phase": "loading", "at": first["at"], "pid": os.getpid()}
    write_json(folder.status_json, {**blank, **status, **said}, sync=True)
    return INPUT_FAILED if first["kind"] == "input" else FAILED


def _fail(folder: JobFolder, error: str, kind: str) -> None:
    logger.error("%s", error)
    status = {**_BLANK, **(read_json(folder.status_json) or {}), "at": time.time(), "pid": os.getpid()}
    write_json(folder.status_json, {**status, "state": "failed", "error": error, "error_kind": kind}, sync=True)


def _end_by(number: signal.Signals) -> NoReturn:
    """End as the rank did, so that whoever waits sees what it was; without a core of the launcher."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
