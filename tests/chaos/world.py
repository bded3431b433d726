"""The world that is struck: one of every process that a fleet may have, each a real one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import httpx

from tests.chaos import far, planted
from tests.chaos.lines import Line, line
from tests.chaos.member import Member, dead_children, of_world, until
from tests.integration.nat.namespaces import Net
from tests.integration.postgres.process import PostgresProcess
from tests.integration.redis.process import RedisProcess
from tunefleet.client import Client

MOVED = Path(__file__).resolve().parents[1] / "fakes" / "moved"
READY_S: Final = 240.0
SMALL: Final = {"server": "512m", "worker-2": "256m"}
"""Whose data lies on a file system of its own, and how large that is."""
SETTINGS: Final = {
    "ENABLE_ELASTIC_SCALING": "false",
    "HEARTBEAT_INTERVAL_SEC": "2",
    "HF_HUB_OFFLINE": "1",
    "LOG_FILE": "",
    "OMP_NUM_THREADS": "1",
    "TUNEFLEET_ALLOW_CODE": "true",
    "TUNEFLEET_JOB_SLOTS": "1",
    "TUNEFLEET_LOST_AFTER_S": "8",
}


class World:
    """A server on PostgreSQL, a Redis, workers near and far, and an agent.

    Args:
        folder: Of everything that is written, logs too.
        postgres: The database's process, which can be stopped and started.
        redis: The same of Redis.
        free_port: Gives out ports.
    """

    def __init__(
        self, folder: Path, postgres: PostgresProcess, redis: RedisProcess, free_port: Callable[[], int]
    ) -> None:
        self.folder, self.postgres, self.redis = folder, postgres, redis
        self.database_url = postgres.create()
        self.port, self.free_port = free_port(), free_port
        self.members: dict[str, Member] = {}
        self.lines: dict[str, Line] = {}
        self.net: Net | None = None
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.secrets = planted.planted()
        """Name → secret, of those that it was given."""
        self.down: set[str] = set()
        """Members that a strike has taken away, and has yet to give back."""
        self._watching = threading.Event()
        self._stack = ExitStack()
        # Short: a fork server's socket lies in it.
        self.temporary = Path(tempfile.mkdtemp(prefix="tfc-"))

    @property
    def url(self) -> str:
        """The server's address on this machine."""
        return f"http://127.0.0.1:{self.port}"

    def key(self, role: str) -> str:
        """Return the key that the server has made for a role."""
        return (self.folder / "server" / "data" / "keys" / f"{role}.key").read_text().strip()

    def client(self, patience_s: float = 60.0) -> Client:
        """Return a client that rides out the server's absence."""
        return Client(self.url, self.key("admin"), patience_s=patience_s)

    def results(self) -> dict[str, Path]:
        """Return where each machine has its job folders."""
        names = [name for name in self.members if name.startswith("worker-") or name == "far"]
        found = {name: self.folder / name / "results" for name in names}
        return found | ({"agent": self.folder / "agent" / "checkpoints"} if "agent" in self.members else {})

    def start(self) -> None:
        """Start everything, and wait until every machine has told the server of itself."""
        self._place("server", "data")
        server = ["--data", str(self.folder / "server" / "data"), "--port", str(self.port)]
        given = {"TUNEFLEET_DATABASE_URL": self.database_url, "REDIS_URL": self.redis.url}
        self._add("server", [sys.executable, "-m", "tunefleet.api", *server], given)
        until(self.answers, "the server answers", within_s=READY_S)
        for name in ("worker-1", "worker-2"):
            self._near(name)
        self._agent()
        if far.available():
            self.net = self._stack.enter_context(far.joined(self))
        threading.Thread(target=self._watch, daemon=True, name="watch").start()
        until(lambda: self.online() >= self.machines(), f"every machine is there: {self.words()}", within_s=READY_S)

    def machines(self) -> set[str]:
        """Return the names of the workers and of the agent, as the server knows them."""
        return {name if name != "agent" else AGENT for name in self.members if name != "server"}

    def online(self) -> set[str]:
        """Return which machines the server takes for living."""
        with self.client() as client:
            return {each.id for each in client.workers.list(limit=100).items if each.status == "online"}

    def answers(self) -> bool:
        """Whether the server serves."""
        with contextlib.suppress(httpx.TransportError, FileNotFoundError):
            headers = {"Authorization": f"Bearer {self.key('admin')}"}
            return httpx.get(f"{self.url}/api/v1/tasks", headers=headers, timeout=10).is_success
        return False

    def words(self) -> str:
        """Return where the logs are, and what stands at their ends."""
        ends = [f"--- {log}\n{log.read_text(errors='replace')[-1500:]}" for log in sorted(self.logs.glob("*.log"))]
        return "\n".join([f"The logs are in {self.logs}.", *ends])

    def heal(self) -> None:
        """Give back whatever a strike has taken, but leave the clocks as they are."""
        for each in self.lines.values():
            each.tell("go")
        if self.net is not None:
            self.net.cable("up")
        for name in SMALL:
            self.ballast(name).unlink(missing_ok=True)
        for member in self.members.values():
            member.signal(signal.SIGCONT)
        for name, started in (("redis", self.redis.start), ("database", self.postgres.start)):
            if name in self.down:
                started()
        self.down.clear()
        for member in self.members.values():
            member.start()
        until(self.answers, f"the server answers again: {self.words()}", within_s=READY_S)

    def blobs(self) -> list[Path]:
        """Return every file that the server stores."""
        return list((self.folder / "server" / "data" / "artifacts" / "blobs").glob("*/*"))

    def clock(self, name: str) -> Path:
        """Return the file that says by how many seconds a member's clock is wrong."""
        return self.folder / name / "clock"

    def ballast(self, name: str) -> Path:
        """Return the file that fills a small file system."""
        return self.folder / name / "ballast"

    def stop(self) -> list[str]:
        """End every process as an operator does; returns what is left that should not be, in words."""
        self._watching.set()
        # While their parents live: whoever is left without one is waited for by the system.
        until_or_not(lambda: not dead_children(str(self.temporary)), 5)
        zombies = dead_children(str(self.temporary))
        members = [self.members[name] for name in self.members if name != "server"]
        for member in [*members, *(self.members[name] for name in ("server",) if name in self.members)]:
            member.stop(signal.SIGTERM, 60)
        # A fork server ends when the last one that needs it does.
        until_or_not(lambda: not of_world(str(self.temporary)), 20)
        mark = str(self.temporary)
        left = [f"process {each.pid} is left: {' '.join(each.cmdline())}" for each in of_world(mark)]
        return [*zombies, *left]

    def remove(self) -> None:
        """Take everything away, whatever state it is in."""
        self._watching.set()
        for member in self.members.values():
            member.signal(signal.SIGKILL)
        for process in of_world(str(self.temporary)):
            with contextlib.suppress(Exception):
                process.kill()
        self._stack.close()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def environment(self, name: str, given: Mapping[str, str]) -> dict[str, str]:
        """Return a member's whole environment; its clock and its home are its own."""
        # Who shares this folder shares a fork server, whose jobs are in the namespace that it was started in.
        place, temporary = self.folder / name, self.temporary / ("far" if name == far.NAME else "near")
        for each in (place, temporary):
            each.mkdir(exist_ok=True)
        self.clock(name).write_text("0")
        path = os.pathsep.join(filter(None, (str(MOVED), os.environ.get("PYTHONPATH"))))
        own = {
            "AWS_ACCESS_KEY_ID": self.secrets[planted.S3_KEY],
            "AWS_SECRET_ACCESS_KEY": self.secrets[planted.S3_SECRET],
            "HF_TOKEN": self.secrets[planted.HUB],
            "MOVED_CLOCK": str(self.clock(name)),
            "PYTHONPATH": path,
            "TMPDIR": str(temporary),
            "TUNEFLEET_HOME": str(place / "home"),
            "TUNEFLEET_SECRET_CHAOS": self.secrets[planted.TASK],
        }
        return {**os.environ, **SETTINGS, **own, **given}

    def line(self, name: str, *listeners: Mapping[str, str]) -> list[int]:
        """Put a line before a member that can be cut; returns the ports to reach what is behind it."""
        ports = [self.free_port() for _ in listeners]
        ends = [{"listen": f"127.0.0.1:{port}", **each} for port, each in zip(ports, listeners, strict=True)]
        self.lines[name] = self._stack.enter_context(line(ends))
        return ports

    def _near(self, name: str) -> None:
        self._place(name, "results")
        to_server, to_redis = self.line(
            name, {"target": f"127.0.0.1:{self.port}"}, {"target": f"127.0.0.1:{self.redis.port}"}
        )
        given = {
            "ORCHESTRATOR_BASE_URL": f"http://127.0.0.1:{to_server}",
            "REDIS_URL": f"redis://127.0.0.1:{to_redis}/0",
            "RESULTS_DIR": str(self.folder / name / "results"),
            "WORKER_ID": name,
        }
        self._add(name, [sys.executable, "-m", "tunefleet.worker"], given)

    def _agent(self) -> None:
        (to_server,) = self.line("agent", {"target": f"127.0.0.1:{self.port}"})
        with self.client() as client:
            self.secrets[planted.AGENT] = client.keys.create("agent", "worker").secret
        given = {
            "AGENT_ID": AGENT,
            "API_KEY": self.secrets[planted.AGENT],
            "BACKEND_URL": f"http://127.0.0.1:{to_server}",
            "HEARTBEAT_INTERVAL_SECONDS": "2",
            "PORT": str(self.free_port()),
        }
        self._add("agent", [sys.executable, "-m", "tunefleet.agent"], given)

    def add(self, name: str, argv: list[str], environment: Mapping[str, str]) -> None:
        """Start a member whose environment is whole already."""
        self.members[name] = Member(name, argv, environment, self.logs / f"{name}.log", self.folder / name)
        self.members[name].start()

    def _add(self, name: str, argv: list[str], given: Mapping[str, str]) -> None:
        self.add(name, argv, self.environment(name, given))

    def _place(self, name: str, inner: str) -> None:
        """Make a member's folder; where it is to become full, one on a small file system."""
        place = self.folder / name
        place.mkdir()
        if name in SMALL and os.geteuid() == 0:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL[name]}", "tmpfs", str(place)], check=True)
            self._stack.callback(subprocess.run, ["umount", "--lazy", str(place)], check=True)
        (place / inner).mkdir()

    def _watch(self) -> None:
        while not self._watching.wait(0.2):
            for name, member in self.members.items():
                if name not in self.down:
                    member.look()


AGENT: Final = "agent_of_chaos"


def until_or_not(condition: Callable[[], object], within_s: float) -> None:
    """Wait until something is so, but no longer than a time."""
    deadline = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


@contextmanager
def world(
    folder: Path, postgres: PostgresProcess, redis: RedisProcess, free_port: Callable[[], int]
) -> Iterator[World]:
    """A world that has started; whatever becomes of it, nothing of it stays."""
    made = World(folder, postgres, redis, free_port)
    try:
        made.start()
        yield made
    finally:
        made.remove()
