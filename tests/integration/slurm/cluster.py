"""A real Slurm of the test's own: one controller and two nodes on this machine, on ports of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

NODES: Final = ("n1", "n2")
CORES: Final = 2
"""What each node says it has; `config_overrides` lets it say so on any machine."""
_READY_S: Final = 60.0
_STOP_S: Final = 20.0
_PROGRAMS: Final = ("slurmctld", "slurmd", "sbatch")


def lacking() -> str | None:
    """Return what a Slurm on this machine lacks; None if nothing."""
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    if absent or _stepd() is None:
        return f"Slurm ({', '.join(absent) or 'slurmstepd'}; scripts/slurm.sh installs it)"
    return None


def _stepd() -> str | None:
    # Debian's slurmd looks for the first name where no package puts it.
    return shutil.which("slurmstepd-wlm") or shutil.which("slurmstepd")


class SlurmCluster:
    """Started once for the tests of a folder, which submit to it.

    Args:
        folder: For its configuration, state and logs.
        free_port: Finds ports.
    """

    def __init__(self, folder: Path, free_port: Callable[[], int]) -> None:
        self.folder = folder
        self.config = folder / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.config)}
        self._processes: list[subprocess.Popen[bytes]] = []
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir(parents=True)
        self.config.write_text(_config(folder, [free_port() for _ in range(len(NODES) + 1)]))

    def start(self) -> SlurmCluster:
        stepd = _stepd()
        assert stepd is not None, "the caller has asked what is missing"
        self._run("slurmctld", "-D")
        for node in NODES:
            self._run("slurmd", "-D", "-N", node, "-d", stepd)
        deadline = time.monotonic() + _READY_S
        while self._idle() < len(NODES):
            assert time.monotonic() < deadline, f"Slurm is not ready: see the logs in {self.folder}"
            assert all(each.poll() is None for each in self._processes), f"a daemon ended: see {self.folder}"
            time.sleep(0.2)
        return self

    def stop(self) -> None:
        """End all jobs, then the daemons."""
        self.call("scancel", "--user", "root", check=False)
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def call(self, *command: str, check: bool = True) -> str:
        """Run one of Slurm's commands against this cluster; returns what it prints."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False, cwd=self.folder
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, script: str, *options: str) -> str:
        """Submit a batch script; returns the id of its job."""
        path = self.folder / f"{len(list(self.folder.glob('*.sbatch')))}.sbatch"
        path.write_text(script)
        return self.call("sbatch", "--parsable", *options, str(path))

    def state(self, job: str) -> tuple[str, str]:
        """Return a job's state and the reason that Slurm gives for it."""
        fields = dict(
            each.split("=", 1)
            for each in self.call("scontrol", "--oneliner", "show", "job", job).split()
            if "=" in each
        )
        return fields["JobState"], fields["Reason"]

    def busy(self) -> int:
        """Return how many nodes are given away."""
        return len(NODES) - self._idle()

    def _run(self, *command: str) -> None:
        log = self.folder / f"{'-'.join(part.strip('-/').replace('/', '.') for part in command)}.out"
        with log.open("wb") as output:
            self._processes.append(
                subprocess.Popen(command, env=self.environment, stdout=output, stderr=subprocess.STDOUT)
            )

    def _idle(self) -> int:
        return self.call("sinfo", "-h", "-N", "-o", "%T", check=False).split().count("idle")


def _config(folder: Path, ports: list[int]) -> str:
    """No munge, no cgroups, no accounting: one user, one machine."""
    host = socket.gethostname().split(".")[0]
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CORES}"
        for node, port in zip(NODES, ports[1:], strict=True)
    )
    return f"""\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
{nodes}
PartitionName=main Nodes={",".join(NODES)} Default=YES MaxTime=INFINITE State=UP
"""
