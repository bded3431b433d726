"""The control server of a trainer: standard library HTTP on loopback.

    GET  /jobs                           the endpoints of this machine, without tokens
    GET  /jobs/{id}/status               the content of status.json, with values not written yet
    POST /jobs/{id}/control              {"command", "data"?, "command_id"?} → acknowledged
    GET  /jobs/{id}/commands/{command}   pending | applied | durable | failed

A process of the same user on this machine needs no token; any other client does. A browser cannot use it: the Host must
be local, any Origin is refused, and a command must be JSON. The server never touches the training run: commands go to
the queue.
"""

from __future__ import annotations

import hmac
import http.server
import json
import logging
import os
import re
import secrets
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from ..journal.status import StatusFile
from .command_queue import (
    COMMANDS,
    STATUS,
    ClosedError,
    Command,
    CommandQueue,
    UnknownCommandError,
)
from .discovery import EndpointFolder, list_endpoints

logger = logging.getLogger("tunefleet.control")

MAX_BODY_BYTES = 64 << 10
_LENGTH_DIGITS = 20
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
_ROUTE = re.compile(r"/jobs/(?P<job_id>[^/]+)/(?P<what>status|control|commands/(?P<command_id>[^/]+))")
_ESTABLISHED = "01"


class RefusedError(Exception):
    """A request that gets an error status."""

    def __init__(self, status: int, message: str, **extra: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": message, **extra}


class ControlServer:
    """Serves one job on loopback while its trainer runs.

    Args:
        board: The command queue.
        status: The status of the job.
        endpoints: The folder of all jobs, or the job's own endpoint folder, claimed before.
        job_folder: The job folder, if there is one.
        host: Host name in `endpoint.json`; the socket is bound to 127.0.0.1 in any case.
        port: 0 lets the system choose.
        token: `auto` creates one; None disables it.
    """

    def __init__(
        self,
        job_id: str,
        board: CommandQueue,
        status: StatusFile,
        endpoints: Path | EndpointFolder,
        *,
        job_folder: Path | None = None,
        host: str = "localhost",
        port: int = 0,
        token: str | None = "auto",
    ) -> None:
        self.job_id = job_id
        self.board = board
        self.status = status
        self.token = secrets.token_urlsafe(32) if token == "auto" else token
        self._host = host
        self._port = port
        claimed = endpoints if isinstance(endpoints, EndpointFolder) else None
        self.folder = claimed or EndpointFolder(Path(str(endpoints)), job_id, job_folder)
        # A claimed folder is already a mirror of the status.
        self._mirrors = claimed is None
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        """The bound port; 0 before the start."""
        return int(self._server.server_address[1]) if self._server else 0

    def start(self) -> None:
        """Bind, serve in a thread, and publish the endpoint. A second call does nothing.

        Raises:
            OSError: If the port is in use or the endpoint folder cannot be written.
        """
        if self._server is not None:
            return
        # Bound before it is published: a client that finds the endpoint can connect.
        self._server = _Server(self, self._port)
        threading.Thread(target=self._server.serve, name="tunefleet-control", daemon=True).start()
        logger.debug("Job %s listens on 127.0.0.1:%d", self.job_id, self.port)
        self.folder.publish(host=self._host, port=self.port, token=self.token)
        if self._mirrors:
            self.status.add_mirror(self.folder.status_copy)

    def stop(self, *, withdraw: bool = True) -> None:
        """Stop serving, and withdraw the endpoint unless the caller does."""
        if self._server is None:
            return
        if withdraw:
            self.folder.withdraw()
        server, self._server = self._server, None
        # Before close: the serving thread must have left its loop.
        server.shutdown()
        server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    # A client that keeps its connection open must not block the end of the process.
    block_on_close = False

    def __init__(self, control: ControlServer, port: int) -> None:
        self.control = control
        super().__init__(("127.0.0.1", port), _Handler)

    def serve(self) -> None:
        """Serve until shut down; after a failure, the training run continues without a port."""
        try:
            self.serve_forever(poll_interval=0.25)
        except Exception:
            logger.exception("The control server failed; the training run continues")

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("A control connection from %s failed: %r", client_address, sys.exc_info()[1])


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "tunefleet-control"
    sys_version = ""
    # Seconds; an idle client would otherwise keep its thread for ever.
    timeout = 10
    server: _Server
    connection: socket.socket
    _VERBS: ClassVar[dict[str, str]] = {"status": "GET", "control": "POST", "commands": "GET"}

    def do_GET(self) -> None:
        """Answer a query."""
        self._respond()

    def do_POST(self) -> None:
        """Take a command."""
        self._respond()

    # Any other method gets a JSON error as well, not an HTML page of the library.
    do_OPTIONS = do_PUT = do_PATCH = do_DELETE = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("control: %s", format % args)

    def _respond(self) -> None:
        try:
            self._check_source()
            status, body = self._route()
        except RefusedError as refusal:
            status, body = refusal.status, refusal.body
            self.close_connection = True  # the body may be unread
        payload = json.dumps(body, allow_nan=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(payload)

    def _check_source(self) -> None:
        # Against DNS rebinding: a web page's own host name may resolve to 127.0.0.1.
        host = self.headers.get("Host", "")
        if re.sub(r":\d+$", "", host).lower() not in _LOCAL_HOSTS:
            raise RefusedError(403, f"The Host {host!r} is not local.")
        if self.headers.get("Origin") is not None:
            raise RefusedError(403, "A request with an Origin comes from a web page and is refused.")
        if self.headers.get("Sec-Fetch-Site", "none") != "none":
            raise RefusedError(403, "A request from a web page is refused.")
        if not self._authorized():
            raise RefusedError(401, "A token is required: send the one in endpoint.json as Authorization: Bearer.")

    def _authorized(self) -> bool:
        token = self.server.control.token
        if token is None:
            return True
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
        if given:
            # Constant time, so that a token cannot be guessed byte by byte.
            return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
        # Without a token, the kernel's socket table shows which user connected.
        return peer_uid(self.client_address, self.connection.getsockname()) == os.geteuid()

    def _route(self) -> tuple[int, dict[str, Any]]:
        control, path = self.server.control, self.path.partition("?")[0]
        if path == "/jobs" and self.command == "GET":
            return 200, {"jobs": list_endpoints(control.folder.path.parent)}
        match = _ROUTE.fullmatch(path)
        if match is None or match["job_id"] != control.job_id:
            raise RefusedError(404, f"{path} not found; this server is for job {control.job_id}.")
        what = match["what"].partition("/")[0]
        if self.command != self._VERBS[what]:
            raise RefusedError(405, f"{path} takes {self._VERBS[what]}.")
        if what == "status":
            return 200, self._status()
        return (200, self._command_state(match["command_id"])) if what == "commands" else (200, self._take())

    def _status(self) -> dict[str, Any]:
        control = self.server.control
        fields = control.status.fields
        values = fields.pop("values")
        return {
            **values,
            **fields,
            "job_id": control.job_id,
            "status": fields["state"],
            "timestamp": fields["at"],
            "global_step": fields["step"],
            "epoch": values.get("epoch"),
            "values": values,
        }

    def _command_state(self, command_id: str) -> dict[str, Any]:
        item = self.server.control.board.state(command_id)
        if item is None:
            raise RefusedError(404, f"Command {command_id} not found.")
        return _state(item)

    def _take(self) -> dict[str, Any]:
        body = self._json_body()
        command, data, command_id = body.get("command"), body.get("data") or {}, body.get("command_id")
        if not isinstance(command, str) or not isinstance(data, dict) or not isinstance(command_id, (str, type(None))):
            raise RefusedError(
                400, "The body must be an object with a `command`, and may have `data` and `command_id`."
            )
        try:
            item = self.server.control.board.submit(command, data, command_id)
        except ValueError as error:
            raise RefusedError(400, str(error)) from None
        except UnknownCommandError:
            raise RefusedError(400, f"Unknown command: {command}", valid_commands=[*COMMANDS, STATUS]) from None
        except ClosedError as closed:
            raise RefusedError(409, str(closed)) from None
        return {
            "status": "acknowledged",
            "command": item.command,
            "command_id": item.command_id,
            "timestamp": time.time(),
            "message": f"Command {item.command} queued for execution",
        }

    def _json_body(self) -> dict[str, Any]:
        if self.headers.get_content_type() != "application/json":
            raise RefusedError(415, "Send a command with Content-Type: application/json.")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise RefusedError(411, "Send a command with a Content-Length.")
        # Python refuses to convert a string of thousands of digits.
        if len(length) > _LENGTH_DIGITS or int(length) > MAX_BODY_BYTES:
            raise RefusedError(413, f"A command may have at most {MAX_BODY_BYTES} bytes.")
        try:
            body = json.loads(self.rfile.read(int(length)), parse_constant=_no_number)
        except (ValueError, RecursionError):
            raise RefusedError(400, "The body is not JSON.") from None
        if not isinstance(body, dict):
            raise RefusedError(400, "The body must be a JSON object.")
        return body


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _state(item: Command) -> dict[str, Any]:
    names = ("command_id", "command", "state", "step", "checkpoint", "message")
    return {name: getattr(item, name) for name in names}


def peer_uid(peer: tuple[str, int], ours: tuple[str, int]) -> int | None:
    """Return the user id of the process that connected from `peer` to `ours` over IPv4 loopback, or None.

    Args:
        peer: Address and port of the other end.
        ours: Address and port of this end.
    """
    wanted = (_hex(peer), _hex(ours))
    try:
        table = Path("/proc/net/tcp").read_text(encoding="ascii")
    except OSError:
        return None
    for line in table.splitlines()[1:]:
        fields = line.split()
        # A closed connection is listed with uid 0, so only an established one counts.
        if (fields[1], fields[2]) == wanted and fields[3] == _ESTABLISHED:
            return int(fields[7])
    return None


def _hex(address: tuple[str, int]) -> str:
    host, port = address
    (packed,) = struct.unpack("=I", socket.inet_aton(host))
    return f"{packed:08X}:{port:04X}"
