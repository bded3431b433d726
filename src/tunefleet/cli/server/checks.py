"""What `tunefleet doctor` looks at: each check returns what it found and how to mend it. Prints nothing."""

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
from tunefleet.cli.server.check_machine import certificate, clock, home, proxy, redis, shared_memory
from tunefleet.cli.server.check_store import Finding, artifact_store, bad, good, warning
from tunefleet.client import Client
from tunefleet.db.engine.sqlite import fault_of
from tunefleet.errors import StoreError, TunefleetError
from tunefleet.runtime.envs import FAMILIES, at
from tunefleet.schemas.server_info import PeersView
from tunefleet.settings import ClientSettings, ClusterSettings, ServerSettings, load

_TRAINING: Final = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
_LEAST_MEMORY: Final = 2 << 30
_LEAST_DISK: Final = 2 << 30
_ASK_TIMEOUT_S: Final = 120
_TORCH_ANEW: Final = (
    f"See why with `{sys.executable} -c 'import torch'`, then install it anew: pip install --force-reinstall torch."
)


def python() -> Finding:
    """Name the interpreter; a version that is too old could not have imported this."""
    return good("Python", f"{platform.python_version()} at {sys.executable}")


def training_libraries() -> Finding:
    """Check that a worker here could train, without importing anything."""
    missing = [name for name in _TRAINING if find_spec(name) is None]
    if missing:
        return warning(
            "Training libraries",
            f"{', '.join(missing)} missing: this machine can run server, CLI and SDK, but no training",
            errors.install("train"),
        )
    return good("Training libraries", ", ".join(f"{name} {_version(name)}" for name in _TRAINING))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "of unknown version"


def environments() -> Finding:
    """Say which environments of foreign packages are ready; one that is begun or outdated works for nobody."""
    found = [at(name) for name in FAMILIES]
    ready = [each.name for each in found if each.ready]
    broken = [each for each in found if each.state in ("stale", "unfinished")]
    said = f"ready: {', '.join(ready)}" if ready else "none is made; some task kinds need one (`tunefleet env list`)"
    if broken:
        listed = ", ".join(f"{each.name} is {each.state}" for each in broken)
        mend = "; ".join(f"tunefleet env create {each.name} --again" for each in broken)
        return warning("Environments", f"{said}; {listed}" if ready else listed, mend)
    return good("Environments", said)


