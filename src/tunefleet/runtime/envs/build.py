"""Makes an environment: the interpreter, torch, everything else by its lock, then what it takes from ours."""

from __future__ import annotations

import platform
import shutil
import site
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psutil
from filelock import FileLock, Timeout

import tunefleet
from tunefleet import errors as extras
from tunefleet.errors import ConflictError, MachineError
from tunefleet.runtime.envs.catalog import Machine, digest, pins
from tunefleet.runtime.envs.registry import STAMP, Environment, Stamp, at, envs_dir, pip_of
from tunefleet.settings import inherited_environment
from tunefleet.trainer_control.files import write_json

LOG: Final = "making.log"
_TAIL_LINES: Final = 8


def create(
    name: str,
    *,
    where: Machine | None = None,
    again: bool = False,
    torch_index: str | None = None,
    say: Callable[[str], None],
) -> Environment:
    """Make an environment, unless it is there; nothing of a failed try is taken for one.

    Args:
        torch_index: An index to take torch from, such as PyTorch's for CPU-only or ROCm builds.

    Raises:
        ConflictError: If somebody is just making it, or a process runs in it.
        MachineError: If it cannot run on this machine, or pip fails.
    """
    found = at(name, where)
    if found.ready and not again:
        return found
    _check_machine(found)
    folder = envs_dir()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / f".{name}.lock", timeout=0):
            _refuse_if_used(found)
            _make(found, torch_index, say)
    except Timeout:
        raise ConflictError(f"Somebody is making the environment {name!r} already.", hint="Wait for that.") from None
    return at(name, where)


def remove(name: str) -> bool:
    """Remove an environment; tells whether there was one.

    Raises:
        ConflictError: If a process runs in it.
    """
    found = at(name)
    if not found.root.exists():
        return False
    _refuse_if_used(found)
    (found.root / STAMP).unlink(missing_ok=True)  # from here on nobody takes it for one
    shutil.rmtree(found.root)
    return True


def _check_machine(found: Environment) -> None:
    if found.family.lock_file(found.machine) is None:
        raise MachineError(
            f"The environment {found.name!r} needs a GPU, and this machine shows none.",
            hint="Make it on a machine with one.",
        )
    lacking = [module for module in found.family.needs if find_spec(module) is None]
    if lacking:
        raise MachineError(
            f"The environment {found.name!r} lies over the training libraries, and {', '.join(lacking)} is missing.",
            hint=f"Install it: {extras.install('train')}",
        )


def _refuse_if_used(found: Environment) -> None:
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or [""]
        if command[0].startswith(f"{found.bin_dir}/"):
            raise ConflictError(
                f"Process {process.pid} runs in the environment {found.name!r}.",
                hint="Wait for its end, or cancel the task.",
            )


def _make(found: Environment, torch_index: str | None, say: Callable[[str], None]) -> None:
    lock = found.lock_file
    assert lock is not None, "checked before"
    say("making the interpreter's folder")
    shutil.rmtree(found.root, ignore_errors=True)
    # Our own pip serves it, if we have one.
    venv.EnvBuilder(symlinks=sys.platform != "win32", with_pip=find_spec("pip") is None).create(found.root)
    pip = _Pip(found)
    if "torch" in pins(lock):
        torch = f"torch=={pins(lock)['torch']}"
        say(f"installing {torch}, the largest part")
        # With its dependencies: a build for GPUs pins libraries of its own, which differ by build. What else it needs
        # is held to the lock.
        index = ("--index-url", torch_index) if torch_index else ()
        pip.run("install", *index, "--constraint", str(lock), torch)
    say(f"installing {len(pins(lock))} package{'s' if len(pins(lock)) != 1 else ''} by the lock")
    pip.run("install", "--no-deps", "--requirement", str(lock))
    say("linking Tunefleet in")
    _link(found)
    stamp = Stamp(
        family=found.name,
        machine=found.machine,
        lock=digest(lock),
        python=platform.python_version(),
        base=sys.prefix if found.family.layer else None,
        made_at=time.time(),
    )
    write_json(found.root / STAMP, stamp.model_dump(mode="json"), sync=True)


class _Pip:
    """pip in an environment; what it says goes to a log there."""

    def __init__(self, found: Environment) -> None:
        self._found = found
        self._log = found.root / LOG

    def run(self, *arguments: str) -> None:
        command = [*pip_of(self._found.python), *arguments]
        with self._log.open("a", encoding="utf-8") as log:
            done = subprocess.run(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=inherited_environment(), check=False
            )
        if done.returncode:
            said = [line for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines() if line]
            errors = [line for line in said if line.startswith("ERROR")] or said[-_TAIL_LINES:]
            raise MachineError(
                f"pip could not make the environment {self._found.name!r}: {' '.join(errors)}",
                hint=f"All that it said: {self._log}. Run the same command again once that is mended.",
            )


def _link(found: Environment) -> None:
    """Let the environment see the package `tunefleet`; a layer all that lies below it, behind its own."""
    package = Path(tunefleet.__file__).parent
    if found.family.layer:
        # `addsitedir` also heeds the .pth files there: an editable install is one.
        lines = [f"import site; site.addsitedir({folder!r})" for folder in _site_folders()]
        (purelib(found) / "zz-tunefleet-base.pth").write_text("\n".join([*lines, str(package.parent)]) + "\n", "utf-8")
        return
    # A folder with nothing else in it: what lies beside the package must not come along.
    link = found.root / "linked"
    link.mkdir()
    (link / package.name).symlink_to(package, target_is_directory=True)
    (purelib(found) / "zz-tunefleet.pth").write_text(f"{link}\n", "utf-8")


def purelib(found: Environment) -> Path:
    """Return where an environment's packages lie."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(found.root), "platbase": str(found.root)}))


def _site_folders() -> Sequence[str]:
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return [folder for folder in folders if Path(folder).is_dir()]
