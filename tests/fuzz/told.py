"""What a worker may tell a server: a batch of journal records and an exchange, of bytes, to a real server's core."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError

from tests.properties import laws
from tests.unit.orchestrator.lab import TRAIN, FakeClock, FakeWorker, Lab
from tunefleet.errors import TunefleetError
from tunefleet.lifecycle.task import FINAL
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.orchestrator.context import Clock
from tunefleet.orchestrator.scheduling import scheduler
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.telemetry import ingest, series
from tunefleet.orchestrator.workers import exchange
from tunefleet.schemas.worker_link import ExchangeRequest, JournalBatch, RegisterRequest
from tunefleet.settings import ServerSettings

R = TypeVar("R")
_INSIDE = {"internal", "error", "store_unusable"}


class Listener:
    """A server with one worker that runs one training; made once in a process."""

    made: Listener | None = None

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="listener-"))
        atexit.register(self.close)
        clock, data = FakeClock(), self.folder / "data"
        core = open_context(
            ServerSettings(data=data, synchronous="NORMAL"), clock=Clock(lambda: clock.wall, lambda: clock.monotonic)
        )
        self.run(api_keys.ensure_first(core))
        admin, worker = (
            self.run(api_keys.authenticate(core, (data / "keys" / f"{name}.key").read_text().strip()))
            for name in ("admin", "worker")
        )
        self.lab = Lab(core, clock, admin, worker)
        self.worker = FakeWorker(self.lab)
        self.batches = 0
        self.token = ""
        self.task_id = ""

    @classmethod
    def get(cls) -> Listener:
        """Return the one of this process, with a training that runs; another one where that one has none for it."""
        found = cls.made = cls.made or cls()
        if not found.run(found.begin()):
            atexit.unregister(found.close)
            found.close()
            found = cls.made = cls()
            assert found.run(found.begin())
        return found

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a verb to its end."""
        return self.loop.run_until_complete(coroutine)

    async def begin(self) -> bool:
        """Let a training run, unless one does; false if nobody was offered it."""
        if self.task_id and (await self.lab.task(self.task_id)).status == "running":
            return True
        self.worker.holding.clear()
        await self.worker.register()
        for task in (await tasks.list_(self.lab.core, self.lab.admin)).items:
            if task.status not in FINAL:
                await tasks.cancel(self.lab.core, self.lab.admin, task.id)
        await self.worker.exchange()
        self.task_id = await self.lab.submit(TRAIN)
        await scheduler.run_once(self.lab.core)
        self.lab.clock.advance(2.0)
        offers = {offer.task_id: offer.token for offer in (await self.worker.exchange()).offers}
        self.token = offers.get(self.task_id, "")
        return bool(self.token) and (await self.worker.accept(self.token)).accepted == (self.token,)

    def close(self) -> None:
        """Put it away."""
        self.lab.core.close()
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def journal_is_taken(data: bytes, folder: Path) -> None:
    """Every line is stored, and all that was stored can be shown."""
    here = Listener.get()
    here.batches += 1
    lines = tuple(line.decode(errors="replace") for line in data.split(b"\n"))
    batch = JournalBatch(launch=f"l{here.batches}", from_seq=0, lines=lines)
    assert here.run(_ingest(here, batch)) == len(lines)
    here.run(_show(here))


async def _ingest(here: Listener, batch: JournalBatch) -> int:
    attempt = await here.lab.attempt(here.token)
    return (await ingest.ingest(here.lab.core, attempt, batch)).cursor


async def _show(here: Listener) -> None:
    core, admin = here.lab.core, here.lab.admin
    (await tasks.get(core, admin, here.task_id)).model_dump_json()
    orjson.loads(await series.read(core, admin, here.task_id))


def _is_their_fault(refused: TunefleetError) -> None:
    assert refused.code not in _INSIDE, refused


def exchange_is_taken(data: bytes, folder: Path) -> None:
    """A message is refused as one that has not the form, with a reason, or does nothing that a law forbids."""
    here = Listener.get()
    core, key = here.lab.core, here.lab.worker_key
    text = data.replace(b"TOKEN", here.token.encode()).replace(b"TASK", here.task_id.encode())
    here.lab.clock.advance(2.0)
    try:
        here.run(
            exchange.exchange(core, key, ExchangeRequest.model_validate_json(text).model_copy(update={"wait_s": 0.0}))
        )
    except ValidationError:
        try:
            here.run(exchange.register(core, key, RegisterRequest.model_validate_json(text)))
        except ValidationError:
            return
        except TunefleetError as refused:
            _is_their_fault(refused)
    except TunefleetError as refused:
        _is_their_fault(refused)
    wrong = core.db.read(laws.broken).result()
    assert not wrong, "\n".join(wrong)
    here.run(scheduler.run_once(core))
    here.run(_show(here))
