"""Two machines on one, with a server between them: a namespace for each, and a router that forwards.

Each namespace, and each end of a cable in it, has this process's number in its name, and is removed by who made it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tunefleet.client.connection import Connection
from tunefleet.client.routes import workflow_routes
from tunefleet.client.transport import Transport
from tunefleet.schemas.api import SubmitRequest, TaskDetail

NODES = ("one", "two")
SAVE_EVERY = 3
_MIDDLE = Path(__file__).resolve().parents[2] / "fakes" / "middle.py"
_PATIENCE_S = 150.0
_JOB = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TUNEFLEET_WARM_START": "false", "LOG_FILE": ""}


def document(steps: int, resources: str, more: str = "") -> str:
    """A small LoRA training that logs every step, draws random numbers in each, and is retried at once."""
    return f"""apiVersion: tunefleet/v1
metadata: {{name: gang}}
spec:
  taskType: lora_sft
  model: {{source: {{identifier: "builtin:gsm8k-llama-2m"}}}}
  data: {{path: "builtin:gsm8k", prompt_column: question, response_column: answer, max_samples: 64}}
  lora: {{r: 2, alpha: 4, dropout: 0.2, target_modules: [q_proj]}}
  training:
    {{max_steps: {steps}, batch_size: 2, max_seq_length: 64, logging_steps: 1, save_steps: {SAVE_EVERY}, seed: 3,
      learning_rate: 1e-3}}
  retry: {{max_attempts: 4, backoff_s: 0}}
  resources: {{{resources}, hardware: {{gpu: {{count: 0}}}}}}
{more}"""


@dataclass
class Cluster:
    """A server and a worker in each of two namespaces, and what a test does to them."""

    folder: Path
    running: ExitStack
    names: dict[str, str] = field(default_factory=dict)
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _ask: Callable[[Any], Any] = field(init=False)

    def ask(self, route: Any) -> Any:
        """Ask the server."""
        return self._ask(route)

    def start(self, where: str, argv: list[str], settings: dict[str, str], log: str) -> subprocess.Popen[bytes]:
        """Start a program in a namespace; it ends with the test."""
        with (self.folder / log).open("ab") as out:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.names[where], *argv],
                env={**os.environ, **settings},
                stdout=out,
                stderr=out,
            )
        self.running.callback(_end, process)
        return process

    def start_server(self) -> None:
        """Start the server, and the ends at which workers and the test reach it."""
        settings = {
            "TUNEFLEET_LOST_AFTER_S": "6", "TUNEFLEET_HOME": str(self.folder / "s"), "ENABLE_ELASTIC_SCALING": "false",
            "LOG_FILE": "", "PUBLIC_BASE_URL": "http://10.78.1.1:8443", "TUNEFLEET_ACCEPT_WITHIN_S": "5",
        }  # fmt: skip
        data, socket = self.folder / "data", self.folder / "api.sock"
        self.start("hub", [sys.executable, "-m", "tunefleet.api", "--data", str(data)], settings, "server.log")
        ends = [{"listen": listen, "target": "127.0.0.1:8000"} for listen in ("0.0.0.0:8443", str(socket))]
        middle = subprocess.Popen(
            ["ip", "netns", "exec", self.names["hub"], sys.executable, str(_MIDDLE), json.dumps(ends)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for pipe in (middle.stdin, middle.stdout):
            assert pipe is not None
            self.running.callback(pipe.close)
        self.running.callback(_end, middle)
        assert middle.stdout is not None
        assert middle.stdout.readline() == "ready\n"
        key = data / "keys" / "admin.key"
        self.until(key.exists, "the server")
        self.until(lambda: (data / "keys" / "worker.key").exists(), "its keys")
        link = Transport(
            Connection("http://127.0.0.1", key.read_text().strip()), network=httpx.HTTPTransport(uds=str(socket))
        )
        self.running.callback(link.close)
        self._ask = link.run

    def start_worker(self, name: str, **settings: str) -> None:
        """Start the worker of a machine, or start it again."""
        number = NODES.index(name) + 1
        given = {
            **_JOB,
            "ORCHESTRATOR_BASE_URL": f"http://10.78.{number}.1:8443",
            "TUNEFLEET_WORKER_KEY": (self.folder / "data" / "keys" / "worker.key").read_text().strip(),
            "RESULTS_DIR": str(self.folder / name),
            "TUNEFLEET_HOME": str(self.folder / f"home-{name}"),
            "WORKER_ID": name,
            "TUNEFLEET_GANG_JOIN_S": "60",
            **settings,
        }
        self.workers[name] = self.start(name, [sys.executable, "-m", "tunefleet.worker"], given, f"{name}.log")

    def await_workers(self, count: int = 2) -> None:
        """Wait until so many workers answer."""
        self.until(
            lambda: sum(each.status == "online" for each in self.ask(workflow_routes.list_workers()).items) == count,
            "workers",
        )

    def submit(self, text: str) -> str:
        """Submit a document with one task."""
        made = self.ask(
            workflow_routes.create_workflow(SubmitRequest(document=text), hashlib.sha256(os.urandom(8)).hexdigest())
        )
        return str(made.tasks[0].id)

    def task(self, task_id: str) -> TaskDetail:
        """Return a task."""
        found: TaskDetail = self.ask(workflow_routes.get_task(task_id))
        return found

    def ends(self, task_id: str, status: str = "completed") -> TaskDetail:
        """Wait for the end of a task."""
        self.until(lambda: self.task(task_id).status in {"completed", "failed", "cancelled"}, f"the end of {task_id}")
        found = self.task(task_id)
        assert found.status == status, (found.error, self.logs(task_id))
        return found

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until something is so."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (found := condition()):
            assert time.monotonic() < deadline, f"{what} did not come: {self.logs()}"
            time.sleep(0.1)
        return found

    def logs(self, task_id: str | None = None) -> str:
        """Return the ends of what was written."""
        files = [*self.folder.glob("*.log"), *self.folder.glob(f"*/{task_id or 'task-*'}/train.log")]
        return "\n".join(f"--- {file}\n{file.read_text()[-2500:]}" for file in files)

    def losses(self, task_id: str) -> list[tuple[int, float]]:
        """Return the series that the server has."""
        points = self.ask(workflow_routes.metrics(task_id, max_points=5000)).points
        return [(point.step, point.values["loss"]) for point in points if "loss" in point.values]

    def weights(self, task_id: str) -> str:
        """Return the digest of what was trained, on whichever machine it was."""
        found = [*self.folder.glob(f"*/{task_id}/final_lora/adapter_model.safetensors")]
        assert len(found) == 1, "the first node alone writes it"
        return hashlib.sha256(found[0].read_bytes()).hexdigest()

    def reached(self, task_id: str, step: int) -> None:
        """Wait until a training has come to a step."""
        self.until(lambda: any(at >= step for at, _ in self.losses(task_id)), f"step {step}")

    def uploaded(self, task_id: str) -> None:
        """Wait until a checkpoint is on the server."""
        self.until(
            lambda: any(each.artifact for each in self.ask(workflow_routes.checkpoints(task_id))),
            "an uploaded checkpoint",
        )

    def processes(self, name: str, task_id: str) -> list[psutil.Process]:
        """Return the ranks of a task on a machine."""
        folder = str(self.folder / name / task_id)
        return [each for each in psutil.process_iter(["cmdline"]) if folder in (each.info["cmdline"] or [])]

    def kill_ranks(self, name: str, task_id: str) -> None:
        """Kill what computes on one machine, as its kernel would without memory."""
        for process in self.processes(name, task_id):
            with contextlib.suppress(psutil.NoSuchProcess):  # also a zombie: it has ended meanwhile
                if "tunefleet.workloads.entrypoint" in process.cmdline():
                    process.kill()

    def kill_machine(self, name: str, task_id: str) -> None:
        """Take a machine out of the network, and kill all that runs there."""
        self.cable(name, "down")
        worker = psutil.Process(self.workers[name].pid)
        for process in [worker, *worker.children(recursive=True), *self.processes(name, task_id)]:
            if process.is_running():
                process.send_signal(signal.SIGKILL)

    def cable(self, name: str, state: str) -> None:
        """Pull the cable of a machine, or plug it in: `down` or `up`."""
        _ip("-n", self.names["hub"], "link", "set", f"to{name}", state)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Make the machines, and remove them with all that runs there."""
    with ExitStack() as removed, ExitStack() as running:
        made = Cluster(folder, running)
        for name in ("hub", *NODES):
            made.names[name] = f"tf{os.getpid()}{name}"
            _ip("netns", "add", made.names[name])
            removed.callback(_ip, "netns", "del", made.names[name])
            _ip("-n", made.names[name], "link", "set", "lo", "up")
        for number, name in enumerate(NODES, start=1):
            hub, here = made.names["hub"], made.names[name]
            _ip("link", "add", "eth0", "netns", here, "type", "veth", "peer", "name", f"to{name}", "netns", hub)
            for space, device, address in ((here, "eth0", 2), (hub, f"to{name}", 1)):
                _ip("-n", space, "addr", "add", f"10.78.{number}.{address}/24", "dev", device)
                _ip("-n", space, "link", "set", device, "up")
            _ip("-n", here, "route", "add", "default", "via", f"10.78.{number}.1")
        _ip("netns", "exec", made.names["hub"], "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        made.start_server()
        yield made


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(30)
