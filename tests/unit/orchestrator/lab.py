"""A server's core on a fake clock, and a worker that says what a test tells it to."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import compiled
from tunefleet.artifacts import manifest_digest
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.access.permissions import Actor, AttemptActor
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.orchestrator.context import Clock, ServerContext
from tunefleet.orchestrator.ha import storage_marker
from tunefleet.orchestrator.scheduling import reaper as task_reaper
from tunefleet.orchestrator.scheduling import scheduler
from tunefleet.orchestrator.storage import artifacts
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.telemetry import ingest
from tunefleet.orchestrator.workers import exchange as worker_exchange
from tunefleet.orchestrator.workflows import workflows
from tunefleet.schemas.api import ArtifactCreate, FileEntry, KeyCreate, SubmitRequest, TaskDetail
from tunefleet.schemas.worker_link import (
    Capabilities,
    ExchangeReply,
    ExchangeRequest,
    ExecutorOffer,
    Finish,
    JournalBatch,
    Offer,
    RegisterReply,
    RegisterRequest,
)
from tunefleet.settings import ServerSettings

compiled.share()
SETTINGS = ServerSettings(synchronous="NORMAL")
"""Made once: to look for all the variables takes as long as to open a database."""
ECHO = """apiVersion: tunefleet/v1
metadata: {name: hello}
spec:
  taskType: echo
  data: {type: list, items: [a, b]}
"""
TRAIN = """apiVersion: tunefleet/v1
metadata: {name: train}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {prompts: [one, two]}
"""


@dataclass
class FakeClock:
    """Time that passes when a test says so."""

    wall: float = 1_800_000_000.0
    monotonic: float = 1000.0

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


def capabilities(**changes: Any) -> Capabilities:
    given: dict[str, Any] = {
        "version": "0",
        "hostname": "box",
        "executors": (
            ExecutorOffer(kind="echo", slot_class="light"),
            ExecutorOffer(kind="lora_sft"),
            ExecutorOffer(kind="sft"),
        ),
        "slots": {"light": 8, "job": 1},
        "cpu_count": 4,
        "memory_total_bytes": 8 << 30,
        "memory_free_bytes": 8 << 30,
        "disk_free_bytes": 8 << 30,
    }
    return Capabilities(**{**given, **changes})


@dataclass
class FakeWorker:
    """The worker's end of the link, driven by hand."""

    lab: Lab
    id: str = "w1"
    session: str = "s1"
    state_id: str = "folder-1"
    actor: Actor | None = None
    want: dict[str, int] = field(default_factory=lambda: {"light": 8, "job": 1})
    holding: list[str] = field(default_factory=list)

    async def register(self, *, sent_at: float | None = None, **changes: Any) -> RegisterReply:
        return await worker_exchange.register(
            self.lab.core,
            self.actor or self.lab.worker_key,
            RegisterRequest(
                worker_id=self.id,
                session=self.session,
                state_id=self.state_id,
                capabilities=capabilities(**changes),
                holding=tuple(self.holding),
                sent_at=sent_at,
            ),
        )

    async def exchange(self, **said: Any) -> ExchangeReply:
        given = {"wait_s": 0.0, "holding": tuple(self.holding), "want": self.want, **said}
        request = ExchangeRequest(worker_id=self.id, session=self.session, **given)
        return await worker_exchange.exchange(self.lab.core, self.actor or self.lab.worker_key, request)

    async def offers(self) -> tuple[Offer, ...]:
        """Say that there is room, let the server place, and fetch the offers."""
        await self.exchange()
        await scheduler.run_once(self.lab.core)
        self.lab.clock.advance(2.0)  # what was said before is said again
        return (await self.exchange()).offers

    async def accept(self, *tokens: str) -> ExchangeReply:
        reply = await self.exchange(accepts=tokens)
        self.holding += reply.accepted
        return reply

    async def start(self) -> Offer:
        """Take the one offer that there is."""
        (offer,) = await self.offers()
        assert (await self.accept(offer.token)).accepted == (offer.token,)
        return offer

    async def finish(
        self, token: str, outcome: str = "completed", reason: str = "finished", **more: Any
    ) -> ExchangeReply:
        reply = await self.exchange(finishes=(Finish(token=token, outcome=outcome, reason=reason, **more),))
        self.holding = [held for held in self.holding if held not in reply.finished]
        return reply


