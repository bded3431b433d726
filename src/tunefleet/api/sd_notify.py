"""Tells systemd how the server stands (`Type=notify`): ready, or about to stop. Elsewhere it does nothing."""

from __future__ import annotations

import logging
import socket

from tunefleet.settings import notify_socket

log = logging.getLogger(__name__)


def tell(state: str) -> None:
    """Send a state.

    Args:
        state: Such as `READY=1`.
    """
    address = notify_socket()
    if address is None:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            # A name that begins with @ is in Linux' own room for names, not in the file system.
            notify.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
    except OSError as error:
        log.warning("NOTIFY_SOCKET=%s does not take %s: %s.", address, state, error)
