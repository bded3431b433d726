"""Creates an environment: the interpreter, torch, the locked packages, then the link to Tunefleet."""

from __future__ import annotations

import platform
import shutil
import site
import subprocess
import sys
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
from tunefleet.runtime.envs.registry import STAMP, Environment, Machine, Stamp, at, digest, envs_dir, pins, pip_of
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
    """Create an environment, unless it is ready; a failed try is never taken for a ready one.

    Args:
        where: Build for a CPU or a GPU machine; None detects it.
        again: Recreate a ready environment.
        torch_index: Package index for torch, such as PyTorch's for CPU-only or ROCm builds.
        say: Called with progress messages.

    Raises:
        ConflictError: If another process is creating it, or a process runs in it.
        MachineError: If it cannot run on this machine, or pip fails.
    """
    env = at(name, where)
    if env.ready and not again:
        return env
    _check_machine(env)
    folder = envs_dir()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / f".{name}.lock", timeout=0):
            _refuse_if_used(env)
            _make(env, torch_index, say)
    except Timeout:
        raise ConflictError(f"Another process is creating the environment {name!r}.", hint="Wait for it.") from None
    return at(name, where)


def remove(name: str) -> bool:
    """Remove an environment; returns whether it existed.

    Raises:
        ConflictError: If a process runs in it.
    """
    env = at(name)
    if not env.root.exists():
        return False
    _refuse_if_used(env)
    (env.root / STAMP).unlink(missing_ok=True)  # first, so that a partly removed environment is not used
    shutil.rmtree(env.root)
    return True


def _check_machine(env: Environment) -> None:
    if env.family.lock_file(env.machine) is None:
        raise MachineError(
            f"Environment {env.name!r} needs a GPU, but this machine has none.",
            hint="Create it on a machine with a GPU.",
        )
    lacking = [module for module in env.family.needs if find_spec(module) is None]
    if lacking:
        raise MachineError(
            f"Environment {env.name!r} needs the training libraries, but {', '.join(lacking)} is missing.",
            hint=f"Install it: {extras.install_command('train')}",
        )


def _refuse_if_used(env: Environment) -> None:
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or [""]
        if command[0].startswith(f"{env.bin_dir}/"):
            raise ConflictError(
                f"Process {process.pid} runs in the environment {env.name!r}.",
                hint="Wait until it ends, or cancel the task.",
            )


def _make(env: Environment, torch_index: str | None, say: Callable[[str], None]) -> None:
    lock = env.lock_file
    assert lock is not None, "checked before"
    say("creating the virtual environment")
    shutil.rmtree(env.root, ignore_errors=True)
    # Tunefleet's own pip installs into it, if there is one.
    venv.EnvBuilder(symlinks=sys.platform != "win32", with_pip=find_spec("pip") is None).create(env.root)
    pip = _Pip(env)
    if "torch" in pins(lock):
        torch = f"torch=={pins(lock)['torch']}"
        say(f"installing {torch}, the largest part")
        # With its dependencies: GPU builds pin libraries that differ by build. The lock constrains everything else.
        index = ("--index-url", torch_index) if torch_index else ()
        pip.run("install", *index, "--constraint", str(lock), torch)
    say(f"installing {len(pins(lock))} package{'s' if len(pins(lock)) != 1 else ''} from the lock")
    pip.run("install", "--no-deps", "--requirement", str(lock))
    say("linking Tunefleet")
    _link(env)
    stamp = Stamp(
        family=env.name,
        machine=env.machine,
        lock=digest(lock),
        python=platform.python_version(),
        base=sys.prefix if env.family.layer else None,
        made_at=time.time(),
    )
    # Last and synced: without the stamp the environment counts as unfinished.
    write_json(env.root / STAMP, stamp.model_dump(mode="json"), sync=True)


class _Pip:
    """pip in an environment; writes its output to a log there."""

    def __init__(self, env: Environment) -> None:
        self._found = env
        self._log = env.root / LOG

    def run(self, *arguments: str) -> None:
        command = [*pip_of(self._found.python), *arguments]
        with self._log.open("a", encoding="utf-8") as log:
            done = subprocess.run(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=inherited_environment(), check=False
            )
        if done.returncode:
            output = [line for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines() if line]
            errors = [line for line in output if line.startswith("ERROR")] or output[-_TAIL_LINES:]
            raise MachineError(
                f"pip could not create the environment {self._found.name!r}: {' '.join(errors)}",
                hint=f"The complete output is in {self._log}. Fix the error and run the command again.",
            )


def _link(env: Environment) -> None:
    """Make the package `tunefleet` importable, and for a layer also the packages of Tunefleet's environment."""
    package = Path(tunefleet.__file__).parent
    if env.family.layer:
        # `addsitedir` also processes .pth files there, such as those of an editable install.
        lines = [f"import site; site.addsitedir({folder!r})" for folder in _site_folders()]
        (env.purelib / "zz-tunefleet-base.pth").write_text("\n".join([*lines, str(package.parent)]) + "\n", "utf-8")
        return
    # A folder with nothing else: packages next to `tunefleet` must not become importable.
    link = env.root / "linked"
    link.mkdir()
    (link / package.name).symlink_to(package, target_is_directory=True)
    (env.purelib / "zz-tunefleet.pth").write_text(f"{link}\n", "utf-8")


def _site_folders() -> Sequence[str]:
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return [folder for folder in folders if Path(folder).is_dir()]
