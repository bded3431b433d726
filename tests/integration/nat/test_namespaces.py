"""A worker that nobody can reach: it joins, works on without its server, hears of what was asked, and delivers once."""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.integration.nat.namespaces import ROUTER_DOWN, SERVER, WORKER, Net, Teller, available, net
from tunefleet.client.connection import Connection
from tunefleet.client.routes import workflow_routes
from tunefleet.client.transport import Transport
from tunefleet.schemas.api import SubmitRequest

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

SIZE = 4 << 20
HOUR_S = 3600.0
MOVED = Path(__file__).parents[2] / "fakes" / "moved"
LOOP = f"""
      import json, pathlib, random, time
      import tunefleet
      with tunefleet.control("loop", max_steps=100000) as c:
          step = c.step_reached
          while True:
              step += 1
              time.sleep(0.05)
              print(f"line {{step}}", flush=True)
              asked = c.step(step, {{"loss": 1 / step}})
              if asked.save:
                  folder = pathlib.Path(f"checkpoint-{{step}}")
                  folder.mkdir()
                  (folder / "step.json").write_text(json.dumps(step))
                  c.saved(folder)
              if asked.stop:
                  break
      pathlib.Path("weights.bin").write_bytes(random.Random(7).randbytes({SIZE}))
"""
DOCUMENT = f"""apiVersion: tunefleet/v1
metadata: {{name: far}}
spec:
  taskType: command
  on_lost: wait
  outputs: {{weights: weights.bin}}
  command:
    - python
    - -c
    - |{LOOP}
"""


@dataclass
class Far:
    """A fleet whose worker is behind a router, and a way to ask its server."""

    net: Net
    proxy: Teller
    folder: Path
    ask: Callable[[Any], Any]

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until something is so; a minute passes only if it never will be."""
        deadline = time.monotonic() + 60
        while not (found := condition()):
            assert time.monotonic() < deadline, (self.folder / "worker.log").read_text()[-3000:]
            time.sleep(0.05)
        return found

    def an_hour_passes(self) -> None:
        """Move the clock of every process, here and there."""
        (self.folder / "clock").write_text(str(HOUR_S))

    def submit(self) -> str:
        """Submit the loop."""
        made = self.ask(workflow_routes.create_workflow(SubmitRequest(document=DOCUMENT), "once"))
        return str(made.tasks[0].id)

    def is_(self, task_id: str, status: str) -> bool:
        """Whether a task has a status."""
        return bool(self.ask(workflow_routes.get_task(task_id)).status == status)

    def steps(self, task_id: str) -> list[int]:
        """Return the steps of which the server has the loss."""
        return [point.step for point in self.ask(workflow_routes.metrics(task_id, max_points=5000)).points]

    def lines(self, task_id: str) -> list[int]:
        """Return the numbered lines of the log."""
        text = self.ask(workflow_routes.log(task_id)).text
        return [int(line.split()[1]) for line in text.splitlines() if line.startswith("line ")]

    def here(self, task_id: str) -> int:
        """Return how many lines the job itself has written, whoever knows of it."""
        return (self.folder / "results" / task_id / "train.log").read_text().count("line ")


@pytest.fixture
def far(tmp_path: Path, missing: Callable[[str], None]) -> Iterator[Far]:
    if not available():
        missing("The right to make network namespaces (root, ip, tc)")
    authority, paper = trustme.CA(), tmp_path / "server.pem"
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert(SERVER).private_key_and_cert_chain_pem.write_to_path(str(paper))
    with ExitStack() as stack:
        made = stack.enter_context(net())
        # The clock of the server, of the worker and of its job is moved while they run.
        (tmp_path / "clock").write_text("0")
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("MOVED_CLOCK", str(tmp_path / "clock"))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(MOVED), os.environ.get("PYTHONPATH")))))
        url, socket = f"https://{SERVER}:8443", tmp_path / "api.sock"
        settings = {"TUNEFLEET_LOST_AFTER_S": "2", "PUBLIC_BASE_URL": url, "TUNEFLEET_HOME": str(tmp_path / "s")}
        with (tmp_path / "server.log").open("wb") as log:
            command = [sys.executable, "-m", "tunefleet.api", "--data", str(tmp_path / "data")]
            made.start("server", command, settings, stdout=log, stderr=log)
        end = {"listen": f"{SERVER}:8443", "target": "127.0.0.1:8000", "certificate": str(paper)}
        made.middle("server", end, {"listen": str(socket), "target": "127.0.0.1:8000"})
        proxy = made.middle("router", {"listen": f"{ROUTER_DOWN}:3128", "kind": "proxy", "credentials": "me:secret"})
        key = tmp_path / "data" / "keys" / "admin.key"
        deadline = time.monotonic() + 60
        while not key.exists():
            assert time.monotonic() < deadline, (tmp_path / "server.log").read_text()
            time.sleep(0.05)
        network = httpx.HTTPTransport(uds=str(socket))
        ask = Transport(Connection("http://127.0.0.1", key.read_text().strip()), network=network)
        stack.callback(ask.close)
        found = Far(made, proxy, tmp_path, ask.run)
        _join(found, url)
        yield found


def _join(far: Far, url: str) -> None:
    """Type on the worker's machine what the invitation says."""
    command = far.ask(workflow_routes.invite("far-1")).command.split()
    assert command[:3] == ["tunefleet", "join", url]
    argv = [str(Path(sys.executable).with_name("tunefleet")), *command[1:]]
    options = ["--ca-file", str(far.folder / "ca.pem"), "--results-dir", str(far.folder / "results"), "--allow-code"]
    environment = {
        "TUNEFLEET_HOME": str(far.folder / "w"),
        "HTTPS_PROXY": f"http://me:secret@{ROUTER_DOWN}:3128",
        "TUNEFLEET_WARM_START": "false",
    }
    with (far.folder / "worker.log").open("wb") as log:
        far.net.start("worker", [*argv, *options], environment, stdout=log, stderr=log)
    far.until(lambda: [each for each in far.ask(workflow_routes.list_workers()).items if each.id == "far-1"])


