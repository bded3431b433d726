"""The checks of `tunefleet doctor`: each returns a finding and how to fix it. Prints nothing."""

from __future__ import annotations

import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal, NamedTuple

import psutil

from tunefleet import errors
from tunefleet.artifacts import disk_free
from tunefleet.cli import formatting
from tunefleet.cli.options import chosen_url
from tunefleet.cli.server.check_machine import (
    Finding,
    artifact_store,
    bad,
    certificate,
    clock,
    good,
    home,
    proxy,
    redis,
    shared_memory,
    warning,
)
from tunefleet.client import Client
from tunefleet.db.engine.sqlite import fault_of
from tunefleet.errors import StoreError, TunefleetError
from tunefleet.runtime.envs import FAMILIES, at
from tunefleet.schemas.server_info import PeersView
from tunefleet.settings import ClientSettings, ClusterSettings, ServerSettings, load

_TRAINING: Final = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
# The training libraries alone take half of it.
_LEAST_MEMORY: Final = 2 << 30
_LEAST_DISK: Final = 2 << 30
# `import torch` may take long from a cold disk.
_COMMAND_TIMEOUT_S: Final = 120
_REINSTALL_TORCH: Final = (
    f"See why with `{sys.executable} -c 'import torch'`, then reinstall it: pip install --force-reinstall torch."
)
# A leader without a heartbeat for this long is about to be replaced, or cannot reach the database.
_MISSED_S: Final = 10.0
# No such job exists: an answer of "unknown job" proves that the cluster responds.
_PROBE_JOB: Final = "tunefleet-doctor"


def python() -> Finding:
    """Report the interpreter; a version that is too old could not have imported this."""
    return good("Python", f"{platform.python_version()} at {sys.executable}")


def training_libraries() -> Finding:
    """Check that the training libraries are installed, without importing them."""
    missing = [name for name in _TRAINING if find_spec(name) is None]
    if missing:
        return warning(
            "Training libraries",
            f"{', '.join(missing)} missing: this machine can run the server, CLI and SDK, but no training",
            errors.install_command("train"),
        )
    return good("Training libraries", ", ".join(f"{name} {_version(name)}" for name in _TRAINING))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(unknown version)"


def environments() -> Finding:
    """Report which third-party environments are ready; an unfinished or outdated one cannot be used."""
    found = [at(name) for name in FAMILIES]
    ready = [each.name for each in found if each.ready]
    broken = [each for each in found if each.state in ("stale", "unfinished")]
    text = f"ready: {', '.join(ready)}" if ready else "none; some task kinds need one (`tunefleet env list`)"
    if broken:
        listed = ", ".join(f"{each.name} is {each.state}" for each in broken)
        fix = "; ".join(f"tunefleet env create {each.name} --again" for each in broken)
        return warning("Environments", f"{text}; {listed}" if ready else listed, fix)
    return good("Environments", text)


