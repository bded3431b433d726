"""Trainings that a test writes itself, record by record, through the API by which workers report."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.integration.api.support import HandWorker
from tunefleet.artifacts import manifest_digest
from tunefleet.client import Client
from tunefleet.schemas.api import FileEntry

GIB = 1 << 30
WORKER = "by-hand"
"""Name of the worker that a test plays."""
GPU = {"index": 0, "name": "A GPU", "uuid": "GPU-0", "memory_total_bytes": 80 * GIB}
BEAT_S = 1.0


@dataclass
class Hand(HandWorker):
    """A worker with a GPU for such trainings; it tells its load each second, and so keeps what it has."""

    kind: str = "lora_sft"
    slot_class: str = "job"
    slots: int = 8
    gpus: list[dict[str, Any]] = field(default_factory=lambda: [GPU])
    told: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The commands that have come, by id."""
    _turn: threading.RLock = field(default_factory=threading.RLock)

    def exchange(self, *, wait_s: float = 0.0, **what: Any) -> dict[str, Any]:
        # A second exchange would make the server answer the first one without its offers.
        with self._turn:
            reply = super().exchange(wait_s=wait_s, **what)
        self.told |= {each["command_id"]: each for each in reply["commands"]}
        return reply

    def beat(self, gone: threading.Event) -> None:
        """Tell the load until it is gone."""
        gpu = {"uuid": GPU["uuid"], "memory_free_bytes": 20 * GIB, "utilisation_percent": 97.0}
        while not gone.wait(BEAT_S):
            self.exchange(load={"memory_free_bytes": 4 * GIB, "disk_free_bytes": 8 * GIB, "gpus": [gpu]})


@contextmanager
def hand(url: str, key: str, worker_id: str) -> Iterator[Hand]:
    """Join such a worker; `key` is of the role worker."""
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=f"{url}/api/v1", headers=headers, timeout=60) as link:
        made = Hand(link, worker_id)
        made.register()
        gone = threading.Event()
        beating = threading.Thread(target=made.beat, args=(gone,), name=f"hand-{worker_id}", daemon=True)
        beating.start()
        yield made
        gone.set()
        beating.join()


class Attempt:
    """A task that a worker has taken; what it reports.

    Args:
        worker: Who takes it.
        task_id: Which task.
        launch: Name of its launch, another one for each attempt of a task.
        from_step: The step that it resumes from.
    """

    def __init__(self, worker: Hand, task_id: str, *, launch: str = "L1", from_step: int = 0) -> None:
        self.task_id = task_id
        self.launch = launch
        self.worker = worker
        self.token = worker.take(task_id)
        self._client = httpx.Client(
            base_url=worker.client.base_url, headers={"Authorization": f"Bearer {self.token}"}, timeout=60
        )
        self._seq = self._offset = 0
        self.write({"type": "launch", "launch": launch, "attempt": 1, "from_step": from_step})

    def write(self, *records: dict[str, Any]) -> None:
        """Append to the journal; a record without a time is of now."""
        now, first = time.time(), self._seq
        lines = [json.dumps({"seq": first + at, "at": now, **record}) for at, record in enumerate(records)]
        body = {"launch": self.launch, "from_seq": first, "lines": lines}
        self._client.post(f"/tasks/{self.task_id}/journal", json=body).raise_for_status()
        self._seq += len(records)

    def log(self, text: str) -> None:
        """Append to the log."""
        content = text.encode()
        where = {"offset": self._offset}
        self._client.put(f"/tasks/{self.task_id}/log", params=where, content=content).raise_for_status()
        self._offset += len(content)

    def publish(self, name: str, kind: str, path: str, content: bytes, about: Mapping[str, Any] | None = None) -> None:
        """Deliver an artifact of one file."""
        publish(self._client, self.task_id, (name, kind), path, content, about)

    def finish(self, outcome: str, reason: str, **more: Any) -> None:
        """End it."""
        finish = {
            "token": self.token,
            "outcome": outcome,
            "reason": reason,
            "cursors": {self.launch: self._seq},
            **more,
        }
        assert self.token in self.worker.exchange(finishes=[finish])["finished"]
        self.worker.holding.remove(self.token)
        self._client.close()


def begin(client: Client, worker: Hand, document: Path) -> Attempt:
    """Submit a document of one task, and take it."""
    return Attempt(worker, client.submit(document).task_id)


def publish(
    attempt: httpx.Client,
    task_id: str,
    named: tuple[str, str],
    path: str,
    content: bytes,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Deliver an artifact of one file, as a worker does.

    Args:
        attempt: A client with the attempt's token.
        task_id: Of the attempt.
        named: Name and kind of the artifact.
        path: Of the file in it.
        content: Of the file.
        about: The artifact's metadata.
    """
    digest = hashlib.sha256(content).hexdigest()
    entry = FileEntry(path=path, digest=digest, size_bytes=len(content))
    room = {"Upload-Offset": "0", "Upload-Length": str(len(content))}
    attempt.put(f"/blobs/{digest}", content=content, headers=room).raise_for_status()
    body: dict[str, Any] = {"name": named[0], "kind": named[1], "digest": manifest_digest([entry])}
    body |= {"files": [entry.model_dump(mode="json")], "metadata": dict(about or {})}
    attempt.post("/artifacts", params={"task_id": task_id}, json=body).raise_for_status()
