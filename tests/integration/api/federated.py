"""What the tests of federations over HTTP share: adapters as workers pack them, and a worker that knows only a URL."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.integration.api.support import Running, until
from tests.unit.federation.adapters import Arrays, factors, save
from tunefleet.federation import TENSORS, AdapterFile

GZIP = "application/gzip"


def arrays(seed: int, rank: int = 2) -> Arrays:
    """Factors of an adapter that differ from seed to seed."""
    return factors(np.random.default_rng(seed), rank)


def tarred(members: Mapping[str, bytes], *, folder: bool = True) -> bytes:
    """Pack files as `tar.add(folder, arcname=".")` does."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        if folder:
            root = tarfile.TarInfo(".")
            root.type, root.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(root)
        for name, data in members.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


@dataclass
class Worker:
    """A worker of the upload guide's: it has a base URL with a token in it, and sends no header of its own.

    Args:
        running: The server.
        token: Stands in the URL as the password.
        job: Id or number of the federation.
        name: The worker's.
        folder: Where it saves adapters.
    """

    running: Running
    token: str
    job: str
    name: str
    folder: Path
    step: int = 0
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        host = self.running.url.removeprefix("http://")
        self.client = httpx.Client(base_url=f"http://:{self.token}@{host}", timeout=60)

    def members(self, adapter: Arrays, *, dtype: str = "F32", **config: Any) -> dict[str, bytes]:
        """Return the files that `save_pretrained` leaves."""
        save(self.folder / self.name, adapter, dtype=dtype, **config)
        return {file.name: file.read_bytes() for file in (self.folder / self.name).iterdir()}

    def send(self, archive: bytes, *, step: int | None = None, name: str = "a.tar.gz", **texts: Any) -> httpx.Response:
        """Upload an archive; `numExamples` is 10 unless something else, or null, is said."""
        self.step = self.step + 100 if step is None else step
        said = {"numExamples": 10, **texts}
        return self.client.post(
            f"/api/training/adapters/{self.job}/{self.name}/{self.step}",
            files={"adapter": (name, archive, GZIP)},
            data={key: value for key, value in said.items() if value is not None},
        )

    def upload(self, adapter: Arrays, *, beside: Mapping[str, bytes] | None = None, **texts: Any) -> dict[str, Any]:
        """Upload an adapter that is good, and return the answer."""
        reply = self.send(tarred({**self.members(adapter), **(beside or {})}), **texts)
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    def poll(self, **params: Any) -> httpx.Response:
        return self.client.get(f"/api/training/checkpoints/{self.job}", params=params)

    def await_version(self, version: int) -> dict[str, Any]:
        """Wait until a version is there, and return what the poll says of it."""
        until(lambda: (reply := self.poll()).status_code == 200 and reply.json()["version"] >= version)
        answer: dict[str, Any] = self.poll().json()
        return answer

    def fetch(self, said: Mapping[str, Any]) -> dict[str, bytes]:
        """Download a version by its link, with neither key nor header, and return its files."""
        reply = httpx.get(said["downloadUrl"], timeout=60)
        assert reply.status_code == 200, reply.text
        with tarfile.open(fileobj=io.BytesIO(reply.content), mode="r:gz") as tar:
            members = [(member.name, tar.extractfile(member)) for member in tar if member.isreg()]
            return {name: file.read() for name, file in members if file is not None}


def values(folder: Path, data: bytes) -> Arrays:
    """Read the tensors of an `adapter_model.safetensors`."""
    path = folder / "read" / TENSORS
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    with AdapterFile(path) as file:
        return {name: file.whole(name) for name in file.tensors}


def create(client: httpx.Client, **spec: Any) -> dict[str, Any]:
    """Make a federation by our own route."""
    reply = client.post("/federations", json=spec)
    assert reply.status_code == 201, reply.text
    made: dict[str, Any] = reply.json()
    return made


@contextmanager
def workers(running: Running, made: Mapping[str, Any], folder: Path, *names: str) -> Iterator[list[Worker]]:
    """Make workers of a federation."""
    found = [Worker(running, made["token"], made["id"], name, folder) for name in names]
    try:
        yield found
    finally:
        for each in found:
            each.client.close()


def events_of(text: str) -> list[dict[str, Any]]:
    """Read what a stream of events has said so far."""
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
