"""Converts a merged model to a GGUF file with llama.cpp's converter, in a separate process.

The converter is `convert_hf_to_gguf.py` in a llama.cpp folder (`TUNEFLEET_LLAMA_CPP`) or on the PATH, otherwise that of
the environment `gguf`. Types that it does not support are made from its f16 file by `llama-quantize`, and the answers
of the file are those of `llama-server`: both from the same places, or from the environment.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tunefleet.artifacts import hash_file
from tunefleet.errors import MachineError, ModelError
from tunefleet.runtime import envs
from tunefleet.spec.tasks.merge_task import DIRECT_GGUF_TYPES, GgufSpec

logger = logging.getLogger(__name__)

FOLDER: Final = "TUNEFLEET_LLAMA_CPP"
_SCRIPT: Final = "convert_hf_to_gguf.py"
_QUANTIZE: Final = "llama-quantize"
_SERVER: Final = "llama-server"
_NEEDED: Final = ("numpy", "torch", "transformers", "sentencepiece")
_WRAPPER: Final = Path(__file__).with_name("gguf_run.py")
_QUANTIZER: Final = Path(__file__).with_name("gguf_quantize.py")
_LIBRARY_SERVER: Final = Path(__file__).with_name("gguf_server.py")
_ENVIRONMENT: Final = "gguf"
_CREATE: Final = f"tunefleet env create {_ENVIRONMENT}"
HINT: Final = f"Run `{_CREATE}` on the worker."
_FALLBACK: Final = re.compile(r"(\d+) of \d+ tensor\(s\) required fallback")


@dataclass(frozen=True, slots=True)
class Converter:
    """The converter and its interpreter.

    Args:
        quantize: The command for other types; empty if not needed.
        server: The command of llama.cpp's server, which checks the file; empty if there is none.
    """

    script: Path
    python: str
    quantize: tuple[str, ...] = ()
    server: tuple[str, ...] = ()


def find(wanted: GgufSpec, environment: Mapping[str, str] = os.environ) -> Converter:
    """Find the converter, before anything is merged.

    Raises:
        MachineError: If it or one of its packages is missing.
    """
    folder = environment.get(FOLDER, "")
    root = Path(folder).expanduser() if folder else None
    search = environment.get("PATH")
    script = _script(root, search)
    ready = _ENVIRONMENT in envs.ready()
    if script is not None:
        python = _python(script, root)
        if missing := _missing(python, script):
            raise MachineError(
                f"The converter {script.name} needs {', '.join(missing)}, which the interpreter {python} does not "
                "have.",
                hint=f"{python} -m pip install {' '.join(missing)}",
            )
    elif ready and root is None:
        python = envs.at(_ENVIRONMENT).python
        script = envs.at(_ENVIRONMENT).purelib / _SCRIPT
    else:
        if folder:
            where, way = f"{folder} has no {_SCRIPT}", f"Unset {FOLDER}, and run `{_CREATE}`"
        else:
            where = f"the environment {_ENVIRONMENT} is not ready, and {_SCRIPT} is neither in {FOLDER} nor on the PATH"
            way = f"Run `{_CREATE}`"
        raise MachineError(
            f"This worker cannot create a GGUF file: {where}.",
            hint=f"{way} on the worker, or set {FOLDER} to a clone of github.com/ggml-org/llama.cpp.",
        )
    quantize = () if wanted.type in DIRECT_GGUF_TYPES else _quantize(wanted, root, search, ready=ready)
    program = _program(_SERVER, root, search)
    inside = (envs.at(_ENVIRONMENT).python, "-P", str(_LIBRARY_SERVER)) if ready else ()
    return Converter(script, python, quantize, inside if program is None else (program,))


def _quantize(wanted: GgufSpec, root: Path | None, search: str | None, *, ready: bool) -> tuple[str, ...]:
    program = _program(_QUANTIZE, root, search)
    if program is not None:
        return (program,)
    if ready:
        return (envs.at(_ENVIRONMENT).python, "-P", str(_QUANTIZER))
    raise MachineError(
        f"GGUF type {wanted.type} needs {_QUANTIZE}, which is not on this worker.",
        hint=f"Run `{_CREATE}` on the worker, build llama.cpp in {FOLDER}, or use "
        f"{', '.join(sorted(DIRECT_GGUF_TYPES))}, which the converter supports directly.",
    )


def convert(model: Path, target: Path, wanted: GgufSpec, converter: Converter, launch: str) -> dict[str, Any]:
    """Convert the model.

    Raises:
        ModelError: If the converter does not support the model.
    """
    # Left over from killed launches.
    for old in target.parent.glob(f".{target.name}.*"):
        old.unlink()
    draft = target.with_name(f".{target.name}.{launch}")
    first = "f16" if converter.quantize else wanted.type
    arguments = ["--outtype", first, "--outfile", str(draft), str(model)]
    _run([converter.python, str(_WRAPPER), str(converter.script), *arguments], "The converter")
    fallbacks = 0
    if converter.quantize:
        whole = draft.with_name(f"{draft.name}.{wanted.type}")
        output = _run([*converter.quantize, str(draft), str(whole), wanted.type.upper()], _QUANTIZE)
        counted = _FALLBACK.search("\n".join(output))
        fallbacks = int(counted[1]) if counted else 0
        draft.unlink()
        draft = whole
    with draft.open("rb") as file:
        # The converter may exit with 0 without a valid file.
        if file.read(4) != b"GGUF":
            raise ModelError("The converter did not write a GGUF file.")
        os.fsync(file.fileno())
    draft.replace(target)
    digest, size_bytes = hash_file(target)
    return {
        "name": target.name,
        "type": wanted.type,
        "path": str(target),
        "size_bytes": size_bytes,
        "digest": digest,
        "fallback_tensors": fallbacks,
    }


def _script(root: Path | None, search: str | None) -> Path | None:
    if root is not None:
        return root / _SCRIPT if (root / _SCRIPT).is_file() else None
    for folder in (search or "").split(os.pathsep):
        if folder and (Path(folder) / _SCRIPT).is_file():
            return Path(folder) / _SCRIPT
    return None


def _program(name: str, root: Path | None, search: str | None) -> str | None:
    places = [] if root is None else [root, root / "build" / "bin", root / "bin"]
    found = next((place / name for place in places if os.access(place / name, os.X_OK)), None)
    return str(found) if found is not None else shutil.which(name, path=search)


def _python(script: Path, root: Path | None) -> str:
    """Return the interpreter of the converter's own environment, if it has one, else the current one."""
    own = [place / name / "bin" / "python" for place in (root, script.parent) if place is not None
           for name in (".venv", "venv")]  # fmt: skip
    return next((str(python) for python in own if os.access(python, os.X_OK)), sys.executable)


