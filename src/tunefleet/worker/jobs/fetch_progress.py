"""Input downloads of an attempt before its job starts: progress reports, retries and their limit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from tunefleet.client.external.interrupt import CancelToken
from tunefleet.client.transfer import OnProgress, Progress
from tunefleet.errors import UnreachableError
from tunefleet.worker.context import WorkerContext
from tunefleet.worker.mailbox import Mailbox

T = TypeVar("T")
logger = logging.getLogger(__name__)
# How long a download may make no progress while the server answers exchanges; a server that is down is waited for.
PATIENCE_S: Final = 300.0
ANSWERED_S: Final = 60.0


class InputDownload:
    """Downloads for one attempt."""

    def __init__(
        self, worker_context: WorkerContext, mailbox: Mailbox, token: str, stop: CancelToken | None = None
    ) -> None:
        self.stop = stop or CancelToken()
        self._context = worker_context
        self._mailbox = mailbox
        self._token = token
        self._in_vain_since: float | None = None

    def get(self, name: str, act: Callable[[OnProgress], T], *, fatal: tuple[type[Exception], ...] = ()) -> T:
        """Fetch something from the server, with retries while it is unreachable.

        Raises:
            UnreachableError: If the download makes no progress although the server answers exchanges.
            Dropped, Stopped: While it is fetched.
            Cancelled: If it is no longer needed.
        """
        outbox = self._context.outbox

        def waits(error: BaseException, _: float) -> None:
            # Time in which bytes arrived, or in which the server was unreachable, does not count.
            now = time.monotonic()
            heard = outbox.answered_within(ANSWERED_S)
            if self._in_vain_since is None or not heard:
                self._in_vain_since = now
            for_s = now - self._in_vain_since
            self.wait(name, error, for_s)
            if heard and for_s > PATIENCE_S:
                url = self._context.transfers.server_url
                raise UnreachableError(
                    f"Could not fetch {name} for {for_s:.0f} s, although the server answers this worker: {error}",
                    hint=f"The worker fetches files from {url}; set TUNEFLEET_SERVER_URL to use another URL.",
                )

        self.begin(name)
        return self._mailbox.with_retries(lambda: act(self.at), fatal=fatal, unwanted=self.stop.is_set, on_retry=waits)

    def begin(self, name: str) -> None:
        """Report the start of a download; ends one that is no longer needed."""
        self.stop.check()
        self._in_vain_since = None
        self._context.outbox.fetching(self._token, f"fetching {name}")

    def at(self, progress: Progress) -> None:
        """Report progress; ends a download that is no longer needed."""
        self.stop.check()
        self._in_vain_since = None
        unit, name = (1e6, "MB") if max(progress.total_bytes, progress.done_bytes) >= 1e6 else (1e3, "kB")
        total = f" of {progress.total_bytes / unit:,.0f}" if progress.total_bytes else ""
        message = f"fetching {progress.name}, {progress.done_bytes / unit:,.0f}{total} {name}"
        self._context.outbox.fetching(self._token, message, is_new=False)

    def wait(self, name: str, error: BaseException, for_s: float) -> None:
        """Report that a download failed and is retried."""
        self._context.outbox.fetching(self._token, f"fetching {name} failed, retrying: {error}")
        logger.warning("Could not fetch %s for %.0f s, retrying: %s", name, for_s, error)
