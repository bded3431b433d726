"""Three real server processes on one PostgreSQL and one folder of files, and a worker process."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.integration.api.support import until
from tests.integration.postgres.process import PostgresProcess

QUICK = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: NAME}
spec:
  taskType: echo
  data: {type: list, items: [a]}
"""
LONG = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: NAME}
spec:
  taskType: command
  command: [sh, -c, "touch $FOLDER/began; while [ ! -e $FOLDER/end ]; do sleep 0.1; done"]
"""


class Trio:
    """Servers 0, 1 and 2, each with a data folder of its own."""

    def __init__(self, folder: Path, postgres: PostgresProcess, free_port: Callable[[], int]) -> None:
        self.folder, self.postgres, self.url = folder, postgres, postgres.create()
        self.ports = [free_port() for _ in range(3)]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.workers: list[subprocess.Popen[bytes]] = []
        self.settings: dict[str, str] = {}
        """Of all servers and of the workers."""
        self.authority: ssl.SSLContext | None = None
        """Whom to trust, where the servers speak TLS."""
        (folder / "files").mkdir()

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        return {
            **os.environ,
            "TUNEFLEET_HOME": str(self.folder / "home"),
            "TUNEFLEET_WARM_START": "false",
            **self.settings,
            **more,
        }

    def spawn(self, module: str, name: str, more: Mapping[str, str], *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *words], env=self.environment(more), stdout=log, stderr=log
            )

    def begin(self, number: int, module: str = "tunefleet.api", **settings: str) -> None:
        data = self.folder / f"data{number}"
        if not data.exists():
            data.mkdir()
            (data / "artifacts").symlink_to(self.folder / "files", target_is_directory=True)
        more = {"TUNEFLEET_DATABASE_URL": self.url, **settings}
        words = ("--data", str(data), "--port", str(self.ports[number]))
        self.processes[number] = self.spawn(module, f"server{number}", more, *words)

    def start(self, *numbers: int, module: str = "tunefleet.api", **settings: str) -> None:
        for number in numbers or (0, 1, 2):
            self.begin(number, module, **settings)
            # One after the other: the first one makes the tables and the keys.
            until(partial(self.answers, number))

    def stop(self, number: int) -> None:
        self.processes[number].send_signal(signal.SIGTERM)
        self.processes[number].wait(60)

    def answers(self, number: int) -> bool:
        assert self.processes[number].poll() is None, self.log(number)
        try:
            return httpx.get(
                f"{self.base(number)}/api/v1/healthz", timeout=10, verify=self.authority or True
            ).is_success
        except httpx.TransportError:
            return False

    def log(self, number: int) -> str:
        return (self.folder / f"server{number}.log").read_text()

    def base(self, number: int) -> str:
        return f"http{'s' if self.authority else ''}://127.0.0.1:{self.ports[number]}"

    def key(self, role: str = "admin") -> str:
        return (self.folder / f"data0/keys/{role}.key").read_text().strip()

    def client(self, number: int, role: str = "admin") -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key(role)}"}
        base = f"{self.base(number)}/api/v1"
        return httpx.Client(base_url=base, headers=headers, timeout=60, verify=self.authority or True)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.postgres.connect(self.url) as connection:
            return connection.execute(query).fetchall()

    def leader(self) -> int | None:
        """The number of the server that leads, by the row."""
        found = self.rows("SELECT url FROM leader WHERE server_id IS NOT NULL")
        return self.ports.index(int(found[0][0].rpartition(":")[2])) if found else None

    def epoch(self) -> int:
        found = self.rows("SELECT epoch FROM leader")
        return int(found[0][0]) if found else 0

    def ran(self) -> int:
        """How many attempts were more than an offer."""
        found = self.rows("SELECT count(*) FROM attempts WHERE reason IS NULL OR reason <> 'not_accepted'")
        return int(found[0][0])

    def follower(self) -> int:
        until(lambda: self.leader() is not None)
        return next(number for number in self.processes if number != self.leader())

    def work(self, number: int, name: str = "w1", **settings: str) -> None:
        """Start a worker that knows one server alone."""
        more = {"ORCHESTRATOR_BASE_URL": self.base(number), "TUNEFLEET_WORKER_KEY": self.key("worker")}
        more |= {"RESULTS_DIR": str(self.folder / name), "WORKER_ID": name, "TUNEFLEET_ALLOW_CODE": "true", **settings}
        self.workers.append(self.spawn("tunefleet.worker", name, {k: v for k, v in more.items() if v}))

    def end(self) -> None:
        for process in [*self.workers, *self.processes.values()]:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        self.postgres.drop(self.url)


def submit(client: httpx.Client, document: str, **headers: str) -> str:
    """Submit a document, and return the workflow's id."""
    reply = client.post("/workflows", content=document, headers={"Content-Type": "application/yaml", **headers})
    assert reply.is_success, reply.text
    return str(reply.json()["id"])


def named(text: str, name: str, folder: Path | None = None) -> str:
    return text.replace("NAME", name).replace("$FOLDER", str(folder))
