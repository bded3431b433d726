"""Progress of a run, and commands during it."""

from __future__ import annotations

import time
from collections.abc import Callable

from tunefleet.trainer_control.session import JobSession


class ProgressReporter:
    """Reports the number of finished items to the journal and the status."""

    def __init__(
        self,
        session: JobSession,
        total: int,
        before: int = 0,
        phase: str = "embedding",
        *,
        check_commands: Callable[[int], None] | None = None,
    ) -> None:
        self._session = session
        self._total = total
        self._before = before
        self._phase = phase
        self._check_commands = check_commands
        self._began = time.monotonic()
        if before:
            session.journal.event("items.kept", f"{before:,} of {total:,} items were done in an earlier launch.")

    def at(self, done: int) -> None:
        """Report the number of finished items; carry out commands that arrived meanwhile."""
        took_s = time.monotonic() - self._began
        made = done - self._before
        eta_s = took_s / made * (self._total - done) if made > 0 else None
        self._session.status.update(
            state="running", phase=self._phase, step=done, max_steps=self._total, eta_s=eta_s, at=time.time()
        )
        self._session.journal.progress(self._phase, step=done, max_steps=self._total, eta_s=eta_s)
        if self._check_commands is not None:
            self._check_commands(done)
