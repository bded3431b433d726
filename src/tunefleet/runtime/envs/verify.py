"""Checks an environment by running it: interpreter, versions against the lock, imports, `pip check`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tunefleet.errors import MachineError
from tunefleet.runtime.envs.registry import Environment, at, normal, pins, pip_of
from tunefleet.schemas.base import Message
from tunefleet.settings import inherited_environment

_IMPORT_S: Final = 600.0
_ASK: Final = """
import importlib, importlib.metadata, json, sys
names, modules = json.loads(sys.argv[1])
found = {}
for name in names:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
failed = {}
for module in modules:
    try:
        importlib.import_module(module)
    except BaseException as error:
        failed[module] = f"{type(error).__name__}: {error}"
print("\\n" + json.dumps({"python": sys.version.split()[0], "versions": found, "failed": failed}))
"""


class EnvironmentFinding(Message):
    """Result of one check."""

    name: str
    good: bool
    found: str
    mend: str | None = None


def check(name: str) -> list[EnvironmentFinding]:
    """Check an environment; imports take seconds, half a minute for vLLM."""
    env = at(name)
    mend = f"tunefleet env create {name}" + (" --again" if env.ready else "")
    states = {"ready": "complete, matches its lock", "stale": str(env.why), "unfinished": "not completely created"}
    state = EnvironmentFinding(
        name="State", good=env.ready, found=states.get(env.state, "missing"), mend=None if env.ready else mend
    )
    if env.state in {"missing", "unfinished"}:
        return [state]
    try:
        answer = _ask(env)
    except MachineError as error:
        return [state, EnvironmentFinding(name="Interpreter", good=False, found=str(error), mend=mend)]
    interpreter = EnvironmentFinding(name="Interpreter", good=True, found=f"Python {answer['python']} at {env.python}")
    versions, imports = _versions(env, answer["versions"], mend), _imports(answer["failed"], env, mend)
    return [state, interpreter, versions, imports, _pip(env)]


def _wanted(env: Environment) -> Mapping[str, str]:
    return pins(env.lock_file) if env.lock_file is not None else {}


def _ask(env: Environment) -> dict[str, Any]:
    """Return versions and failed imports, as reported by the environment's interpreter.

    Raises:
        MachineError: If it does not run.
    """
    question = json.dumps([list(_wanted(env)), env.family.modules])
    try:
        done = _run([env.python, "-P", "-c", _ASK, question])
    except subprocess.TimeoutExpired:
        raise MachineError(f"Importing took more than {_IMPORT_S:g} s.") from None
    except OSError as error:
        raise MachineError(f"It does not run: {error}.") from error
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        errors = done.stderr.strip().splitlines() or ["no output"]
        raise MachineError(f"It ended with code {done.returncode}: {errors[-1]}.")
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_IMPORT_S,
        stdin=subprocess.DEVNULL,
        env=inherited_environment(),
        check=False,
    )


def _versions(env: Environment, found: Mapping[str, str | None], mend: str) -> EnvironmentFinding:
    wanted = _wanted(env)
    wrong = [
        f"{name} is {found.get(name) or 'missing'}, the lock has {version}"
        for name, version in wanted.items()
        if not _same(found.get(name), version)
    ]
    if wrong:
        return EnvironmentFinding(name="Versions", good=False, found="; ".join(wrong), mend=mend)
    count = f"{len(wanted)} package{'s' if len(wanted) != 1 else ''}"
    return EnvironmentFinding(name="Versions", good=True, found=f"{count}, all match the lock")


def _same(found: str | None, wanted: str) -> bool:
    """Compare versions as pip does: a pin without a local part matches every build of the version (`2.13.0+cpu`)."""
    return found is not None and (found if "+" in wanted else found.partition("+")[0]) == wanted


def _imports(failed: Mapping[str, str], env: Environment, mend: str) -> EnvironmentFinding:
    if failed:
        text = "; ".join(f"{module}: {error}" for module, error in failed.items())
        return EnvironmentFinding(name="Imports", good=False, found=text, mend=mend)
    return EnvironmentFinding(name="Imports", good=True, found=", ".join(env.family.modules))


def _pip(env: Environment) -> EnvironmentFinding:
    """Run `pip check`."""
    # Without complaints about the base environment of a layer, and about packages that are excluded on purpose.
    below = _complaints(sys.executable) if env.family.layer else set()
    found = sorted(line for line in _complaints(env.python) - below if not _is_left_out(env, line))
    if found:
        return EnvironmentFinding(name="pip check", good=False, found="; ".join(found))
    gone = [name for name in env.family.left_out if name not in _wanted(env)]
    left_out = f"; excluded on purpose: {', '.join(gone)}" if gone else ""
    return EnvironmentFinding(name="pip check", good=True, found=f"no broken requirements{left_out}")


def _complaints(python: str) -> set[str]:
    done = _run([*pip_of(python), "check"])
    if done.returncode == 0:
        return set()
    return {line.strip() for line in done.stdout.splitlines() if line.strip()}


def _is_left_out(env: Environment, line: str) -> bool:
    """Whether a complaint is about an excluded package of the family: "a 1 requires b, which is not …"."""
    _, _, wanted = line.partition(" requires ")
    words = wanted.replace(",", " ").split()
    return bool(words) and normal(words[0]) in env.family.left_out
