"""A fake mail server: speaks as much SMTP as a client needs to hand over a message, and keeps what it got."""

from __future__ import annotations

import base64
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import cast


@dataclass
class FakeMailServer:
    """What the server is to do, and what it saw."""

    port: int = 0
    password: str | None = None
    """Offers to log in, and takes this password alone."""
    refuse: list[str] = field(default_factory=list)
    """Answers to the next recipients, such as `450 later`; after them all are taken."""
    messages: list[EmailMessage] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)


@contextmanager
def mail_server() -> Iterator[FakeMailServer]:
    """Serve while the body runs."""
    fake = FakeMailServer()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self._say("220 fake")
            while line := self.rfile.readline().decode().strip():
                verb = line.split(maxsplit=1)[0].upper()
                if verb == "QUIT":
                    self._say("221 bye")
                    return
                self._say(self._answer(verb, line))

        def _answer(self, verb: str, line: str) -> str:
            if verb == "EHLO":
                return "250 fake" if fake.password is None else "250-fake\r\n250 AUTH PLAIN"
            if verb == "AUTH":
                fake.logins.append(base64.b64decode(line.split()[2]).decode().split("\0")[2])
                return "235 in" if fake.logins[-1] == fake.password else "535 wrong"
            if verb == "RCPT":
                refused = fake.refuse.pop(0) if fake.refuse else None
                if refused is None:
                    fake.recipients.append(line.partition("<")[2].partition(">")[0])
                return refused or "250 taken"
            if verb == "DATA":
                self._say("354 go on")
                fake.messages.append(self._read())
            return "250 good"

        def _read(self) -> EmailMessage:
            lines = []
            while (line := self.rfile.readline()) not in {b".\r\n", b""}:
                lines.append(line.removeprefix(b"."))
            return cast(EmailMessage, message_from_bytes(b"".join(lines), policy=policy.default))

        def _say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        fake.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
