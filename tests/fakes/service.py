"""A real HTTP service of somebody else that answers chat completions, and whatever a test wants it to do."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.listening import listening


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: str


@dataclass(frozen=True)
class Says:
    """An answer.

    Args:
        body: A text as it is; anything else as JSON.
    """

    status: int = 200
    body: Any = ""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Service:
    """What the service saw and is to do."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    answers: list[Says] = field(default_factory=list)
    """Given first, one to each request."""
    answer: Callable[[Asked], Says] = lambda asked: completion(asked)
    at_once: int = 0
    """Most requests that were open at the same time."""


def completion(asked: Asked) -> Says:
    """Answer a chat with its last message in capitals, as OpenAI's API does."""
    said = json.loads(asked.body)["messages"][-1]["content"]
    choice = {"index": 0, "message": {"role": "assistant", "content": said.upper()}, "finish_reason": "stop"}
    return Says(body={"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})


@contextmanager
def serving() -> Iterator[Service]:
    """Serve while the body runs."""
    service, lock = Service(), threading.Lock()
    open_now = 0

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def _serve(self) -> None:
            nonlocal open_now
            length = int(self.headers.get("content-length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, self.path, headers, self.rfile.read(length).decode())
            with lock:
                service.asked.append(asked)
                open_now += 1
                service.at_once = max(service.at_once, open_now)
                given = service.answers.pop(0) if service.answers else None
            try:
                self._say(given or service.answer(asked))
            except (BrokenPipeError, ConnectionResetError):
                pass  # whoever asked has heard enough
            finally:
                with lock:
                    open_now -= 1

        def _say(self, says: Says) -> None:
            body = says.body if isinstance(says.body, str) else json.dumps(says.body)
            self.send_response(says.status)
            for name, value in says.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_POST = do_PUT = do_HEAD = _serve

    with listening(Handler) as service.url:
        yield service
