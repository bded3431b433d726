"""The launcher of a job with several ranks: runs torchrun in place of the trainer.

Started by the job parent as `python -m tunefleet.workloads.distributed.torchrun FOLDER PROCESSES`. The ranks inherit
the job's locks, so the job ends only when the last rank has ended, and they die with the launcher. When one rank fails
the others are terminated, and the error of the rank that failed first becomes the error of the job: later errors only
say that a peer is missing.

With several nodes, the rendezvous store is on the first one: a static endpoint, known before any process starts,
because the node that reports must be the first. (With torchrun's dynamic rendezvous the ranks follow the order of
addresses.)
"""

from __future__ import annotations

import logging
import os
import resource
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from subprocess import Popen
from typing import Any, NoReturn

import psutil
from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler
from torch.distributed.run import parse_args, run

from tunefleet.runtime.environment import thread_count
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control import diagnostics
from tunefleet.trainer_control.diagnostics import RANKS
from tunefleet.trainer_control.distributed.world import NODE
from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.workloads.distributed.ranks import LAUNCHER
from tunefleet.workloads.faults import FAILED, INPUT_FAILED

_HINT = (
    "All nodes must be able to reach this address and port: check the firewall, and the gang address and port "
    "settings of the first node's worker."
)
logger = logging.getLogger(__name__)
_ENTRY = "tunefleet.workloads.entrypoint"
# Signals that are a cause and not a consequence. SIGABRT is missing: NCCL aborts a rank whose peer is lost.
_ROOT_CAUSES = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
# The status of a job whose trainer failed before it wrote one.
_INITIAL_STATUS = {"phase": "loading"}
_DELIBERATE = ("completed", "stopped", "paused", "aborted")


