"""The server that this command line talks to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tunefleet.client import Client

_PATIENCE_S = 2.0
_REFUSED_S = 1.0
chosen_url: ContextVar[str | None] = ContextVar("chosen_url", default=None)
"""What `tunefleet --url` named."""


@contextmanager
def connect(*, patience_s: float = _PATIENCE_S, refused_s: float | None = _REFUSED_S) -> Iterator[Client]:
    """Open a client for the server that was chosen, or that this user last started or logged in to.

    Args:
        patience_s: How long a call is tried again while the server does not answer.
        refused_s: How long, at most, if it is on this machine and nobody listens there; as long if `None`.
    """
    with Client(chosen_url.get(), patience_s=patience_s, refused_s=refused_s) as client:
        yield client
