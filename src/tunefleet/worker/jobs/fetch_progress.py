"""What an attempt fetches before its job begins: it is said, with how far it is and why it waits, and it ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from tunefleet.client.external.interrupt import Stop
from tunefleet.client.transfer import OnProgress, Progress
from tunefleet.errors import UnreachableError
from tunefleet.worker.context import Site
from tunefleet.worker.mailbox import Mailbox

T = TypeVar("T")
logger = logging.getLogger(__name__)
PATIENCE_S: Final = 300.0
"""So long nothing may come from a server that hears this worker; one that is down is waited for."""
HEARD_S: Final = 60.0


class Fetching:
    """Fetches for one attempt."""

    def __init__(self, site: Site, mailbox: Mailbox, token: str, stop: Stop | None = None) -> None:
        self.stop = stop or Stop()
        self._site = site
        self._mailbox = mailbox
        self._token = token
        self._in_vain_since: float | None = None

    def get(self, name: str, act: Callable[[OnProgress], T], *, but: tuple[type[Exception], ...] = ()) -> T:
        """Fetch something of the server, again and again while it is away.

        Raises:
            UnreachableError: If it does not come, though the server hears this worker.
            Dropped, Stopped: While it is fetched.
            Cancelled: If nobody waits for it any more.
        """
        outbox = self._site.outbox

        def waits(error: BaseException, _: float) -> None:
            # Neither the time in which bytes came counts, nor that in which the server was away.
            now = time.monotonic()
            heard = outbox.heard_within(HEARD_S)
            if self._in_vain_since is None or not heard:
                self._in_vain_since = now
            for_s = now - self._in_vain_since
            self.wait(name, error, for_s)
            if heard and for_s > PATIENCE_S:
                url = self._site.transfers.server_url
                raise UnreachableError(
                    f"{name} could not be fetched for {for_s:.0f} s, though the server hears this worker: {error}",
                    hint=f"The worker fetches files from {url}; ORCHESTRATOR_BASE_URL names another address.",
                )

        self.begin(name)
        return self._mailbox.patiently(lambda: act(self.at), but=but, unwanted=self.stop.is_set, waits=waits)

    def begin(self, name: str) -> None:
        """Say what is fetched, of which nothing has arrived; ends what nobody waits for."""
        self.stop.check()
        self._in_vain_since = None
        self._site.outbox.fetching(self._token, f"fetching {name}")

    def at(self, progress: Progress) -> None:
        """Say how far it is; ends what nobody waits for."""
        self.stop.check()
        self._in_vain_since = None
        unit, name = (1e6, "MB") if max(progress.total_bytes, progress.done_bytes) >= 1e6 else (1e3, "kB")
        whole = f" of {progress.total_bytes / unit:,.0f}" if progress.total_bytes else ""
        told = f"fetching {progress.name}, {progress.done_bytes / unit:,.0f}{whole} {name}"
        self._site.outbox.fetching(self._token, told, is_news=False)

    def wait(self, name: str, error: BaseException, for_s: float) -> None:
        """Say that it does not come, and is tried again."""
        self._site.outbox.fetching(self._token, f"fetching {name} waits, and is tried again: {error}")
        logger.warning("%s cannot be fetched yet, for %.0f s now: %s", name, for_s, error)