def gpu() -> Finding:
    """Check the driver, the GPUs, and whether torch can use them."""
    driver = _ask(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
    cards = [line.strip() for line in (driver or "").splitlines() if line.strip()]
    if find_spec("torch") is None:
        return good("GPU", "; ".join(cards) or "none seen; torch is not installed")
    program = "import torch; print(torch.version.cuda or torch.version.hip or '', torch.cuda.device_count())"
    said = _ask([sys.executable, "-c", program])
    if said is None:
        return bad("GPU", f"torch {_version('torch')} cannot be imported", _TORCH_ANEW)
    answer = said.split()
    usable = int(answer[-1]) if answer and answer[-1].isdigit() else 0
    build = answer[0] if len(answer) == 2 else None
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
    return good("GPU", "none; trainings run on the CPU")


def _ask(command: list[str]) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def memory() -> Finding:
    """Check what is free."""
    now = psutil.virtual_memory()
    found = f"{formatting.size(now.available)} free of {formatting.size(now.total)}"
    if now.available < _LEAST_MEMORY:
        return warning("Memory", found, "End something large: the training libraries alone take about 1 GiB.")
    return good("Memory", found)


def disk() -> Finding:
    """Check what is free where the data lies."""
    folder = load(ServerSettings).data_dir
    free = disk_free(folder)
    found = f"{formatting.size(free)} free at {folder}"
    if free < _LEAST_DISK:
        return warning("Disk", found, "Make room (`tunefleet prune`), or choose another folder with --data.")
    return good("Disk", found)


def port() -> Finding:
    """Check whether a server could listen, or which process does."""
    wanted = load(ServerSettings).port
    owner = _listener(wanted)
    if owner is None:
        return good("Port", f"{wanted} is free")
    if "tunefleet" in owner:
        return good("Port", f"{wanted} is Tunefleet's ({owner})")
    return warning("Port", f"{wanted} is taken by {owner}", "Stop it, or start with `tunefleet up --port N`.")


def _listener(wanted: int) -> str | None:
    """Name the process that listens on a port, as well as this user may know it; `None` if nobody does."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        if probe.connect_ex(("127.0.0.1", wanted)) != 0:
            return None
    try:
        listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        pid = next((c.pid for c in listening if c.pid and getattr(c.laddr, "port", None) == wanted), None)
        command = " ".join(psutil.Process(pid).cmdline()[:4]) if pid else ""
    except psutil.Error:
        pid, command = None, ""
    return f"process {pid} ({command})" if pid else "a process that this user may not see"


def data_folder() -> Finding:
    """Check that the data folder can be written and its database is whole; changes nothing."""
    folder = load(ServerSettings).data_dir
    if not folder.exists():
        return good("Data folder", f"{folder} will be made at the first start")
    try:
        probe = folder / ".doctor"
        probe.touch()
        probe.unlink()
    except OSError as error:
        return bad("Data folder", f"{folder} cannot be written: {error.strerror}", f"chown or chmod {folder}.")
    databases = sorted(folder.glob("*.db")) + sorted(folder.glob("*.sqlite*"))
    for database in (path for path in databases if not path.name.endswith(("-wal", "-shm"))):
        fault = fault_of(database)
        if fault:
            return bad(
                "Data folder",
                f"{database} is damaged: {fault}",
                f"Restore a backup, or move {folder} away and start with an empty one.",
            )
    return good("Data folder", f"{folder}" + (", database whole" if databases else ", no database yet"))


def database() -> Finding:
    """Check that the server's database can be reached and read, and whether a start would migrate it."""
    from tunefleet.db.engine.offline import name_of, standing, target_of

    settings = load(ServerSettings)
    url = settings.database_url
    try:
        target = target_of(None if url is None else url.get_secret_value(), settings.data_dir)
        if url is None and not Path(target).exists():
            return good("Database", f"{name_of(target)} will be made at the first start")
        found = standing(target)
    except StoreError as error:
        return bad("Database", error.message, error.hint or "Mend TUNEFLEET_DATABASE_URL.")
    told = f"{found.address}, {found.engine}, revision {found.revision or 'none yet'}"
    if found.revision is not None and not found.current:
        return warning("Database", told, f"`tunefleet backup FILE`, then `tunefleet db migrate` (to {found.newest}).")
    return good("Database", told)


def server() -> Finding:
    """Check that the chosen server answers and knows the key."""
    from tunefleet import __version__

    try:
        with Client(chosen_url.get(), patience_s=0.5) as client:
            info, url = client.info(), client.url
            # A worker's key may not ask who else serves.
            stands = place(client.servers()) if info.role in {"admin", "member", "viewer"} else None
    except TunefleetError as error:
        return warning("Server", error.message, error.hint or "Start one with `tunefleet up`.")
    if not info.authenticated:
        return bad("Server", f"{url} does not know this key", f"Run `tunefleet login {url}` with a good key.")
    if info.version != __version__:
        return warning("Server", f"{url} is version {info.version}, this is {__version__}", "Install the same version.")
    told = f"{url}, version {info.version}, logged in as {info.owner} ({info.role})"
    if stands is None:
        return good("Server", told)
    if stands.mend is not None:
        return warning("Server", f"{told}; {stands.told}", stands.mend)
    return good("Server", f"{told}; {stands.told}")


def hub() -> Finding:
    """Say whether models and datasets would be fetched from the hub."""
    if load(ClientSettings).hub_offline:
        return good("Model hub", "off (HF_HUB_OFFLINE): only local and built-in models and datasets")
    return good(
        "Model hub", "on: a name that is not local is fetched from huggingface.co (HF_HUB_OFFLINE=1 turns it off)"
    )


# Who leads and was silent for longer is followed by another in a moment, or cannot reach the database.
_MISSED_S: Final = 10.0


class Place(NamedTuple):
    """How a server stands; `mend` says what to do if nobody leads."""

    told: str
    mend: str | None = None


def place(view: PeersView) -> Place | None:
    """Return how the server that was asked stands; null if it has its database to itself."""
    if not view.shared:
        return None
    leader = next((each for each in view.servers if each.leads and each.silent_s <= _MISSED_S), None)
    count = formatting.plural(len(view.servers), "server")
    if leader is None:
        return Place(f"of {count} none leads", "See `tunefleet servers`, and the logs of those that do not answer.")
    if leader.this:
        return Place(f"of {count} this one leads")
    return Place(f"of {count} this one follows; {leader.id} on {leader.host} leads")


# A job that is never asked for: that the cluster does not know it says that the cluster answers.
_NOBODY: Final = "tunefleet-doctor"


def slurm() -> Finding | None:
    """Check that Slurm answers; None if no task may ask it for nodes."""
    settings = load(ClusterSettings)
    return _answers("slurm", settings) if settings.slurm else None


def ray() -> Finding | None:
    """Check that Ray answers; None if no task may ask it for nodes."""
    settings = load(ClusterSettings)
    return None if settings.ray_address is None else _answers("ray", settings)


def _answers(engine: Literal["slurm", "ray"], settings: ClusterSettings) -> Finding:
    from tunefleet.integrations.clusters.factory import open_cluster

    name = engine.capitalize()
    try:
        open_cluster(engine, settings).look([_NOBODY])
    except TunefleetError as error:
        return bad(
            name, error.message, error.hint or f"Check the cluster, and the settings TUNEFLEET_{engine.upper()}_*."
        )
    if settings.nodes_url is None:
        hint = "Set TUNEFLEET_NODES_URL to the server's address in the nodes' network."
        return warning(name, "it answers; its nodes may not find the server where that listens", hint)
    return good(name, f"it answers; its nodes start {settings.nodes_command} for {settings.nodes_url}")


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
    """Run every check; one that cannot be made is a finding too."""
    for check in CHECKS:
        try:
            found = check()
            if found is not None:  # else it is about something that is not wanted here
                yield found
        except (TunefleetError, OSError) as error:
            name = check.__name__.replace("_", " ").capitalize()
            yield bad(name, str(error), "Mend that and run `tunefleet doctor` again.")
