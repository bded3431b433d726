"""Where the agent listens: on loopback unless it has a key, on a port that is free."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from typing import Final

from tunefleet.errors import MachineError
from tunefleet.settings import AgentSettings

logger = logging.getLogger(__name__)

_BACKLOG: Final = 512
_PORTS: Final = (8000, 8001)


def check(settings: AgentSettings) -> None:
    """Refuse settings that would let anybody in.

    Raises:
        MachineError: If it would listen beyond loopback without a key.
    """
    if settings.key is None and not is_loopback(settings.host):
        raise MachineError(
            f"HOST={settings.host} lets others reach the agent, and AGENT_KEY is not set.",
            hint="Set AGENT_KEY to a long random text, or leave HOST out.",
        )


def bind(settings: AgentSettings) -> socket.socket:
    """Listen: on `PORT`, or without one on 8000, and on 8001 when that is taken.

    Raises:
        MachineError: If no port can be had.
    """
    wanted = _PORTS if settings.port is None else (settings.port,)
    for port in wanted:
        try:
            bound = _listen(settings.host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == wanted[-1]:
                raise MachineError(
                    f"{settings.host}:{port} cannot be listened on: {error.strerror}.", hint="Set PORT to a free one."
                ) from None
            logger.warning("Port %d is taken and PORT is not set: the agent takes %d.", port, _PORTS[1])
        else:
            return bound
    raise AssertionError("the last port either works or raises")


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise MachineError(
            f"HOST={host!r} has no address: {error.strerror}.",
            hint="Set HOST to an address of this machine, or leave it out.",
        ) from None
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError:
        bound.close()
        raise
    bound.setblocking(False)
    return bound


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches what listens on a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
