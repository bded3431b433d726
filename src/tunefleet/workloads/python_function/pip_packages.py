"""pip requirements of a task's code: a layer over the worker's environment, cached for later tasks.

<cache>/python-layers/<hash of the requirements>/            a virtual environment
<cache>/python-layers/<hash of the requirements>/ready.json  written last: without it the layer is created again
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import platformdirs
from filelock import FileLock

from tunefleet.errors import InputError
from tunefleet.trainer_control.files import read_json, write_json

logger = logging.getLogger(__name__)

_READY = "ready.json"
_INSTALL_S = 1800.0


def python_with(requirements: Sequence[str], environment: Mapping[str, str], cache: Path | None = None) -> str:
    """Return an interpreter with the given packages; the layer is created on first use."""
    if not requirements:
        return sys.executable
    root = cache or Path(platformdirs.user_cache_dir("tunefleet")) / "python-layers"
    root.mkdir(parents=True, exist_ok=True)
    # Another interpreter or worker environment needs another layer.
    text = "\n".join([sys.version, sysconfig.get_path("purelib"), *sorted(requirements)])
    layer = root / hashlib.sha256(text.encode()).hexdigest()[:24]
    # Several tasks of one worker may need the same layer at the same time.
    with FileLock(f"{layer}.lock"):
        if read_json(layer / _READY) is None:
            _make(layer, requirements, environment)
    return str(layer / "bin" / "python")


def _make(layer: Path, requirements: Sequence[str], environment: Mapping[str, str]) -> None:
    logger.info("Installing %s.", ", ".join(requirements))
    shutil.rmtree(layer, ignore_errors=True)
    _run([sys.executable, "-m", "venv", "--without-pip", str(layer)], environment)
    worker_packages = Path(sysconfig.get_path("purelib"))
    layer_packages = layer / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    # In a .pth file, which comes after the layer's own packages in sys.path, so that those take precedence.
    (layer_packages / "zz_worker.pth").write_text(f"{worker_packages}\n", encoding="utf-8")
    wanted = layer / "requirements.txt"
    wanted.write_text("\n".join(requirements) + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(layer / "bin" / "python"), "install", "--no-input"]
    _run([*pip, "--disable-pip-version-check", "--quiet", "-r", str(wanted)], environment)
    write_json(layer / _READY, {"requirements": list(requirements)}, sync=True)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError("Installing the packages of spec.requirements took more than half an hour.") from None
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")]
        last = (errors or lines or ["no error message"])[-1].removeprefix("ERROR: ")
        raise InputError(f"The packages of spec.requirements cannot be installed: {last}", detail="\n".join(lines))
