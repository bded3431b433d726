"""Waits until a command has done what was asked."""

from __future__ import annotations

import time
from collections.abc import Callable

from tunefleet.schemas.control import CommandState, ControlCommand

SAVING = frozenset({ControlCommand.SAVE_CHECKPOINT, ControlCommand.SAVE_AND_STOP, ControlCommand.PAUSE})
"""Those that are done when their checkpoint is durable; the others when they are applied."""

_EVERY_S = (0.02, 0.25)


def is_settled(state: CommandState) -> bool:
    """Tell whether nothing more will become of a command."""
    return state.state in ("durable", "failed") or (state.state == "applied" and state.command not in SAVING)


def wait_for(
    ask: Callable[[], CommandState], timeout_s: float | None, on_look: Callable[[CommandState], None] | None = None
) -> CommandState:
    """Ask again and again until a command is settled, or the time is over; return its last state.

    Args:
        ask: Returns the state.
        timeout_s: How long; None for ever.
        on_look: Told each state.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s, longest_s = _EVERY_S
    while True:
        state = ask()
        if on_look is not None:
            on_look(state)
        if is_settled(state) or (deadline is not None and time.monotonic() >= deadline):
            return state
        time.sleep(pause_s)
        pause_s = min(longest_s, pause_s * 1.5)