def main(folder: Path, processes: int) -> int:
    """Run the ranks of a job until the last one has ended.

    Returns:
        The exit code: 0 on success, 2 if something that the user named cannot be used, else 1. If a rank was killed,
        this process ends by the same signal.
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
        return _report_failures(JobFolder(folder), error.failures)
    except SignalException as error:
        _end_by(signal.Signals(error.sigval))
    except (DistStoreError, DistNetworkError, TimeoutError) as error:
        if gang is None:
            raise
        _fail(JobFolder(folder), _rendezvous_failure(gang, error), "network")
        return FAILED
    if gang is not None and gang["rank"] > 0:
        # Rank 0 writes the status on the first node; on other nodes no trainer does.
        status = {"state": "completed", "phase": "training", "at": time.time(), "pid": os.getpid()}
        write_json(folder / "status.json", status, sync=True)
    return 0


def arguments(folder: Path, processes: int, gang: Mapping[str, Any] | None = None) -> list[str]:
    """Return the arguments of torchrun."""
    if gang is not None:
        return [*_node_arguments(gang, processes), "--module", _ENTRY, str(folder)]
    # Loopback only: the rendezvous must not listen on the network, and the host name may not resolve.
    options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={processes}"]
    return [*options, "--module", _ENTRY, str(folder)]


def _prepare_environment(processes: int, gang: Mapping[str, Any] | None) -> None:
    # torchrun would set one thread per rank, which leaves cores of a CPU machine unused.
    os.environ["OMP_NUM_THREADS"] = str(max(1, thread_count(os.environ) // processes))
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ[LAUNCHER] = str(os.getpid())
    if gang is not None:
        _prepare_node_environment(gang)
    elif sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _pass_locks_on() -> None:
    """Let ranks inherit the locks of the job and of its GPUs; torch would close their descriptors."""

    def start(handler: Any, args: tuple[str, ...], env: dict[str, str]) -> Popen[bytes]:
        return Popen(
            args,
            env=env,
            stdout=handler._stdout,
            stderr=handler._stderr,
            start_new_session=True,
            pass_fds=_inheritable(),
        )

    # A private method: torch has no option to pass file descriptors on.
    if not hasattr(SubprocessHandler, "_popen"):
        logger.warning("This version of torch starts processes differently; the ranks do not hold the job's locks")
    SubprocessHandler._popen = start


def _inheritable() -> tuple[int, ...]:
    descriptors: list[int] = []
    for number in (int(entry.name) for entry in Path("/dev/fd").iterdir()):
        try:
            if number > 2 and os.get_inheritable(number):
                descriptors.append(number)
        except OSError:
            continue  # the descriptor of the directory listing itself
    return tuple(descriptors)


def _report_failures(folder: JobFolder, failures: dict[int, ProcessFailure]) -> int:
    """Write the first failure to the status of the job."""
    status = read_json(folder.status_json) or {}
    if status.get("state") in _DELIBERATE:
        return 0  # rank 0 ended the run, and the other ranks with it
    reports = [report for path in sorted((folder.root / RANKS).glob("*.json")) if (report := read_json(path))]
    signals = {rank: -failure.exitcode for rank, failure in failures.items() if failure.exitcode < 0}
    killed = next((rank for rank, number in sorted(signals.items()) if number in _ROOT_CAUSES), None)
    if killed is None and not reports:
        # torchrun ends the remaining ranks with SIGTERM, so that is never the cause.
        killed = next((rank for rank, number in sorted(signals.items()) if number != signal.SIGTERM), None)
    if killed is not None:
        number = signal.Signals(signals[killed])
        logger.error("Rank %d was killed by %s; the others are terminated", killed, number.name)
        if status:
            # An error that another rank reported afterwards is a consequence: the supervisor reports the signal.
            cleared = {"state": "running", "error": None, "error_kind": None, "traceback": None}
            write_json(folder.status_json, {**status, **cleared}, sync=True)
        _end_by(number)
    if not reports:
        codes = {rank: failure.exitcode for rank, failure in failures.items()}
        logger.error("Ranks ended with exit codes %s and reported no error", codes)
        return next((code for code in codes.values() if code > 0), FAILED)
    # A lost connection is a consequence of another rank's failure, even if it was reported earlier.
    first = min(reports, key=lambda report: (report["kind"] == "network", float(report["at"])))
    logger.error("Rank %s failed first: %s", first["rank"], first["error"])
    failure = {"state": "failed", "error": first["error"], "error_kind": first["kind"], "traceback": first["traceback"]}
    initial = {**_INITIAL_STATUS, "at": first["at"], "pid": os.getpid()}
    write_json(folder.status_json, {**initial, **status, **failure}, sync=True)
    return INPUT_FAILED if first["kind"] == "input" else FAILED


def _fail(folder: JobFolder, error: str, kind: str) -> None:
    logger.error("%s", error)
    status = {**_INITIAL_STATUS, **(read_json(folder.status_json) or {}), "at": time.time(), "pid": os.getpid()}
    write_json(folder.status_json, {**status, "state": "failed", "error": error, "error_kind": kind}, sync=True)


def _end_by(number: signal.Signals) -> NoReturn:
    """End this process by the signal that ended the rank, which the supervisor then sees."""
    # A core dump of the launcher would be of no use.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise SystemExit(128 + number)


def _node_arguments(gang: Mapping[str, Any], processes: int) -> list[str]:
    """Return the arguments of torchrun on one node."""
    return [
        f"--nnodes={gang['nodes']}",
        f"--node-rank={gang['rank']}",
        f"--nproc-per-node={processes}",
        # The server retries the task instead, with all nodes.
        "--max-restarts=0",
        "--rdzv-backend=static",
        f"--rdzv-id={gang['id']}",
        f"--rdzv-endpoint={gang['host']}:{gang['port']}",
        f"--rdzv-conf=timeout={int(gang['join_s'])}",
        f"--master-addr={gang['host']}",
        f"--master-port={gang['port']}",
        f"--local-addr={gang['address']}",
    ]


def _prepare_node_environment(gang: Mapping[str, Any]) -> None:
    """Set the node's rank and the network interface in the environment, unless an interface is set already."""
    os.environ[NODE] = str(gang["rank"])
    interface = interface_of(str(gang["address"])) if sys.platform == "linux" else None
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)


def interface_of(address: str) -> str | None:
    """Return the interface with an address; None if there is none, which lets torch choose."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.family in {socket.AF_INET, socket.AF_INET6} and each.address == address for each in addresses):
            return name
    logger.warning("No network interface has the address %s; torch chooses one", address)
    return None


def _rendezvous_failure(gang: Mapping[str, Any], error: BaseException) -> str:
    """Return the error message of a failed rendezvous."""
    endpoint = f"{gang['host']}:{gang['port']} within {gang['join_s']:.0f} s"
    lines = str(error).strip().splitlines()
    detail = f" ({lines[0]})" if lines else ""
    if gang["rank"] == 0:
        return f"Not all {gang['nodes']} nodes connected to {endpoint}{detail}. {_HINT}"
    return f"Node {gang['rank']} could not connect to the first node at {endpoint}{detail}. {_HINT}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
