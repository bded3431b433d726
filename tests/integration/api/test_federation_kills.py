"""SIGKILL to a server around the aggregation of a round: who starts next makes the right version, and makes it once.

Where each kill hits is left to chance; what must hold after it is not.
"""

from __future__ import annotations

import hashlib
import io
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.integration.api.support import until
from tests.unit.federation.adapters import Arrays, config
from tunefleet.client.federation.client import FederatedClient
from tunefleet.federation import TENSORS, AdapterFile, write_tensors

pytestmark = pytest.mark.proof

START_S = 150.0
KILLS_AFTER_S = (0.0, 0.02, 0.1)
"""After the last upload of a round."""
RANK, WIDTH = 16, 1 << 15


class Server:
    """A server process that dies and comes back on its port and data."""

    def __init__(self, data: Path, port: int) -> None:
        self.data, self.port = data, port
        self.process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator[Server]:
        try:
            self.start()
            yield self
        finally:
            self.kill()

    def start(self) -> None:
        command = [sys.executable, "-m", "tunefleet.api", "--data", str(self.data), "--port", str(self.port)]
        log = (self.data.parent / "server.log").open("ab")
        with log:
            self.process = subprocess.Popen(command, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert self.process.poll() is None, (self.data.parent / "server.log").read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def client(self, token: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}/api/v1", headers=headers, timeout=90)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/api/v1/healthz", timeout=10).status_code == 200
        except httpx.TransportError:
            return False


def adapter(value: float) -> Arrays:
    """An adapter that takes a while to average: 4 MB of one number."""
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    return {
        f"{layer}.lora_A.weight": np.full((RANK, WIDTH), value, np.float32),
        f"{layer}.lora_B.weight": np.full((WIDTH, RANK), value, np.float32),
    }


def upload(client: httpx.Client, id_: str, worker: str, step: int, value: float, folder: Path) -> Mapping[str, Any]:
    write_tensors(folder / TENSORS, adapter(value))
    data = (folder / TENSORS).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    headers = {"Upload-Offset": "0", "Upload-Length": str(len(data))}
    assert client.put(f"/federations/{id_}/blobs/{digest}", content=data, headers=headers).status_code == 201
    told = {"worker": worker, "step": step, "num_examples": 1, "sha256": digest, "config": config(r=RANK)}
    reply = client.post(f"/federations/{id_}/updates", json=told)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def first_value(client: httpx.Client, id_: str, version: int, folder: Path) -> float:
    path = folder / f"v{version}.safetensors"
    path.write_bytes(client.get(f"/federations/{id_}/versions/{version}/adapter").content)
    with AdapterFile(path) as file:
        values = [file.whole(name) for name in file.tensors]
    assert all((each == values[0].flat[0]).all() for each in values)
    return float(values[0].flat[0])


@pytest.mark.timeout(600)
def test_a_killed_server_makes_each_rounds_version_once(tmp_path: Path, free_port: Callable[[], int]) -> None:
    server = Server(tmp_path / "data", free_port())
    with server.running(), ExitStack() as stack:
        admin = stack.enter_context(server.client((tmp_path / "data/keys/admin.key").read_text().strip()))
        made = admin.post("/federations", json={"min_workers": 2}).json()
        worker = stack.enter_context(server.client(made["token"]))
        id_ = made["id"]
        for number, delay_s in enumerate(KILLS_AFTER_S, 1):
            assert not upload(worker, id_, "w1", number, number + 1.0, tmp_path)["should_aggregate"]
            assert upload(worker, id_, "w2", number, number + 2.0, tmp_path)["should_aggregate"]
            time.sleep(delay_s)
            server.kill()
            server.start()
            reply = worker.get(f"/federations/{id_}/versions/newest", params={"after": number - 1, "wait_s": 60})
            assert reply.status_code == 200, reply.text
            assert (reply.json()["version"], reply.json()["round"]) == (number, number)
            assert first_value(worker, id_, number, tmp_path) == pytest.approx(number + 1.5)
        found = admin.get(f"/federations/{id_}/versions").json()["items"]
        assert [(each["version"], each["round"]) for each in found] == [(3, 3), (2, 2), (1, 1)]
        stored = admin.get("/artifacts", params={"kind": "adapter"}).json()["items"]
        assert len(stored) == 3
        updates = admin.get(f"/federations/{id_}/updates").json()["items"]
        assert [each["state"] for each in updates] == ["aggregated"] * 6
        left = tmp_path / "data" / "federation"
        until(lambda: list(left.iterdir()) == [])


