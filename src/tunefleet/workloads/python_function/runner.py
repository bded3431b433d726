"""The process that runs a function of a workflow file: `python -I runner.py CALL`.

Drops the network if required, sets resource limits, calls the function, writes its return value. Runs in any
interpreter: standard library only, no imports of Tunefleet.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import json
import linecache
import os
import resource
import socket
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAILED, NO_ISOLATION = 1, 3
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_NO_NEW_PRIVILEGES, _DIE_WITH_PARENT, _SIGKILL = 38, 1, 9


def main(call_file: Path) -> int:
    """Run the call of a file.

    Args:
        call_file: JSON: `code` and `entrypoint`, `inputs` (stage → folder), `network`, `limits`, `result`, `failure`.
    """
    call = json.loads(call_file.read_bytes())
    # Set before the user's code: a killed job must not leave it running.
    _die_with_parent()
    if call["network"] == "none":
        fault = take_network_away()
        if fault is not None:
            _write(Path(call["failure"]), {"message": fault})
            return NO_ISOLATION
    _limit(call["limits"])
    try:
        returned = _called(call)
        _write(Path(call["result"]), {} if returned is None else returned)
    except SystemExit as ending:
        if ending.code in (None, 0):
            _write(Path(call["result"]), {})
            return 0
        _write(Path(call["failure"]), {"type": "SystemExit", "message": f"it ended with sys.exit({ending.code!r})"})
        return FAILED
    except BaseException as error:  # noqa: BLE001 - any exception of the function is reported
        traceback.print_exc()
        _write(Path(call["failure"]), _failure_report(error))
        return FAILED
    return 0


def take_network_away() -> str | None:
    """Move this process to an empty network namespace; return the reason if that is not possible."""
    if sys.platform != "linux":
        return "network isolation needs Linux"
    libc = ctypes.CDLL(None, use_errno=True)
    # A user namespace first: as the machine's root, the process could switch back.
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_USER | _NEW_NETWORK) == 0:
        with contextlib.suppress(OSError):  # without a mapping the process runs as the overflow uid, which still works
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    elif libc.unshare(_NEW_NETWORK) != 0:
        return f"the system does not allow a network namespace ({os.strerror(ctypes.get_errno())})"
    # setuid programs could otherwise regain privileges.
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    others = [name for _, name in socket.if_nameindex() if name != "lo"]
    # Tunnel interfaces that are down exist in every network namespace.
    up = [name for name in others if int(_flags(name), 16) & 1]
    return f"it still has {', '.join(up)}" if up else None


def _flags(name: str) -> str:
    try:
        return Path(f"/sys/class/net/{name}/flags").read_text().strip()
    except OSError:
        return "0x0"  # /sys shows the old namespace, where it does not exist


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, _SIGKILL, 0, 0, 0)


def _limit(limits: dict[str, int | None]) -> None:
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_CPU: limits["cpu_s"],
    }
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        if value is not None:
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (most, most))


def _called(call: dict[str, Any]) -> Any:
    path = Path(call["code"])
    source = path.read_text(encoding="utf-8")
    # Tracebacks show the lines of the code.
    linecache.cache[path.name] = (len(source), None, source.splitlines(keepends=True), path.name)
    module = types.ModuleType("task")
    module.__file__ = str(path)
    sys.modules["task"] = module
    exec(compile(source, path.name, "exec"), module.__dict__)  # noqa: S102 - that is what the task asks for
    function: Callable[..., Any] = getattr(module, call["entrypoint"])
    return function(dict(call["inputs"])) if _takes_inputs(function) else function()


def _takes_inputs(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(each.kind is not each.KEYWORD_ONLY and each.kind is not each.VAR_KEYWORD for each in parameters)


def _failure_report(error: BaseException) -> dict[str, Any]:
    text = "".join(traceback.format_exception(error))
    last = next(
        (frame for frame in reversed(traceback.extract_tb(error.__traceback__)) if frame.filename == "task.py"), None
    )
    message = f"{type(error).__name__}: {error}".rstrip(": ")
    where = f" (line {last.lineno} of the code)" if last is not None else ""
    network = isinstance(error, ConnectionError | TimeoutError | socket.gaierror)
    kind = "oom" if isinstance(error, MemoryError) else "network" if network else "input"
    return {"type": type(error).__name__, "message": f"{message}{where}", "traceback": text, "kind": kind}


def _write(path: Path, value: Any) -> None:
    text = json.dumps(value, allow_nan=False)  # a value that JSON cannot represent is an error of the function
    draft = path.with_name(f".{path.name}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
