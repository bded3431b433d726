"""Relays requests to the HTTP server of an endpoint's job while the job of an attempt runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tunefleet.errors import TunefleetError
from tunefleet.runtime.chat_channel import END_FILE, http_socket
from tunefleet.schemas.endpoints import RelayPoll
from tunefleet.worker.interfaces import Delivery

logger = logging.getLogger(__name__)


@contextmanager
def relaying(task_id: str, folder: Path, delivery: Callable[[], Delivery], *, serves_http: bool) -> Iterator[None]:
    """Relay requests while the body runs, if the job is an HTTP server.

    Args:
        folder: The job folder.
        delivery: Opens connections to the server, authenticated as the attempt.
        serves_http: Whether the job is one.
    """
    if not serves_http:
        yield
        return
    from tunefleet.transport.tunnel import Tunnel  # noqa: PLC0415 -- most jobs serve nothing

    opened = delivery()
    tunnel = Tunnel(
        task_id,
        http_socket(folder),
        partial(opened.endpoint_requests, task_id),
        partial(opened.endpoint_frames, task_id),
        (folder / END_FILE).touch,
    )
    threading.Thread(target=tunnel.run, name=f"tunnel-{task_id}", daemon=True).start()
    try:
        yield
    finally:
        # Not joined: a poll may be held by the server.
        tunnel.stop()
        try:
            # So that no more requests come.
            opened.endpoint_requests(task_id, RelayPoll(ready=False))
        except TunefleetError as error:
            logger.info("Could not report the end of endpoint %s: %s", task_id, error)
        opened.close()
