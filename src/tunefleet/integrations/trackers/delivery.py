"""Tell a tracker of a run in a child process, and end that when it takes too long; the event loop waits for nothing."""

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

_MAX_SAID: Final = 500


async def post(name: str, run: TrackedRun, folder: Path, settings: TrackingSettings) -> str:
    """Tell a tracker of a run.

    Raises:
        NotTracked: If the tracker has not taken it.
    """
    own = variables_for(name, (await asyncio.to_thread(catalog.check, name, settings)).variables)
    given = orjson.dumps({"tracker": name, "run": asdict(run), "folder": str(folder)})
    code, said, complaint = await _run(given, environment(own), settings.timeout_s)
    try:
        answer: dict[str, Any] = orjson.loads(said)
    except ValueError:
        answer = {"error": f"its process ended with {code}: {complaint.strip()[-_MAX_SAID:] or 'it said nothing'}"}
    if "where" in answer:
        return hidden(str(answer["where"]), own)
    raise NotTracked(f"{name} has not taken it: {hidden(str(answer['error'])[:_MAX_SAID], own)}")


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return what a child may see: the plain variables, and those of its tracker; no other key, no other token."""
    return {**without_credentials(inherited_environment()), **own}


def hidden(text: str, own: Mapping[str, str]) -> str:
    """Put stars over the credentials of a tracker."""
    plain = without_credentials(own)
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
            said, complaint = await process.communicate(given)
    except TimeoutError:
        raise NotTracked(f"The tracker took more than {timeout_s:g} s.", hint="Does it answer?") from None
    finally:
        # What its library has started goes with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return process.returncode, said.decode(errors="replace"), complaint.decode(errors="replace")