@dataclass
class Lab:
    """A core, its actors, and shortcuts."""

    core: ServerContext
    clock: FakeClock
    admin: Actor
    worker_key: Actor

    def worker(self, id_: str = "w1", **fields: Any) -> FakeWorker:
        return FakeWorker(self, id_, **{"state_id": f"folder-{id_}", **fields})

    async def online(self, id_: str = "w1", **fields: Any) -> FakeWorker:
        worker = self.worker(id_, **fields)
        await worker.register()
        await worker.exchange()
        return worker

    async def actor(self, name: str, role: str) -> Actor:
        made = await api_keys.create(self.core, self.admin, KeyCreate(name=name, role=role))
        return await api_keys.authenticate(self.core, made.secret)

    async def submit(self, document: str = ECHO, **more: Any) -> str:
        """Submit a document with one task, and return the task's id."""
        made = await workflows.submit(self.core, self.admin, SubmitRequest(document=document, **more))
        return made.tasks[0].id

    async def task(self, task_id: str) -> TaskDetail:
        return await tasks.get(self.core, self.admin, task_id)

    async def sweep(self, seconds: float, *, alive: tuple[FakeWorker, ...] = ()) -> None:
        """Let time pass second by second, as the server's loop sees it; some workers renew meanwhile."""
        for _ in range(round(seconds)):
            self.clock.advance(1.0)
            for worker in alive:
                await worker.exchange()
            await task_reaper.run_once(self.core)

    async def attempt(self, token: str) -> AttemptActor:
        return await api_keys.authenticate_attempt(self.core, token)

    async def journal(self, token: str, launch: str, records: list[dict[str, Any]], from_seq: int = 0) -> int:
        lines = tuple(json.dumps({"seq": seq, "at": 1.0, **r}) for seq, r in enumerate(records, from_seq))
        batch = JournalBatch(launch=launch, from_seq=from_seq, lines=lines)
        return (await ingest.ingest(self.core, await self.attempt(token), batch)).cursor

    async def files(self) -> set[str]:
        """Return the digests of the files that are there, once what was to be deleted is."""
        # With several servers on one database that is an operation of its own, which was queued before this one.
        mark = await self.core.write(storage_marker.digest_of)
        return set(self.core.blobs.kept_before(float("inf"))) - {mark}

    async def upload(self, who: Actor | AttemptActor, data: bytes) -> FileEntry:
        """Store a file as the upload route does."""
        digest = hashlib.sha256(data).hexdigest()
        with self.core.blobs.append(digest, 0, len(data)) as upload:
            upload.write(data)
            assert upload.finish()
        await artifacts.stored(self.core, who, digest, len(data))
        return FileEntry(path="file", digest=digest, size_bytes=len(data))

    async def publish(self, who: Actor | AttemptActor, name: str, data: bytes, **more: Any) -> Any:
        entry = await self.upload(who, data)
        body = ArtifactCreate(name=name, files=(entry,), digest=manifest_digest([entry]), **more)
        return await artifacts.publish(self.core, who, body)


@asynccontextmanager
async def open_lab(fresh_data: Path, data: Path) -> AsyncIterator[Lab]:
    """Open a server's core.

    Args:
        fresh_data: A data folder with tables and keys.
        data: Where its copy goes.
    """
    shutil.copytree(fresh_data, data)
    clock = FakeClock()
    core = open_context(
        SETTINGS.model_copy(update={"data": data}), clock=Clock(lambda: clock.wall, lambda: clock.monotonic)
    )
    try:
        admin = await api_keys.authenticate(core, (data / "keys" / "admin.key").read_text().strip())
        worker_key = await api_keys.authenticate(core, (data / "keys" / "worker.key").read_text().strip())
        yield Lab(core, clock, admin, worker_key)
    finally:
        core.close()