def _missing(python: str, script: Path) -> list[str]:
    needed = list(_NEEDED)
    if not any((script.parent / folder).is_dir() for folder in ("gguf-py", "gguf")):
        needed.append("gguf")
    code = f"import importlib.util as u, json; print(json.dumps([n for n in {needed!r} if u.find_spec(n) is None]))"
    try:
        completed = subprocess.run([python, "-c", code], capture_output=True, check=True, timeout=120)
        found: list[str] = json.loads(completed.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise MachineError(f"The interpreter {python} of the GGUF converter cannot be run: {error}") from error
    return found


def _run(command: Sequence[str], what: str) -> list[str]:
    """Run a program with its output in the task's log; returns its last lines, of which an error names the last."""
    # The model is local: the converter must not download anything.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    last: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as process:
        for line in process.stdout or ():
            sys.stdout.write(line)
            if line.strip():
                # Only the end of the output is reported.
                last = [*last[-19:], line.strip()]
    if process.returncode != 0:
        reason = last[-1] if last else f"it ended with {process.returncode}"
        if "pre-tokenizer was not recognized" in reason:
            reason = "it does not support this model's pre-tokenizer"
        raise ModelError(
            f"{what} failed on this model: {reason}",
            hint="A newer llama.cpp may support it; see the converter's output in the log of the run.",
            detail="\n".join(last),
        )
    return last