@pytest.mark.timeout(600)
def test_a_killed_server_has_what_had_come_for_rounds_that_were_not_closed(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    server = Server(tmp_path / "data", free_port())
    with server.running(), ExitStack() as stack:
        admin = stack.enter_context(server.client((tmp_path / "data/keys/admin.key").read_text().strip()))
        made = admin.post("/federations", json={"min_workers": 1}).json()
        late = admin.post("/federations", json={"participants": ["w1", "w2"], "min_workers": 1, "deadline_s": 2}).json()
        where = f"/federations/{made['id']}"

        def now(federation: Mapping[str, Any] = made) -> Mapping[str, Any]:
            found: dict[str, Any] = admin.get(f"/federations/{federation['id']}/rounds").json()["items"][0]
            return found

        def version(number: int, federation: Mapping[str, Any] = made) -> Mapping[str, Any]:
            params = {"after": number - 1, "wait_s": 50}
            found: dict[str, Any] = admin.get(f"/federations/{federation['id']}/versions/newest", params=params).json()
            return found

        for step in (1, 2):
            upload(admin, made["id"], "w1", step, float(step), tmp_path)
            version(step)
        admin.post(f"{where}/pause")
        assert admin.post(f"{where}/rollback", json={"version": 1}).json()["version"] == 3
        assert not upload(admin, made["id"], "w1", 3, 5.0, tmp_path)["counted"]
        assert upload(admin, late["id"], "w1", 1, 7.0, tmp_path)["counted"]
        assert (now()["status"], now(late)["status"]) == ("sampling", "collecting")

        server.kill()
        time.sleep(2)
        server.start()
        closed = version(1, late)
        assert (closed["contributors"], first_value(admin, late["id"], 1, tmp_path)) == (["w1"], 7.0)
        assert now()["status"] == "sampling"
        assert version(1)["equals"] == 1, "who was away hears of the rollback"
        admin.post(f"{where}/start")
        assert (version(4)["round"], first_value(admin, made["id"], 4, tmp_path)) == (now()["number"] - 1, 5.0)


@pytest.mark.timeout(600)
def test_who_waits_for_a_version_has_it_with_its_file_after_the_server_was_killed(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    server = Server(tmp_path / "data", free_port())
    with server.running(), ExitStack() as stack:
        admin = stack.enter_context(server.client((tmp_path / "data/keys/admin.key").read_text().strip()))
        made = admin.post("/federations", json={"min_workers": 2}).json()
        url = f"http://127.0.0.1:{server.port}"
        waiter = stack.enter_context(FederatedClient(url, made["id"], "w1", made["token"], patience_s=120))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        waiting = pool.submit(waiter.fetch, tmp_path / "inbox", wait_s=200)
        upload(admin, made["id"], "w1", 1, 1.0, tmp_path)
        server.kill()
        server.start()
        assert not waiting.done()
        upload(admin, made["id"], "w2", 1, 3.0, tmp_path)
        fetched = waiting.result()
        assert fetched is not None
        assert (fetched.version, fetched.round) == (1, 1)
        with AdapterFile(fetched.folder / TENSORS) as file:
            assert all((file.whole(name) == 2.0).all() for name in file.tensors)


@pytest.mark.timeout(600)
def test_an_archive_whose_making_was_killed_is_made_anew(tmp_path: Path, free_port: Callable[[], int]) -> None:
    server = Server(tmp_path / "data", free_port())
    with server.running(), ExitStack() as stack:
        admin = stack.enter_context(server.client((tmp_path / "data/keys/admin.key").read_text().strip()))
        made = admin.post("/federations", json={"min_workers": 2}).json()
        for worker, value in (("w1", 1.0), ("w2", 3.0)):
            upload(admin, made["id"], worker, 1, value, tmp_path)
        newest = f"/federations/{made['id']}/versions/newest"
        assert admin.get(newest, params={"wait_s": 50}).json()["version"] == 1
        where = f"http://127.0.0.1:{server.port}/api/training/checkpoints/{made['id']}"
        pool = stack.enter_context(ThreadPoolExecutor(1))
        for delay_s in KILLS_AFTER_S:
            asked = pool.submit(httpx.get, where, headers=admin.headers, timeout=90)
            time.sleep(delay_s)
            server.kill()
            server.start()
            assert isinstance(asked.exception(), httpx.TransportError | None)
        said = httpx.get(where, headers=admin.headers, timeout=90).json()
        archive = httpx.get(said["downloadUrl"], timeout=90).content
        assert hashlib.sha256(archive).hexdigest() == said["sha256"]
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            member = tar.extractfile(TENSORS)
            assert member is not None
            assert member.read() == admin.get(f"/federations/{made['id']}/versions/1/adapter").content
