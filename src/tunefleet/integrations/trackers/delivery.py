"""Sends a run to a tracker in a child process with a timeout, without blocking the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import orjson

from tunefleet.integrations.trackers import catalog
from tunefleet.integrations.trackers.contract import NotTracked, TrackedRun
from tunefleet.settings import TrackingSettings, inherited_environment, variables_for, without_credentials

_MAX_ERROR: Final = 500


async def post(name: str, run: TrackedRun, folder: Path, settings: TrackingSettings) -> str:
    """Send a run to a tracker.

    Raises:
        NotTracked: If the tracker did not accept it.
    """
    own = variables_for(name, (await asyncio.to_thread(catalog.check, name, settings)).variables)
    given = orjson.dumps({"tracker": name, "run": asdict(run), "folder": str(folder)})
    code, stdout, stderr = await _run(given, environment(own), settings.timeout_s)
    try:
        answer: dict[str, Any] = orjson.loads(stdout)
    except ValueError:
        answer = {"error": f"its process exited with {code}: {stderr.strip()[-_MAX_ERROR:] or 'no output'}"}
    if "where" in answer:
        return hidden(str(answer["where"]), own)
    raise NotTracked(f"{name} did not accept the run: {hidden(str(answer['error'])[:_MAX_ERROR], own)}")


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the child: variables without credentials, and those of its tracker."""
    return {**without_credentials(inherited_environment()), **own}


def hidden(text: str, own: Mapping[str, str]) -> str:
    """Mask the credentials of a tracker."""
    plain = without_credentials(own)
    # Longest first: a credential may contain another one.
    for value in sorted((value for name, value in own.items() if name not in plain), key=len, reverse=True):
        text = text.replace(value, "***")
    return text


async def _run(given: bytes, variables: dict[str, str], timeout_s: float) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tunefleet.integrations.trackers.child",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=variables, start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout_s):
            stdout, stderr = await process.communicate(given)
    except TimeoutError:
        raise NotTracked(
            f"The tracker took more than {timeout_s:g} s.", hint="Check that its service is reachable."
        ) from None
    finally:
        # Kill the process group: the library may have started processes of its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return process.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace")
