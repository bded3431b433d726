"""What a large upload costs the server: no memory, and not the thread that serves everybody."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.integration.api.federated import Worker, arrays, create, workers
from tests.integration.api.support import Running
from tests.integration.api.test_process import server
from tests.integration.federation.test_memory import updates
from tests.unit.federation.adapters import Q, factors, save
from tunefleet.artifacts import hash_file
from tunefleet.federation import CONFIG, TENSORS
from tunefleet.orchestrator.federation.updates import validation
from tunefleet.orchestrator.federation.updates.scratch import UploadFile

MIB = 1 << 20
ROWS = 12 * MIB
"""With rank 2 in float32 so many rows make a B of 96 MiB."""


def packed(folder: Path) -> Path:
    """Write an archive of a large adapter, hardly squeezed, and return its path."""
    large = factors(np.random.default_rng(1), shapes={Q: (ROWS, 5)}, size=1e-3)
    save(folder / "large", large, target_modules=["q_proj"])
    archive = folder / "large.tar.gz"
    with gzip.open(archive, "wb", compresslevel=1) as squeezed, tarfile.open(fileobj=squeezed, mode="w|") as tar:
        tar.add(folder / "large", arcname=".")
    return archive


def form(archive: Path) -> Iterator[bytes]:
    yield b'--b\r\nContent-Disposition: form-data; name="adapter"; filename="a.tar.gz"\r\n\r\n'
    with archive.open("rb") as file:
        while piece := file.read(MIB):
            yield piece
    yield b'\r\n--b\r\nContent-Disposition: form-data; name="numExamples"\r\n\r\n16\r\n--b--\r\n'


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) << 10


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_an_upload_takes_no_memory_of_its_size(tmp_path: Path, free_port: Callable[[], int]) -> None:
    port, data = free_port(), tmp_path / "data"
    archive = packed(tmp_path)
    assert archive.stat().st_size > 64 * MIB
    with server(data, port) as process:
        url = f"http://127.0.0.1:{port}"
        headers = {"Authorization": f"Bearer {(data / 'keys' / 'admin.key').read_text().strip()}"}
        with httpx.Client(base_url=url, headers=headers, timeout=100) as client:
            made = create_at(client)
            send(client, made, small(tmp_path))  # NumPy is imported with the first one
            before = peak_bytes(process.pid)
            answer = send(client, create_at(client), archive)
            assert answer["warning"] is None
            assert peak_bytes(process.pid) - before < 48 * MIB


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_64_updates_of_100_mb_are_a_version_of_a_server_below_400_mb(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    port, data = free_port(), tmp_path / "data"
    folder = tmp_path / "updates"
    folder.mkdir()
    updates(folder, layers=192)
    with server(data, port) as process:
        headers = {"Authorization": f"Bearer {(data / 'keys' / 'admin.key').read_text().strip()}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", headers=headers, timeout=300) as client:
            made = client.post("/federations", json={"min_workers": 64}).json()
            for number in range(64):
                taken = send_apart(client, made, folder / str(number), f"w{number}")
                assert taken["warning"] is None
            assert taken["should_aggregate"] is True
            deadline = time.monotonic() + 600  # six gigabytes are averaged
            newest = client.get(f"/federations/{made['id']}/versions/newest", params={"wait_s": 50})
            while newest.status_code != 200 and time.monotonic() < deadline:
                newest = client.get(f"/federations/{made['id']}/versions/newest", params={"wait_s": 50})
            assert (newest.status_code, newest.json()["num_examples"]) == (200, 64)
            assert newest.json()["size_bytes"] > 100_000_000
        assert peak_bytes(process.pid) < 400_000_000


def send_apart(client: httpx.Client, made: dict[str, Any], folder: Path, worker: str) -> dict[str, Any]:
    """Upload the weights of a folder, then say what they are."""
    weights = folder / TENSORS
    digest, size = hash_file(weights)
    with weights.open("rb") as file:
        headers = {"Upload-Offset": "0", "Upload-Length": str(size), "Content-Length": str(size)}
        reply = client.put(f"/federations/{made['id']}/blobs/{digest}", content=file, headers=headers)
    assert reply.status_code == 201, reply.text
    config = json.loads((folder / CONFIG).read_text())
    body = {"worker": worker, "step": 1, "num_examples": 1, "sha256": digest, "config": config}
    reply = client.post(f"/federations/{made['id']}/updates", json=body)
    assert reply.status_code == 200, reply.text
    taken: dict[str, Any] = reply.json()
    return taken


def create_at(client: httpx.Client) -> dict[str, Any]:
    reply = client.post("/api/v1/federations", json={"min_workers": 50})
    assert reply.status_code == 201, reply.text
    made: dict[str, Any] = reply.json()
    return made


def small(folder: Path) -> Path:
    save(folder / "small", arrays(1))
    with tarfile.open(folder / "small.tar.gz", "w:gz") as tar:
        tar.add(folder / "small", arcname=".")
    return folder / "small.tar.gz"


def send(client: httpx.Client, made: dict[str, Any], archive: Path) -> dict[str, Any]:
    reply = client.post(
        f"/api/training/adapters/{made['id']}/1/100",
        content=form(archive),
        headers={"Content-Type": "multipart/form-data; boundary=b"},
    )
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def test_nothing_of_an_upload_is_done_in_the_thread_that_serves(
    running: Running, admin: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Structural: pieces are small whatever the size, and written, unpacked and checked elsewhere."""
    pieces: list[int] = []
    threads: dict[str, set[str]] = {"write": set(), "examine": set()}
    write, examine = UploadFile.write, validation.examine

    def watched_write(self: UploadFile, data: Any) -> None:
        pieces.append(len(data))
        threads["write"].add(threading.current_thread().name)
        write(self, data)

    def watched_examine(*args: Any) -> Any:
        threads["examine"].add(threading.current_thread().name)
        return examine(*args)

    monkeypatch.setattr(UploadFile, "write", watched_write)
    monkeypatch.setattr(validation, "examine", watched_examine)
    noise = np.random.default_rng(0).bytes(8 * MIB)
    with workers(running, create(admin), tmp_path, "1") as (one,):
        one.send(_with_notes(one, noise))
    assert sum(pieces) > 8 * MIB
    assert max(pieces) <= 4 * MIB
    assert threads["write"]
    assert running.thread.name not in threads["write"]
    assert all(name.startswith("tunefleet-adapters") for name in threads["examine"])
    assert threads["examine"]


def _with_notes(worker: Worker, noise: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, data in {**worker.members(arrays(1)), "notes.txt": noise}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()