def _nobody_can_reach(far: Far) -> None:
    """See that no way leads to the worker, and that nothing listens there for others."""
    code = f"import socket; socket.create_connection(('{WORKER}', 22), 5)"
    reached = far.net.run("server", sys.executable, "-c", code)
    assert "Network is unreachable" in reached.stderr
    listening = far.net.run("worker", "ss", "-Htln").stdout.splitlines()
    assert all(line.split()[3].startswith(("127.", "[::1]")) for line in listening), listening


def test_a_worker_behind_a_router_goes_on_for_an_hour_without_its_server_and_all_arrives_once(far: Far) -> None:
    task_id = far.submit()
    far.until(lambda: len(far.steps(task_id)) > 10)
    _nobody_can_reach(far)

    far.net.cable("down")
    far.until(lambda: far.ask(workflow_routes.get_worker("far-1")).status != "online")
    far.an_hour_passes()
    known, written = len(far.steps(task_id)), far.here(task_id)
    assert far.is_(task_id, "running"), "it waits for its worker"
    far.until(lambda: far.here(task_id) > written + 20)
    assert len(far.steps(task_id)) == known, "nothing arrives meanwhile"
    far.ask(workflow_routes.pause_task(task_id))
    far.net.cable("up")
    far.until(lambda: far.is_(task_id, "paused"))
    paused = far.steps(task_id)
    assert paused == list(range(1, len(paused) + 1))
    assert len(paused) > known + 20, "what was done without the server has arrived"

    far.ask(workflow_routes.resume_task(task_id))
    far.until(lambda: len(far.steps(task_id)) > len(paused) + 5)
    far.net.slow_down("16mbit")
    before = far.proxy.tell("stats")[0][1]
    far.ask(workflow_routes.stop_task(task_id))
    for share in (0.2, 0.5):
        far.until(lambda share=share: far.proxy.tell("stats")[0][1] - before > share * SIZE)
        far.proxy.tell("cut")
    far.until(lambda: far.is_(task_id, "completed"))

    steps = far.steps(task_id)
    assert steps == far.lines(task_id) == list(range(1, len(steps) + 1)), "in order, and nothing twice"
    detail = far.ask(workflow_routes.get_task(task_id))
    assert (detail.reason, detail.attempts) == ("stopped_early", 2)
    assert far.proxy.tell("stats")[0][1] - before < 1.8 * SIZE, "what had arrived was not sent again"
    wanted = hashlib.sha256(random.Random(7).randbytes(SIZE)).hexdigest()
    files = far.ask(workflow_routes.result_files(task_id))
    assert [each.sha256 for each in files.files if each.name == "weights"] == [wanted]

    points = far.ask(workflow_routes.metrics(task_id, max_points=5000)).points
    pauses = [(after.at - point.at).total_seconds() for point, after in pairwise(points)]
    assert min(pauses) >= 0.0
    assert [pause for pause in pauses if pause > HOUR_S / 2] == [pytest.approx(HOUR_S, abs=60)], (
        "the hour is in it, once"
    )
    assert detail.finished_at is not None
    assert (detail.finished_at - detail.created_at).total_seconds() > HOUR_S
