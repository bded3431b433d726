"""One process of simulated workers: reads its share from standard input, and reports progress on standard output.

The parent stops it by closing its standard input; the workers leave before the process exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from typing import Final

import uvloop

from tunefleet.errors import TunefleetError
from tunefleet.schemas.base import Message
from tunefleet.simulation.crowd import Crowd
from tunefleet.simulation.load_report import CrowdFailed, CrowdReady
from tunefleet.simulation.plan import CrowdPlan

_TICK_S: Final = 0.25


def main() -> None:
    """Run until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    share = CrowdPlan.model_validate_json(sys.stdin.readline())
    uvloop.run(_run(share))
    # The thread that reads standard input holds its lock: a normal exit would wait for it.
    os._exit(0)


async def _run(share: CrowdPlan) -> None:
    over = _end_of_input()
    crowd = Crowd(share)
    refusal: TunefleetError | None = None
    try:
        await crowd.start()
    except* TunefleetError as found:
        refusal = _first(found)
    if refusal is not None:
        _send_error(refusal)
        await crowd.stop()
        return
    _send(CrowdReady(workers=share.count))
    while not over.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), _TICK_S)
        if crowd.fatal is not None:
            _send_error(crowd.fatal)
            break
        _send(crowd.tick())
    _send(await crowd.stop())


def _end_of_input() -> asyncio.Event:
    """Return an event that is set when standard input ends."""
    over, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait() -> None:
        sys.stdin.read()
        with contextlib.suppress(RuntimeError):  # the loop is closed: this process is exiting
            loop.call_soon_threadsafe(over.set)

    # A daemon: a blocking read must not delay the exit.
    threading.Thread(target=wait, name="standard-input", daemon=True).start()
    return over


def _first(found: BaseExceptionGroup[TunefleetError]) -> TunefleetError:
    first = found.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _send_error(error: TunefleetError) -> None:
    _send(CrowdFailed(message=error.message, hint=error.hint))


def _send(message: Message) -> None:
    sys.stdout.write(message.model_dump_json() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
