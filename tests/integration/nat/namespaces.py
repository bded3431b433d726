"""Three machines on one: a server and a worker that cannot reach each other, and a router with a proxy between them.

The router forwards nothing, so whatever passes has been opened by the worker, through the proxy. Each namespace, and
each end of a cable in it, has this process's number in its name, and is removed by who made it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SERVER, ROUTER_UP, ROUTER_DOWN, WORKER = "10.77.1.2", "10.77.1.1", "10.77.2.1", "10.77.2.2"
_MIDDLE = Path(__file__).resolve().parents[2] / "fakes" / "middle.py"


def available() -> bool:
    """Whether this process may make namespaces and cables between them."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        return False
    name = f"tf{os.getpid()}x"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        _ip("netns", "del", name)
    return made


@dataclass
class Teller:
    """A `middle.py` in a namespace, and how it is told what to do."""

    process: subprocess.Popen[str]

    def tell(self, order: str) -> list[list[Any]]:
        """Give an order; returns connections, bytes up and newest targets of each listener."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        found: list[list[Any]] = json.loads(self.process.stdout.readline())
        return found


@dataclass
class Net:
    """The namespaces `server`, `router` and `worker`, and what runs in them."""

    running: ExitStack
    names: dict[str, str] = field(default_factory=dict)

    def start(
        self, where: str, argv: Sequence[str], environment: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a program in a namespace; it ends with the test."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[where], *argv], env={**os.environ, **(environment or {})}, **options
        )
        self.running.callback(_end, process)
        return process

    def middle(self, where: str, *listeners: Mapping[str, Any]) -> Teller:
        """Start listeners in a namespace."""
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = self.start(where, [sys.executable, str(_MIDDLE), json.dumps(listeners)], **pipes)
        for pipe in (process.stdin, process.stdout):
            self.running.callback(pipe.close)
        assert process.stdout.readline() == "ready\n"
        return Teller(process)

    def run(self, where: str, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a program in a namespace to its end."""
        command = ["ip", "netns", "exec", self.names[where], *argv]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    def cable(self, state: str) -> None:
        """Pull the cable of the worker, or plug it in: `down` or `up`."""
        assert self.run("router", "ip", "link", "set", "down0", state).returncode == 0

    def slow_down(self, rate: str) -> None:
        """Hold what the worker sends to a speed, such as `8mbit`."""
        done = self.run("worker", "tc", "qdisc", "add", "dev", "up0", "root", "tbf", "rate", rate,
                        "burst", "64kb", "latency", "400ms")  # fmt: skip
        assert done.returncode == 0, done.stderr


@contextmanager
def net() -> Iterator[Net]:
    """Make the namespaces, and remove them with all that runs there."""
    with ExitStack() as removed, ExitStack() as running:
        made = Net(running)
        for name in ("server", "router", "worker"):
            made.names[name] = f"tf{os.getpid()}{name[0]}"
            _ip("netns", "add", made.names[name])
            removed.callback(_ip, "netns", "del", made.names[name])
        _cable(made, "server", "up0", f"{SERVER}/24", "up0", f"{ROUTER_UP}/24")
        _cable(made, "worker", "up0", f"{WORKER}/24", "down0", f"{ROUTER_DOWN}/24")
        for name in made.names:
            made.run(name, "ip", "link", "set", "lo", "up")
        made.run("router", "sysctl", "-q", "-w", "net.ipv4.ip_forward=0")
        yield made


def _cable(made: Net, where: str, end: str, address: str, router_end: str, router_address: str) -> None:
    here, router = made.names[where], made.names["router"]
    _ip("link", "add", end, "netns", here, "type", "veth", "peer", "name", router_end, "netns", router)
    for namespace, device, own in ((here, end, address), (router, router_end, router_address)):
        _ip("-n", namespace, "addr", "add", own, "dev", device)
        _ip("-n", namespace, "link", "set", device, "up")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(30)
