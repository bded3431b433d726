"""One process of simulated workers: reads its share on standard input, and says how far it is on standard output.

Whoever started it ends it by closing its standard input; its workers leave before it goes.
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for who started this
    share = CrowdPlan.model_validate_json(sys.stdin.readline())
    uvloop.run(_run(share))
    # The thread at standard input holds its lock, for which the interpreter's end would wait.
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
        _say_fault(refusal)
        await crowd.stop()
        return
    _say(CrowdReady(workers=share.count))
    while not over.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), _TICK_S)
        if crowd.fatal is not None:
            _say_fault(crowd.fatal)
            break
        _say(crowd.tick())
    _say(await crowd.stop())


def _end_of_input() -> asyncio.Event:
    """Return what is set when standard input ends; the thread that waits for it holds up nothing."""
    over, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait() -> None:
        sys.stdin.read()
        with contextlib.suppress(RuntimeError):  # the loop is closed: this process ends by itself
            loop.call_soon_threadsafe(over.set)

    threading.Thread(target=wait, name="standard-input", daemon=True).start()
    return over


def _first(found: BaseExceptionGroup[TunefleetError]) -> TunefleetError:
    first = found.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _say_fault(error: TunefleetError) -> None:
    _say(CrowdFailed(message=error.message, hint=error.hint))


def _say(message: Message) -> None:
    sys.stdout.write(message.model_dump_json() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
