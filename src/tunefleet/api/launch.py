"""Start and stop a server: its socket, uvicorn, and a shutdown that releases held connections.

Knows uvicorn and sockets; not what the app does.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import signal
import socket
from typing import Final

import psutil
import uvicorn
from fastapi import FastAPI

from tunefleet.api.background import Lifetime
from tunefleet.certificate import Certificate, reloaded
from tunefleet.errors import MachineError
from tunefleet.http_heads import BoundedHeads
from tunefleet.settings import ServerSettings, notify_socket

log = logging.getLogger(__name__)

_BACKLOG: Final = 2048
_UNREAD_S: Final = 120
_GRACE_S: Final = 5
"""How long a shutdown waits for running requests such as uploads; streams and polls are released immediately."""


class Server(uvicorn.Server):
    """Uvicorn that runs the app's shutdown before it waits for open connections."""

    def __init__(self, config: uvicorn.Config, lifetime: Lifetime) -> None:
        super().__init__(config)
        self.lifetime = lifetime
        lifetime.give_up = self._end

    def _end(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start uvicorn, then report readiness to the service manager."""
        await super().startup(sockets)
        if self.started:
            tell("READY=1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Release long polls and streams, then shut uvicorn down."""
        tell("STOPPING=1")
        await self.lifetime.leave()
        await super().shutdown(sockets)


def make(app: FastAPI, certificate: Certificate | None = None) -> Server:
    """Create the uvicorn server of an app; `run(sockets=[...])` serves until a signal or `should_exit`.

    Args:
        certificate: Serves HTTPS with it; `None` for plain HTTP.
    """
    lifetime: Lifetime = app.state.lifetime
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=BoundedHeads,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=True,
        forwarded_allow_ips=list(lifetime.core.settings.trusted_proxies),
        timeout_graceful_shutdown=_GRACE_S,
        timeout_keep_alive=75,
    )
    if certificate is not None:
        config.load()
        # A context and not file names: it stays in place when its certificate is renewed.
        config.ssl = certificate.context
        lifetime.trust = certificate.trust
    return Server(config, lifetime)


def run(server: Server, bound: socket.socket, certificate: Certificate | None = None) -> None:
    """Serve until SIGTERM or SIGINT, and return.

    Raises:
        TunefleetError: If the server shut down because it must not continue.
    """
    # Uvicorn raises the signal again after its shutdown, which would kill the process before it closes its database;
    # and it handles none before its loop runs, although the log already says that the server is up.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)
    tls = certificate is not None
    server.lifetime.url = url_of(bound, tls=tls)
    server.lifetime.peer_url = server.lifetime.core.settings.peer_url or peer_url_of(bound, tls=tls)
    with reloaded(certificate):
        server.run(sockets=[bound])
    if server.lifetime.refused is not None:
        raise server.lifetime.refused


def url_of(bound: socket.socket, *, tls: bool = False) -> str:
    """Return the URL under which this machine reaches a server on a socket."""
    address, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def is_open(settings: ServerSettings, address: str) -> bool:
    """Return whether plain HTTP on an address is exposed to a network, as far as the settings show."""
    behind_proxy = (settings.public_base_url or "").lower().startswith("https://")
    return not behind_proxy and not ipaddress.ip_address(address.partition("%")[0]).is_loopback


def peer_url_of(bound: socket.socket, *, tls: bool = False) -> str | None:
    """Return the URL under which other machines reach a server; `None` if it listens on every address."""
    return None if bound.getsockname()[0] in {"0.0.0.0", "::"} else url_of(bound, tls=tls)


def bind(host: str, port: int) -> socket.socket:
    """Bind and listen.

    Raises:
        MachineError: If the port is in use (the message names the process), or the address is not local.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise MachineError(f"The host {host!r} cannot be resolved: {error.strerror}.", hint="Check --host.") from None
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # A client that requests a file and never reads it would hold memory and an open file indefinitely: the kernel
        # ends such a connection. Accepted connections inherit the option.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_UNREAD_S * 1000))
    try:
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise _cannot_bind(host, port, error) from None
    bound.setblocking(False)
    return bound


def _cannot_bind(host: str, port: int, error: OSError) -> MachineError:
    if error.errno == errno.EADDRINUSE:
        return MachineError(
            f"Port {port} is in use by {owner_of(port)}.", hint="Stop it, or choose another port with --port."
        )
    if error.errno == errno.EACCES:
        return MachineError(f"No permission to listen on port {port}.", hint="Choose a port above 1023 with --port.")
    return MachineError(f"Cannot listen on {host}:{port}: {error.strerror}.", hint="Check --host and --port.")


def owner_of(port: int) -> str:
    """Name the process that listens on a port, as far as this user may see it."""
    try:
        pids = {
            connection.pid
            for connection in psutil.net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        }
    except psutil.AccessDenied:
        return "a process of another user"
    for pid in sorted(pid for pid in pids if pid is not None):
        try:
            process = psutil.Process(pid)
            command = " ".join(process.cmdline()[:4])[:120]
            return f"process {pid} ({command or process.name()})"
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            log.debug("Cannot inspect process %d.", pid)
    return "a process of another user"


def tell(state: str) -> None:
    """Send a state to the service manager (systemd's `NOTIFY_SOCKET`)."""
    address = notify_socket()
    if address is None:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            # A name that begins with @ is in Linux's abstract socket namespace, not in the file system.
            notify.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
    except OSError as error:
        log.warning("Could not send %s to NOTIFY_SOCKET=%s: %s.", state, address, error)
