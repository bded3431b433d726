"""A server and workers that meet in a real Redis, and a proxy that makes it slow."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.contract.transport.conftest import ECHO, registration
from tests.integration.redis.process import RedisProcess
from tunefleet.api import launch
from tunefleet.api.app import create_app
from tunefleet.client import Client
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.schemas.worker_link import ExchangeReply, ExchangeRequest, Finish, Offer
from tunefleet.settings import ServerSettings, load
from tunefleet.transport.redis.keys import Keys
from tunefleet.transport.redis.worker import RedisLink

PATIENCE_S = 90.0


def until(condition: Callable[[], object], what: str = "it") -> Any:
    """Wait until something is so, and return it."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)
    return found


class Site:
    """A server in a thread, which can be stopped and started again, and worker processes."""

    def __init__(self, folder: Path, redis_url: str, **settings: Any) -> None:
        self.folder, self.redis_url, self.settings = folder, redis_url, settings
        self.workers: list[subprocess.Popen[str]] = []
        self._port = 0
        self.start()

    def start(self) -> None:
        given = {"synchronous": "NORMAL", "lost_after_s": 60, "redis_url": self.redis_url, **self.settings}
        self.core = open_context(load(ServerSettings, data=self.folder / "data", **given))
        bound = launch.bind("127.0.0.1", self._port)
        self._port = bound.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.server = launch.make(create_app(self.core))
        self.server.lifetime.url = self.url  # as `launch.run` says it
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [bound]}, daemon=True)
        self._thread.start()
        until(lambda: self.server.started, "the server's start")
        self.client = Client(self.url, (self.folder / "data" / "keys" / "admin.key").read_text().strip())

    def stop(self) -> None:
        self.client.close()
        self.server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.core.close()

    def close(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.communicate()
        self.stop()

    def worker(self, name: str, **more: str) -> subprocess.Popen[str]:
        """Start a worker with the guide's three variables, a name, and no key."""
        given = {
            "REDIS_URL": self.redis_url,
            "RESULTS_DIR": str(self.folder / f"results-{name}"),
            "ORCHESTRATOR_BASE_URL": self.url,
        }
        given |= {"WORKER_ID": name, "TUNEFLEET_WARM_START": "false", "TUNEFLEET_JOB_SLOTS": "0"} | more
        started = subprocess.Popen(
            [sys.executable, "-m", "tunefleet.worker"],
            env={**os.environ, **given}, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.workers.append(started)
        return started

    def online(self, name: str) -> bool:
        return any(worker.id == name and worker.status == "online" for worker in self.client.workers.list().items)

    def hand(self, **more: Any) -> Hand:
        """A worker by hand."""
        return Hand(RedisLink(self.redis_url, Keys(), server_url=self.url, **more))

    def submit(self, document: str = ECHO) -> str:
        return self.client.submit(document).task_id

    def status(self, task_id: str) -> str:
        return self.client.tasks.get(task_id).status

    def completed(self, task_id: str) -> bool:
        return self.status(task_id) == "completed"


class Hand:
    """A worker by hand: one link, one session."""

    def __init__(self, link: RedisLink, worker_id: str | None = None, **more: object) -> None:
        self.link = link
        self.worker_id = worker_id or f"w-{uuid.uuid4().hex[:6]}"
        self.registered = link.register(registration(self.worker_id, **more))

    def say(self, *, wait_s: float = 0.0, want: int = 8, **more: object) -> ExchangeReply:
        plain = {"worker_id": self.worker_id, "session": "s1", "wait_s": wait_s, "want": {"light": want}}
        return self.link.exchange(ExchangeRequest.model_validate(plain | more))

    def offer(self, task_id: str) -> Offer:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for offer in self.say(wait_s=1.5).offers:
                if offer.task_id == task_id:
                    return offer
        raise AssertionError(f"{task_id} was not offered")

    def finish(self, token: str, **result: object) -> ExchangeReply:
        return self.say(finishes=(Finish(token=token, outcome="completed", reason="finished", result={**result}),))


class Proxy:
    """Passes TCP on, each piece late, and counts what is sent there; can be cut."""

    def __init__(self, port: int, delay_s: float) -> None:
        self._target, self.delay_s, self.sent_bytes = port, delay_s, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._counting = threading.Lock()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(30)
        for each in self._sockets:
            each.close()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(near)
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            self._sockets.append(far)
            for source, sink, counts in ((near, far, 1), (far, near, 0)):
                threading.Thread(target=self._pass, args=(source, sink, counts), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, counts: int) -> None:
        try:
            while piece := source.recv(1 << 16):
                time.sleep(self.delay_s)
                sink.sendall(piece)
                with self._counting:
                    self.sent_bytes += len(piece) * counts
        except OSError:
            return
        finally:
            for each in (source, sink):
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue


__all__ = ["Hand", "Proxy", "RedisProcess", "Site", "until"]
