"""Nodes from Slurm: a batch script starts the same command once on each node, with `sbatch`, `squeue` and `scancel`.

The script gets a minimal environment: the variables of a login shell and those of the ask. Exit code 75 of the command
means that it was preempted and wants to continue later: the job requeues itself. Source: the manual pages of Slurm
22.05 (sbatch, srun, squeue, scancel).
"""

from __future__ import annotations

import getpass
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tunefleet.errors import ConflictError, MachineError, UnreachableError
from tunefleet.integrations.clusters.base import Cluster, ClusterJobState, NodeRequest, Stage

# Exit code of a preempted command that continues when there are nodes again (EX_TEMPFAIL).
MADE_WAY: Final = 75
_COMMANDS: Final = ("sbatch", "squeue", "scancel", "srun", "scontrol")
_ANSWER_S: Final = 60.0
_KEPT: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TMPDIR", "SLURM_CONF")
"""Variables that the script inherits from this process; the others may contain secrets of the server."""
_STAGES: Final[dict[str, Stage]] = {
    **dict.fromkeys(
        ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
        "waiting",
    ),
    # The workers are frozen: their silence must not be mistaken for their end.
    **dict.fromkeys(("SUSPENDED", "STOPPED"), "waiting"),
    **dict.fromkeys(("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING"), "running"),
}
_HOPELESS: Final = frozenset(
    {
        "BadConstraints", "InvalidAccount", "InvalidQOS", "PartitionConfig", "PartitionNodeLimit",
        "PartitionTimeLimit",
        "AssocMaxWallDurationPerJobLimit", "QOSMaxWallDurationPerJobLimit", "QOSNotAllowed",
    }
)  # fmt: skip
"""Reasons of a pending job that waiting does not resolve."""
# Reason of a job whose script failed; `squeue` does not report the exit code.
_BAD_END: Final = "NonZeroExitCode"
# Messages of temporary errors: Slurm does not respond, or the user has reached a job limit.
_AWAY: Final = (
    "Unable to contact", "Socket timed out", "Connection refused", "Zero Bytes were transmitted",
    "temporarily unable", "MaxSubmitJob",
)  # fmt: skip