def gpu() -> Finding:
    """Check the driver, the GPUs, and whether torch can use them."""
    driver = _run(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
    cards = [line.strip() for line in (driver or "").splitlines() if line.strip()]
    if find_spec("torch") is None:
        return good("GPU", "; ".join(cards) or "none found; torch is not installed")
    # In a subprocess: a broken torch installation must not end `doctor`.
    program = "import torch; print(torch.version.cuda or torch.version.hip or '', torch.cuda.device_count())"
    output = _run([sys.executable, "-c", program])
    if output is None:
        return bad("GPU", f"torch {_version('torch')} cannot be imported", _REINSTALL_TORCH)
    words = output.split()
    usable = int(words[-1]) if words and words[-1].isdigit() else 0
    build = words[0] if len(words) == 2 else None
    if usable:
        return good(
            "GPU", f"{'; '.join(cards) or formatting.plural(usable, 'GPU')}; torch uses {usable} (runtime {build})"
        )
    if cards and build is None:
        return warning(
            "GPU", f"{'; '.join(cards)}, but torch is the CPU build", "Reinstall torch without the CPU index."
        )
    if cards:
        return warning(
            "GPU",
            f"{'; '.join(cards)}, but torch (CUDA {build}) cannot use it",
            "Update the NVIDIA driver, or install the torch build for its CUDA version; check CUDA_VISIBLE_DEVICES.",
        )
    return good("GPU", "none; training runs on the CPU")


def _run(command: list[str]) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def memory() -> Finding:
    """Check the free memory."""
    now = psutil.virtual_memory()
    found = f"{formatting.size(now.available)} free of {formatting.size(now.total)}"
    if now.available < _LEAST_MEMORY:
        return warning("Memory", found, "Free some memory: the training libraries alone need about 1 GiB.")
    return good("Memory", found)


def disk() -> Finding:
    """Check the free disk space of the data folder."""
    folder = load(ServerSettings).data_dir
    free = disk_free(folder)
    found = f"{formatting.size(free)} free at {folder}"
    if free < _LEAST_DISK:
        return warning("Disk", found, "Free some space (`tunefleet prune`), or choose another folder with --data.")
    return good("Disk", found)


def port() -> Finding:
    """Check that the port is free, or report which process listens."""
    wanted = load(ServerSettings).port
    owner = _listener(wanted)
    if owner is None:
        return good("Port", f"{wanted} is free")
    if "tunefleet" in owner:
        return good("Port", f"{wanted} is used by Tunefleet ({owner})")
    return warning("Port", f"{wanted} is in use by {owner}", "Stop it, or start with `tunefleet up --port N`.")


def _listener(wanted: int) -> str | None:
    """Return the process that listens on a port, as far as this user may see it; `None` if none does."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        # A connect needs no privileges; listing the sockets of other users does.
        if probe.connect_ex(("127.0.0.1", wanted)) != 0:
            return None
    try:
        listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        pid = next((c.pid for c in listening if c.pid and getattr(c.laddr, "port", None) == wanted), None)
        command = " ".join(psutil.Process(pid).cmdline()[:4]) if pid else ""
    except psutil.Error:
        pid, command = None, ""
    return f"process {pid} ({command})" if pid else "a process of another user"


def data_folder() -> Finding:
    """Check that the data folder is writable and its database intact; changes nothing."""
    folder = load(ServerSettings).data_dir
    if not folder.exists():
        return good("Data folder", f"{folder} is created at the first start")
    try:
        probe = folder / ".doctor"
        # A real write: permission bits say nothing about read-only mounts.
        probe.touch()
        probe.unlink()
    except OSError as error:
        return bad("Data folder", f"{folder} is not writable: {error.strerror}", f"chown or chmod {folder}.")
    databases = sorted(folder.glob("*.db")) + sorted(folder.glob("*.sqlite*"))
    # WAL and shared-memory files belong to a database and cannot be checked on their own.
    for database in (path for path in databases if not path.name.endswith(("-wal", "-shm"))):
        fault = fault_of(database)
        if fault:
            return bad(
                "Data folder",
                f"{database} is corrupt: {fault}",
                f"Restore a backup, or move {folder} away and start with an empty one.",
            )
    return good("Data folder", f"{folder}" + (", database intact" if databases else ", no database yet"))


def database() -> Finding:
    """Check that the database can be read, and whether a start would migrate it."""
    from tunefleet.db.engine.offline import name_of, status_of, target_of

    settings = load(ServerSettings)
    url = settings.database_url
    try:
        target = target_of(None if url is None else url.get_secret_value(), settings.data_dir)
        if url is None and not Path(target).exists():
            return good("Database", f"{name_of(target)} is created at the first start")
        found = status_of(target)
    except StoreError as error:
        return bad("Database", error.message, error.hint or "Fix TUNEFLEET_DATABASE_URL.")
    text = f"{found.address}, {found.engine}, revision {found.revision or 'none yet'}"
    if found.revision is not None and not found.current:
        return warning("Database", text, f"`tunefleet backup FILE`, then `tunefleet db migrate` (to {found.newest}).")
    return good("Database", text)


def server() -> Finding:
    """Check that the chosen server answers and accepts the key."""
    from tunefleet import __version__

    try:
        with Client(chosen_url.get(), patience_s=0.5) as client:
            info, url = client.info(), client.url
            # A worker's key may not list the servers.
            role = peer_role(client.servers()) if info.role in {"admin", "member", "viewer"} else None
    except TunefleetError as error:
        return warning("Server", error.message, error.hint or "Start one with `tunefleet up`.")
    if not info.authenticated:
        return bad("Server", f"{url} rejects this key", f"Run `tunefleet login {url}` with a valid key.")
    if info.version != __version__:
        return warning("Server", f"{url} is version {info.version}, this is {__version__}", "Install the same version.")
    text = f"{url}, version {info.version}, logged in as {info.owner} ({info.role})"
    if role is None:
        return good("Server", text)
    if role.fix is not None:
        return warning("Server", f"{text}; {role.text}", role.fix)
    return good("Server", f"{text}; {role.text}")


def hub() -> Finding:
    """Report whether models and datasets are fetched from the Hub."""
    if load(ClientSettings).hub_offline:
        return good("Model hub", "off (HF_HUB_OFFLINE): only local and built-in models and datasets")
    return good(
        "Model hub", "on: names that are not local are fetched from huggingface.co (set HF_HUB_OFFLINE=1 to disable)"
    )


class PeerRole(NamedTuple):
    """The role of a server among its peers; `fix` says what to do if there is no leader."""

    text: str
    fix: str | None = None


def peer_role(view: PeersView) -> PeerRole | None:
    """Return the role of the server that answered; `None` if it is the only one on its database."""
    if not view.shared:
        return None
    leader = next((each for each in view.servers if each.leads and each.silent_s <= _MISSED_S), None)
    count = formatting.plural(len(view.servers), "server")
    if leader is None:
        return PeerRole(
            f"none of {count} is the leader", "See `tunefleet servers` and the logs of servers that do not respond."
        )
    if leader.this:
        return PeerRole(f"leader of {count}")
    return PeerRole(f"follower, one of {count}; the leader is {leader.id} on {leader.host}")


def slurm() -> Finding | None:
    """Check that Slurm answers; None if it is not enabled."""
    settings = load(ClusterSettings)
    return _answers("slurm", settings) if settings.slurm else None


def ray() -> Finding | None:
    """Check that Ray answers; None if it is not configured."""
    settings = load(ClusterSettings)
    return None if settings.ray_address is None else _answers("ray", settings)


def _answers(engine: Literal["slurm", "ray"], settings: ClusterSettings) -> Finding:
    from tunefleet.integrations.clusters import open_cluster

    name = engine.capitalize()
    try:
        open_cluster(engine, settings).look([_PROBE_JOB])
    except TunefleetError as error:
        return bad(
            name, error.message, error.hint or f"Check the cluster, and the settings TUNEFLEET_{engine.upper()}_*."
        )
    if settings.nodes_url is None:
        hint = "Set TUNEFLEET_NODES_URL to the server's URL as seen from the nodes."
        return warning(name, "reachable; its nodes may not reach the server at its listen address", hint)
    return good(name, f"reachable; its nodes start {settings.nodes_command} for {settings.nodes_url}")


# In the order of the output: machine first, then services, then the network.
CHECKS: tuple[Callable[[], Finding | None], ...] = (
    python,
    training_libraries,
    environments,
    gpu,
    memory,
    shared_memory,
    disk,
    home,
    port,
    certificate,
    data_folder,
    database,
    artifact_store,
    redis,
    slurm,
    ray,
    proxy,
    server,
    clock,
    hub,
)


def findings() -> Iterator[Finding]:
    """Run every check; a check that fails to run is a finding, too."""
    for check in CHECKS:
        try:
            found = check()
            if found is not None:  # None: not configured on this machine
                yield found
        except (TunefleetError, OSError) as error:
            name = check.__name__.replace("_", " ").capitalize()
            yield bad(name, str(error), "Fix this and run `tunefleet doctor` again.")
