"""Workers of a federation that train nothing: each fetches the newest version and sends it back, a little changed.

    python bench/_echo.py URL TOKEN FEDERATION CLIENTS VERSIONS MIB WAY

Prints when each version was seen first, as JSON. Every client is a thread with one connection. It imports nothing of
ours: what is measured is the server, so that its counterpart is as cheap as HTTP allows, and what it does is what any
worker must. It checks the sha256 of what it fetches, and says that of what it sends.

WAY is `raw`, the federation's own routes with a bare safetensors file, or `archive`, the upload guide's calls with a
`.tar.gz` as Python's `tarfile` makes it.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import sys
import tarfile
import threading
import time
from email.message import Message
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from safetensors.numpy import save

RANK, WIDTH = 16, 4096
LAYER_BYTES = 2 * 4 * RANK * WIDTH
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
CONFIG_TEXT = json.dumps(
    {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": ["q_proj"],
        "base_model_name_or_path": "bench/echo",
        "bias": "none",
    }
)
HELD_S = 30
CHANGED_BYTES = 32
_LARGE_BYTES = 1 << 19
_BOUNDARY = "echo-7f3a"


def shapes(mib: float) -> dict[str, tuple[int, int]]:
    """Names and shapes of an adapter of that size: rank 16 on layers of 4096 × 4096, half a MiB each."""
    found = {}
    for layer in range(round(mib * 2**20 / LAYER_BYTES)):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        found[f"{name}.lora_A.weight"] = (RANK, WIDTH)
        found[f"{name}.lora_B.weight"] = (WIDTH, RANK)
    return found


def first_weights(mib: float) -> bytes:
    """The file that every client begins with, as PEFT writes it."""
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal(shape, np.float32) / 64 for name, shape in shapes(mib).items()}
    return bytes(save(values, metadata={"format": "pt"}))


class Weights:
    """A file of weights, and the digest of it without its last values: only those change, so one pass is enough."""

    def __init__(self, file: bytearray) -> None:
        self.file = file
        self._start = hashlib.sha256(memoryview(file)[:-CHANGED_BYTES])

    @property
    def digest(self) -> str:
        """The sha256 of the file."""
        found = self._start.copy()
        found.update(memoryview(self.file)[-CHANGED_BYTES:])
        return found.hexdigest()

    def change(self, number: int, version: int) -> None:
        """Change the last values, differently in each client and round."""
        values = np.frombuffer(self.file, np.float32, CHANGED_BYTES // 4, len(self.file) - CHANGED_BYTES)
        values += 1e-3 * (number + 1) / (version + 1)


class Client:
    """One worker.

    Args:
        url: The server.
        token: Of the federation.
        federation: Its id.
        number: Which worker this is.
    """

    def __init__(self, url: str, token: str, federation: str, number: int) -> None:
        place = urlsplit(url)
        self.name = f"echo-{number:03}"
        self.number = number
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=300)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._own, self._guide = f"/api/v1/federations/{federation}", "/api/training"
        self._federation = federation
        self._version = bytearray()

    def ask(self, method: str, path: str, body: Any = None, headers: Any = None) -> tuple[int, bytearray, Message]:
        """Send a request and return its answer: status, body and headers.

        Raises:
            SystemExit: If it is refused.
        """
        self._connection.request(method, path, body, {**self._headers, **(headers or {})})
        answer = self._connection.getresponse()
        content = self._room(answer.length or 0)
        view, at = memoryview(content), 0
        while at < len(content) and (count := answer.readinto(view[at:])):
            at += count
        answer.read()
        if answer.status >= 400:
            raise SystemExit(f"{method} {path}: {answer.status} {bytes(content[:2000])!r}")
        return answer.status, content, answer.headers

    def _room(self, size_bytes: int) -> bytearray:
        """Return where an answer goes: each version comes where the one before it was."""
        if size_bytes < _LARGE_BYTES:
            return bytearray(size_bytes)
        if len(self._version) != size_bytes:
            self._version = bytearray(size_bytes)
        return self._version

    def newest(self, after: int) -> tuple[int, Weights]:
        """Wait for a version, and return its number and its weights."""
        while True:
            path = f"{self._own}/versions/newest/adapter?after={after}&wait_s={HELD_S}"
            status, body, told = self.ask("GET", path)
            if status == 200:
                weights = Weights(body)
                if told["ETag"] != f'"{weights.digest}"':
                    raise SystemExit(f"Version {told['Version']} does not have its digest.")
                return int(told["Version"]), weights

    def send(self, weights: Weights, version: int) -> None:
        """Send an update that was made of a version."""
        file, digest = weights.file, weights.digest
        update = {
            "worker": self.name,
            "step": version + 1,
            "num_examples": 100,
            "sha256": digest,
            "config": json.loads(CONFIG_TEXT),
            "base_version": version,
        }
        head = json.dumps(update).encode()
        headers = {"Update-Length": str(len(head)), "Content-Length": str(len(head) + len(file))}
        _, body, _ = self.ask("PUT", f"{self._own}/updates", (head, memoryview(file)), headers)
        taken = json.loads(body)
        if not taken["counted"]:
            raise SystemExit(f"The update of {self.name} does not count: {taken['warning']}")

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


class GuideClient(Client):
    """One worker that follows the upload guide."""

    def newest(self, after: int) -> tuple[int, Weights]:
        """Wait for a version, fetch its archive and take the weights out of it."""
        while True:
            path = f"{self._guide}/checkpoints/{self._federation}?after={after}&wait_s={HELD_S}"
            status, body, _ = self.ask("GET", path)
            found = dict(json.loads(body)) if status == 200 else {}
            if found.get("version", 0) > after:
                return found["version"], self.fetch(found)

    def fetch(self, version: dict[str, Any]) -> Weights:
        """Fetch a version's archive and take the weights out of it."""
        place = urlsplit(version["downloadUrl"])
        _, body, _ = self.ask("GET", f"{place.path}?{place.query}")
        if hashlib.sha256(body).hexdigest() != version["sha256"]:
            raise SystemExit(f"Version {version['version']} does not have its digest.")
        with tarfile.open(fileobj=io.BytesIO(body)) as archive:
            member = archive.extractfile(WEIGHTS)
            assert member is not None
            return Weights(bytearray(member.read()))

    def send(self, weights: Weights, version: int) -> None:
        """Send an update as an archive."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name, content in ((WEIGHTS, weights.file), (CONFIG, CONFIG_TEXT.encode())):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        field = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="numExamples"\r\n\r\n100\r\n'
        head = (
            f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="adapter"; filename="adapter.tar.gz"\r\n'
            "Content-Type: application/gzip\r\n\r\n"
        )
        body = b"".join((field.encode(), head.encode(), packed.getbuffer(), f"\r\n--{_BOUNDARY}--\r\n".encode()))
        path = f"{self._guide}/adapters/{self._federation}/{self.name}/{version + 1}"
        _, answer, _ = self.ask("POST", path, body, {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"})
        taken = json.loads(answer)
        if taken.get("warning"):
            raise SystemExit(f"The update of {self.name} does not count: {taken['warning']}")


def work(client: Client, versions: int, first: bytes, seen_at: dict[int, float], failed: threading.Event) -> None:
    """Echo until there are so many versions."""
    try:
        weights, version = Weights(bytearray(first)), 0
        while True:
            weights.change(client.number, version)
            client.send(weights, version)
            version, weights = client.newest(version)
            seen_at.setdefault(version, time.monotonic())
            if version >= versions or failed.is_set():
                return
    except BaseException:
        failed.set()
        raise
    finally:
        client.close()


def main() -> None:
    """Run all clients to the end and say when each version came."""
    url, token, federation, clients, versions, mib, way = sys.argv[1:]
    kind = {"raw": Client, "archive": GuideClient}[way]
    seen_at: dict[int, float] = {}
    failed = threading.Event()
    first = first_weights(float(mib))
    threads = [
        threading.Thread(
            target=work, args=(kind(url, token, federation, number), int(versions), first, seen_at, failed)
        )
        for number in range(int(clients))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed.is_set():
        sys.exit(1)
    print(json.dumps({"seen_at": [seen_at[version] for version in sorted(seen_at)]}))


if __name__ == "__main__":
    main()
