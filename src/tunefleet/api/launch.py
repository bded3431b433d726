"""Bring a server up and down: its socket, uvicorn, and a stop that releases what is held open.

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
from tunefleet.certificate import Certificate, kept_fresh
from tunefleet.errors import MachineError
from tunefleet.http_heads import BoundedHeads
from tunefleet.settings import ServerSettings, notify_socket

log = logging.getLogger(__name__)

_BACKLOG: Final = 2048
_UNREAD_S: Final = 120
_GRACE_S: Final = 5
"""How long running requests (an upload) may take to end at a stop; streams and polls are released at once."""


class Server(uvicorn.Server):
    """Uvicorn that tells the app about a stop before it waits for open connections."""

    def __init__(self, config: uvicorn.Config, lifetime: Lifetime) -> None:
        super().__init__(config)
        self.lifetime = lifetime
        lifetime.give_up = self._end

    def _end(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does; then whoever has started this is told."""
        await super().startup(sockets)
        if self.started:
            tell("READY=1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Release long polls and streams, then end as uvicorn does."""
        tell("STOPPING=1")
        await self.lifetime.leave()
        await super().shutdown(sockets)


def make(app: FastAPI, certificate: Certificate | None = None) -> Server:
    """Return the server of an app; `run(sockets=[...])` serves until a signal or `should_exit`.

    Args:
        certificate: To serve HTTPS with; null for plain HTTP.
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
        # Not by the names of files: this context lives on when its certificate is renewed.
        config.ssl = certificate.context
        lifetime.trust = certificate.trust
    return Server(config, lifetime)


def run(server: Server, bound: socket.socket, certificate: Certificate | None = None) -> None:
    """Serve until SIGTERM or SIGINT, and return.

    Uvicorn sends itself the signal again once it has stopped, of which the process would die before it could close its
    store; and it hears none before its loop runs, when the log has said for a while that the server is there.

    Raises:
        TunefleetError: If the server found out that it must not go on.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)
    tls = certificate is not None
    server.lifetime.url = url_of(bound, tls=tls)
    server.lifetime.peer_url = server.lifetime.core.settings.peer_url or peer_url_of(bound, tls=tls)
    with kept_fresh(certificate):
        server.run(sockets=[bound])
    if server.lifetime.refused is not None:
        raise server.lifetime.refused


def url_of(bound: socket.socket, *, tls: bool = False) -> str:
    """Return the URL under which this machine reaches a server on a socket."""
    address, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def is_open(settings: ServerSettings, address: str) -> bool:
    """Say whether plain HTTP on an address goes over a network, as far as the settings tell."""
    behind_proxy = (settings.public_base_url or "").lower().startswith("https://")
    return not behind_proxy and not ipaddress.ip_address(address.partition("%")[0]).is_loopback


def peer_url_of(bound: socket.socket, *, tls: bool = False) -> str | None:
    """Return the URL under which other machines reach a server on a socket; null if it listens on every address."""
    return None if bound.getsockname()[0] in {"0.0.0.0", "::"} else url_of(bound, tls=tls)


def bind(host: str, port: int) -> socket.socket:
    """Bind and listen.

    Raises:
        MachineError: If the port is taken (the message names by whom), or the address is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise MachineError(f"The host {host!r} has no address: {error.strerror}.", hint="Mend --host.") from None
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Who asks for a file and reads nothing would hold memory and an open file for as long as it likes: the kernel
        # ends such a connection. Connections inherit it.
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
            f"Port {port} is taken by {owner_of(port)}.", hint="Stop it, or choose another with --port."
        )
    if error.errno == errno.EACCES:
        return MachineError(f"Port {port} needs more rights.", hint="Choose one over 1023 with --port.")
    return MachineError(f"{host}:{port} cannot be listened on: {error.strerror}.", hint="Mend --host or --port.")


def owner_of(port: int) -> str:
    """Name the process that listens on a port, as well as this user may know it."""
    try:
        pids = {
            connection.pid
            for connection in psutil.net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        }
    except psutil.AccessDenied:
        return "a process that this user may not see"
    for pid in sorted(pid for pid in pids if pid is not None):
        try:
            process = psutil.Process(pid)
            command = " ".join(process.cmdline()[:4])[:120]
            return f"process {pid} ({command or process.name()})"
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            log.debug("Process %d cannot be looked at.", pid)
    return "a process that this user may not see"


def tell(state: str) -> None:
    """Send a state."""
    address = notify_socket()
    if address is None:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            # A name that begins with @ is in Linux' own room for names, not in the file system.
            notify.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
    except OSError as error:
        log.warning("NOTIFY_SOCKET=%s does not take %s: %s.", address, state, error)