class Slurm(Cluster):
    """The Slurm cluster whose commands are installed on this machine.

    Args:
        prelude: Shell commands that run before the command on the first node, such as `module load cuda`.
    """

    def __init__(
        self, folder: Path, *, environment: Mapping[str, str], prelude: str = "", extra: Sequence[str] = ()
    ) -> None:
        self._environment = dict(environment)
        missing = [name for name in _COMMANDS if shutil.which(name, path=self._environment.get("PATH")) is None]
        if missing:
            raise MachineError(
                f"Command {missing[0]} is not installed on this machine.",
                hint="Run the server on a machine that can submit Slurm jobs, or unset TUNEFLEET_SLURM.",
            )
        self._folder = folder
        self._prelude = prelude
        self._extra = tuple(extra)

    def submit(self, ask: NodeRequest) -> str:
        """Submit the batch script; see `Cluster`."""
        known = self.look([ask.name]).get(ask.name)
        if known is not None and known.stage != "ended":
            return known.job_id
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConflictError(
                f"Cannot create the folder for Slurm's logs: {error}.", hint="Set TUNEFLEET_NODES_DIR."
            ) from error
        kept: dict[str, str] = {name: self._environment[name] for name in _KEPT if name in self._environment}
        output = self._call(
            # For a repeated option the last one wins: the task's own.
            "sbatch", *self._extra, *options_of(ask, self.log_of(ask.name)),
            script=script_of(ask.command, self._prelude), environment=kept | dict(ask.environment),
        )  # fmt: skip
        return output.strip().partition(";")[0]

    def look(self, names: Sequence[str]) -> dict[str, ClusterJobState]:
        """Query `squeue`; see `Cluster`."""
        if not names:
            return {}
        output = self._call(
            "squeue", "--noheader", "--states=all", f"--user={getpass.getuser()}", f"--name={','.join(names)}",
            "--format=%j|%i|%T|%r",
        )  # fmt: skip
        found: dict[str, ClusterJobState] = {}
        for line in output.splitlines():
            name, seen = self._read(line)
            # `squeue` lists the newest first; a live job takes precedence over ended ones with the same name.
            if name not in found or found[name].stage == "ended":
                found[name] = seen
        return found

    def _read(self, line: str) -> tuple[str, ClusterJobState]:
        parts = [part.strip() for part in line.split("|", 3)]
        if len(parts) < 4:
            raise ConflictError(f"Cannot parse the output of squeue: {line!r}.")
        name, job_id, state, reason = parts
        seen = _seen(job_id, state, reason)
        if reason == _BAD_END and (code := self._exit_code(job_id)):
            seen = replace(seen, reason=seen.reason.replace(_BAD_END, f"exit code {code}"))
        log = self.log_of(name)
        if seen.stage == "ended" and state != "COMPLETED" and log.exists():
            seen = replace(seen, reason=f"{seen.reason}; its log is {log}")
        return name, seen

    def _exit_code(self, job_id: str) -> str:
        """Return a job's exit code from `scontrol`; empty if Slurm has forgotten the job."""
        try:
            output = self._call("scontrol", "--oneliner", "show", "job", job_id)
        except ConflictError:
            return ""
        return output.partition(" ExitCode=")[2].partition(":")[0]

    def cancel(self, name: str) -> None:
        """Run `scancel`; see `Cluster`."""
        self._call("scancel", f"--user={getpass.getuser()}", f"--name={name}")

    def log_of(self, name: str) -> Path:
        """Return the path of a job's log."""
        return self._folder / f"{name}.log"

    def _call(self, *command: str, script: str | None = None, environment: Mapping[str, str] | None = None) -> str:
        try:
            done = subprocess.run(
                command, input=script, env=dict(environment or self._environment), capture_output=True, text=True,
                timeout=_ANSWER_S, check=False, cwd=self._folder if self._folder.is_dir() else None,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise UnreachableError(f"Slurm does not respond: {command[0]} took longer than {_ANSWER_S:g} s.") from error
        except OSError as error:
            raise UnreachableError(f"Cannot run {command[0]}: {error}.") from error
        if done.returncode == 0:
            return done.stdout
        problem = (_words(done.stderr) or f"{command[0]} ended with {done.returncode}").rstrip(".")
        if any(sign in done.stderr for sign in _AWAY):
            raise UnreachableError(f"Slurm is temporarily unavailable: {problem}.")
        raise ConflictError(f"Slurm rejected the request: {problem}.")


def options_of(ask: NodeRequest, log: Path) -> list[str]:
    """Return the `sbatch` options of an ask."""
    chosen = dict(ask.options)
    gpu_type, exclusive = chosen.pop("gpu_type", None), chosen.pop("exclusive", None)
    nodes = str(ask.nodes) if ask.nodes_max <= ask.nodes else f"{ask.nodes}-{ask.nodes_max}"
    found = [
        "--parsable", "--export=ALL", "--requeue", "--open-mode=append", "--ntasks-per-node=1",
        f"--job-name={ask.name}", f"--nodes={nodes}", f"--output={log}", f"--signal=USR1@{round(ask.grace_s)}",
    ]  # fmt: skip
    if ask.cpu:
        found.append(f"--cpus-per-task={ask.cpu}")
    if ask.memory_bytes:
        found.append(f"--mem={-(-ask.memory_bytes // (1 << 20))}M")
    if ask.gpu_count:
        found.append("--gres=" + ":".join(["gpu", *([gpu_type] if gpu_type else []), str(ask.gpu_count)]))
    if exclusive:
        found.append("--exclusive")
    return found + [f"--{name}={value}" for name, value in sorted(chosen.items())]


def script_of(command: Sequence[str], prelude: str = "") -> str:
    """Return the batch script: runs the command once on each node; after a preemption the job is requeued."""
    node = 'TUNEFLEET_NODE=$SLURM_NODEID exec "$@"'
    return (
        "#!/bin/bash\n"
        f"{prelude.rstrip()}\n"
        "code=0\n"
        # One node's end must not stop the others: the first node of a training run may still upload its checkpoint.
        # `|| code=$?`: under a prelude with `set -e` a failing srun would end the script before the requeue.
        f"srun --kill-on-bad-exit=0 --wait=0 bash -c {shlex.quote(node)} node {shlex.join(command)} || code=$?\n"
        # A job that is being cancelled is no longer RUNNING, and must not be requeued.
        f'if [ "$code" -eq {MADE_WAY} ] && [ "$(squeue -h -j "$SLURM_JOB_ID" -o %T)" = RUNNING ]; then\n'
        '    scontrol requeue "$SLURM_JOB_ID"\n'
        "fi\n"
        'exit "$code"\n'
    )


def _seen(job_id: str, state: str, reason: str) -> ClusterJobState:
    stage = _STAGES.get(state, "ended")
    detail = "" if reason in {"None", "(null)", ""} else reason
    if stage == "running":
        return ClusterJobState(job_id, stage, ending=state == "COMPLETING")
    output = " ".join(filter(None, (state.lower().replace("_", " "), f"({detail})" if detail else "")))
    hopeless = stage == "waiting" and detail in _HOPELESS
    return ClusterJobState(job_id, stage, output, withdrawn=state == "CANCELLED", hopeless=hopeless)


def _words(stderr: str) -> str:
    lines = [line.partition("error: ")[2] or line for line in stderr.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(line.strip() for line in lines))
