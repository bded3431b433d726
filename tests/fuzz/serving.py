"""The control server of a trainer, spoken to with bytes on its socket."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import shutil
import socket
import tempfile
from pathlib import Path

from tunefleet.trainer_control.control.command_queue import CommandQueue
from tunefleet.trainer_control.control.control_server import ControlServer
from tunefleet.trainer_control.journal.status import StatusFile

ANSWER_S = 30.0


class Port:
    """A control server of this process, without a trainer behind it."""

    made: Port | None = None

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="port-"))
        self.status = StatusFile(self.folder)
        self.server = ControlServer("job-1", CommandQueue(self.folder), self.status, self.folder / "jobs")
        self.server.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Put it away."""
        self.server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def control_answers(data: bytes, folder: Path) -> None:
    """Whatever is sent is answered with whole messages, none of which is a failure of the server's own."""
    here = Port.made = Port.made or Port()
    with socket.create_connection(("127.0.0.1", here.server.port), timeout=ANSWER_S) as sock:
        with contextlib.suppress(OSError):  # it may refuse before all is sent
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        told, reset = b"", False
        try:
            while piece := sock.recv(65536):
                told += piece
        except ConnectionError:  # it closed before it had read all: then its answer may be lost on the way
            reset = True
    if not reset:
        _is_whole(data, told)
    asked = http.client.HTTPConnection("127.0.0.1", here.server.port, timeout=ANSWER_S)
    asked.request("GET", "/jobs/job-1/status")
    assert asked.getresponse().status == 200, "it goes on"
    asked.close()


def _is_whole(data: bytes, told: bytes) -> None:
    request, head, _ = data.partition(b"\r\n\r\n")
    if told.startswith(b"HTTP/"):
        status = int(told.split(None, 2)[1])
        assert status < 500 or status in {501, 505}, told[:300]
        first, _, body = told.partition(b"\r\n\r\n")
        if b"application/json" in first:
            json.JSONDecoder().raw_decode(body.decode())
    elif head and request.split(b" ")[0] in {b"GET", b"POST", b"PUT"} and request.count(b" ") >= 2:
        assert told, f"a whole request was not answered: {data[:200]!r}"
