"""How fast the store is: SQLite beside PostgreSQL, and one server beside three, on this machine's disk, in turns.

    python bench/stores.py            # some minutes
    python bench/stores.py --quick    # about two minutes

Two questions, asked of the services that answer every worker, without HTTP before them:

1. Cycles of tasks a second: offered, accepted, finished, by many workers at once, so that commits are shared.
2. Points of metrics a second: batches of a hundred, from many trainings at once.

Both commit durably: SQLite syncs its log at each commit (`TUNEFLEET_SYNC=FULL`), PostgreSQL has its own defaults. There
is no budget: SQLite is a function call, PostgreSQL a process behind a socket. What is printed is the ratio of a turn's
two measurements, its median and its 95 % interval.

Then real servers over HTTP, on PostgreSQL: what one of them and what three answer to eight clients on the same cores
(several servers are for going on when one ends, and for more cores than these), and how soon a killed leader is
followed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from _common import free_port, interval
from _report import Figure, Peer, Ratio, Report

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from _servers import compare, kills  # noqa: E402

from tests.integration.postgres.process import PostgresProcess, programs  # noqa: E402
from tunefleet.orchestrator.access import api_keys  # noqa: E402
from tunefleet.orchestrator.access.permissions import Actor  # noqa: E402
from tunefleet.orchestrator.bootstrap import open_context  # noqa: E402
from tunefleet.orchestrator.context import ServerContext  # noqa: E402
from tunefleet.orchestrator.scheduling import scheduler  # noqa: E402
from tunefleet.orchestrator.telemetry import ingest  # noqa: E402
from tunefleet.orchestrator.workers import exchange as worker_exchange  # noqa: E402
from tunefleet.orchestrator.workflows import workflows  # noqa: E402
from tunefleet.schemas.api import SubmitRequest  # noqa: E402
from tunefleet.schemas.worker_link import (  # noqa: E402
    Capabilities,
    ExchangeReply,
    ExchangeRequest,
    ExecutorOffer,
    Finish,
    JournalBatch,
    RegisterRequest,
)
from tunefleet.settings import ServerSettings, load  # noqa: E402

WORKERS = 32
SLOTS = 8
BATCH_POINTS = 100
ECHO = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: noop}
spec: {taskType: echo, data: {type: list, items: [a]}}
"""
CAPABILITIES = Capabilities(
    version="0",
    hostname="bench",
    executors=(ExecutorOffer(kind="echo", slot_class="light"),),
    slots={"light": SLOTS},
    gpus=(),
    cpu_count=2,
    memory_total_bytes=8 << 30,
    memory_free_bytes=8 << 30,
    disk_free_bytes=8 << 30,
)


class HandWorker:
    """Takes whatever it is offered, and ends it."""

    def __init__(self, core: ServerContext, key: Actor, number: int) -> None:
        self.core, self.key, self.id = core, key, f"w{number}"
        self.holding: tuple[str, ...] = ()

    async def register(self) -> None:
        request = RegisterRequest(
            worker_id=self.id, session="s", state_id=self.id, capabilities=CAPABILITIES, holding=()
        )
        await worker_exchange.register(self.core, self.key, request)
        await self.exchange()

    async def exchange(self, accepts: tuple[str, ...] = (), finishes: tuple[Finish, ...] = ()) -> ExchangeReply:
        request = ExchangeRequest(
            worker_id=self.id, session="s", wait_s=0.0, holding=self.holding, want={"light": SLOTS}, accepts=accepts,
            finishes=finishes,
        )  # fmt: skip
        return await worker_exchange.exchange(self.core, self.key, request)

    async def start(self) -> tuple[str, ...]:
        offers = (await self.exchange()).offers
        if offers:
            self.holding = (await self.exchange(accepts=tuple(offer.token for offer in offers))).accepted
        return self.holding

    async def finish(self) -> int:
        if not self.holding:
            return 0
        ends = tuple(Finish(token=token, outcome="completed", reason="finished") for token in self.holding)
        done = len((await self.exchange(finishes=ends)).finished)
        self.holding = ()
        return done


@contextmanager
def opened(folder: Path, url: str | None) -> Iterator[ServerContext]:
    core = open_context(load(ServerSettings, data=folder, database_url=url))
    try:
        yield core
    finally:
        core.close()


async def workers_of(core: ServerContext, folder: Path, tasks: int) -> list[HandWorker]:
    await api_keys.ensure_first(core)
    admin, key = [
        await api_keys.authenticate(core, (folder / "keys" / f"{name}.key").read_text().strip())
        for name in ("admin", "worker")
    ]
    submits = [workflows.submit(core, admin, SubmitRequest(document=ECHO)) for _ in range(tasks)]
    await asyncio.gather(*submits)
    workers = [HandWorker(core, key, number) for number in range(WORKERS)]
    await asyncio.gather(*(worker.register() for worker in workers))
    return workers


async def cycles_per_s(core: ServerContext, folder: Path, tasks: int) -> float:
    """Offer, accept and finish tasks until none is left."""
    workers = await workers_of(core, folder, tasks)
    done, begun = 0, time.perf_counter()
    while done < tasks:
        await scheduler.run_once(core)
        await asyncio.gather(*(worker.start() for worker in workers))
        done += sum(await asyncio.gather(*(worker.finish() for worker in workers)))
    return tasks / (time.perf_counter() - begun)


async def points_per_s(core: ServerContext, folder: Path, batches: int) -> float:
    """Store what trainings have measured, a batch of each at a time."""
    workers = await workers_of(core, folder, WORKERS)
    await scheduler.run_once(core)
    tokens = [token for held in await asyncio.gather(*(worker.start() for worker in workers)) for token in held]
    who = [await api_keys.authenticate_attempt(core, token) for token in tokens]

    def batch(number: int) -> JournalBatch:
        first = number * BATCH_POINTS
        rows = [
            {"seq": seq, "at": 1.0, "type": "metric", "series": "train", "step": seq, "values": {"loss": 1 / (1 + seq)}}
            for seq in range(first, first + BATCH_POINTS)
        ]
        return JournalBatch(launch="l", from_seq=first, lines=tuple(json.dumps(row) for row in rows))

    given = [batch(number) for number in range(batches)]
    begun = time.perf_counter()
    for each in given:
        await asyncio.gather(*(ingest.ingest(core, one, each) for one in who))
    return len(who) * batches * BATCH_POINTS / (time.perf_counter() - begun)


QUESTIONS = {"cycles of tasks": cycles_per_s, "points of metrics": points_per_s}


def turn(root: Path, url: str | None, question: str, size: int) -> float:
    folder = Path(tempfile.mkdtemp(dir=root))
    with opened(folder, url) as core:
        return asyncio.run(QUESTIONS[question](core, folder, size))


def postgres_version() -> str:
    """Return the version of the PostgreSQL that is measured."""
    folder = programs()
    assert folder is not None
    said = subprocess.run([str(folder / "postgres"), "--version"], check=True, capture_output=True, text=True).stdout
    return said.split()[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Fewer and shorter turns.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    options = parser.parse_args()
    told = Report("stores", quick=options.quick)
    if programs() is None:
        print("There is no PostgreSQL here; scripts/postgres.sh installs one.")
        return 1
    turns, sizes = (2, (1_000, 10)) if options.quick else (5, (4_000, 40))
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tunefleet-stores-")))
        postgres = PostgresProcess(free_port(), durable=True).start()
        stack.callback(postgres.remove)
        for question, size in zip(QUESTIONS, sizes, strict=True):
            pairs = [
                (turn(root, None, question, size), turn(root, postgres.copy(), question, size)) for _ in range(turns)
            ]
            ratios = [theirs / ours for ours, theirs in pairs]
            low, high = interval(ratios)
            told.row(
                f"{question}, SQLite (ratio: PostgreSQL ÷ SQLite)", Figure.of([mine for mine, _ in pairs], "1/s"),
                Peer.of("PostgreSQL", postgres_version(), [other for _, other in pairs], "1/s"),
                ratio=Ratio.of(ratios), samples=turns, note="the same services on either, both synced",
            )  # fmt: skip
            ours, theirs = (statistics.median(each) for each in zip(*pairs, strict=True))
            print(
                f"{question:18} SQLite {ours:10,.0f}/s   PostgreSQL {theirs:10,.0f}/s   "
                f"ratio {statistics.median(ratios):.2f} [{low:.2f}, {high:.2f}]",
                flush=True,
            )
        compare(root, postgres, turns, 10 if options.quick else 40, told)
        kills(root, postgres, 3 if options.quick else 10, told)
    told.write(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
