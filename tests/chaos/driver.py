"""Plays rounds on a world: work and strikes at once, then everything is healed, and what was stored is checked."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from tests.chaos import history, planted, tally
from tests.chaos.check_results import ENDS
from tests.chaos.checker import Fault, check
from tests.chaos.ledger import Ledger
from tests.chaos.schedule import Kind, drawn, kills, strikes
from tests.chaos.strikes import play
from tests.chaos.tally import Strikes
from tests.chaos.work import CAMPAIGN, Work, campaign
from tests.chaos.world import World
from tunefleet.client import Client
from tunefleet.errors import ConflictError

DRAIN_S: Final = 420.0
SETTLE_S: Final = 90.0
STEER_AFTER_S: Final = 5.0


@dataclass
class Driver:
    """Plays rounds, and keeps what is needed to tell of a failure.

    Args:
        world: That is struck.
        seed: Of the schedule, and of the work.
        quick: Whether rounds have SIGKILLs and no other strike, in less time, and less work.
    """

    world: World
    seed: int
    quick: bool = False
    ledger: Ledger = field(default_factory=Ledger)
    filled: set[str] = field(default_factory=set)
    said: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    stopped: bool = False
    secrets: list[str] = field(default_factory=list)
    struck: Strikes = field(default_factory=Strikes)
    reader: history.Reader = field(default_factory=history.Reader)

    def say(self, line: str) -> None:
        """Print a line, and keep it."""
        self.said.append(line)
        print(line, flush=True)

    def begin(self) -> None:
        """Start the campaign that goes on through all rounds, and have a webhook told of every end."""
        with self.world.client() as client:
            # Nobody listens there: what fails to be sent is written about.
            nobody, secret = f"http://127.0.0.1:{self.world.free_port()}/hook", self.world.secrets[planted.WEBHOOK]
            client.notifications.create_channel("chaos", nobody, secret=secret)
            client.campaigns.apply({CAMPAIGN: campaign(self.world.folder)})
        self.ledger.note("campaign", CAMPAIGN)

    def round(self, number: int) -> None:
        """Play one round, and check what it has left.

        Args:
            number: Of the round, from 0.
        """
        found = (kills if self.quick else strikes)(self.seed, number)
        self.say(f"round {number} of seed {self.seed}:\n{drawn(found)}\nas it went:")
        self.filled |= {strike.victim for strike in found if strike.kind is Kind.DISK}
        failed: list[BaseException] = []
        began = time.monotonic()
        # A client that works while all is struck is patient, as a script that submits overnight is.
        with self.world.client(patience_s=90) as client:
            work = Work(client, self.ledger, self.world.folder, number, self.seed, quick=self.quick)
            asking = threading.Thread(target=_keeping, args=(failed, self._ask, work), daemon=True)
            asking.start()
            self.struck.add(play(self.world, found, self.say))
            asking.join(300)
            assert not asking.is_alive(), self.words("the clients have no answer")
            if failed:
                raise failed[0]
            self.world.heal()
            struck = time.monotonic()
            self._drain(client)
            drained = time.monotonic()
        self._check(whole=False)
        self.say(
            f"round {number} took {time.monotonic() - began:.0f} s: {struck - began:.0f} s of strikes, "
            f"{drained - struck:.0f} s until all had ended, and the check"
        )

    def end(self) -> None:
        """Let everything come to rest, stop it, and check the whole history."""
        began = time.monotonic()
        for name in self.world.members:
            self.world.clock(name).write_text("0")
        with self.world.client() as client:
            client.campaigns.stop(CAMPAIGN)
            self._drain(client, everything=True)
        ended = time.monotonic()
        self._settle()
        settled = time.monotonic()
        self.left, self.stopped = self.world.stop(), True
        stopped_at = time.monotonic()
        self.secrets = planted.seen(self.world)
        self._check(whole=True)
        self.say(
            f"the end took {time.monotonic() - began:.0f} s: {ended - began:.0f} s until all had ended, "
            f"{settled - ended:.0f} s until nothing was held, {stopped_at - settled:.0f} s for the stop, and the checks"
        )

    def words(self, what: str) -> str:
        """Return a failure in words: seed, schedule so far, and where the logs lie (and `history.json`, the rows)."""
        return "\n".join([what, f"seed {self.seed}; what was struck:", *self.said, self.world.words()])

    def _ask(self, work: Work) -> None:
        work.submit()
        time.sleep(STEER_AFTER_S)
        work.steer()

    def _drain(self, client: Client, *, everything: bool = False) -> None:
        mine = {told.id for told in self.ledger.all("workflow")}

        def over() -> bool:
            # Not every task there is: after a hundred rounds there are thousands.
            flows = [flow.id for flow in client.workflows.iterate(status="running") if everything or flow.id in mine]
            tasks = [task for flow in flows for task in client.tasks.iterate(workflow_id=flow)]
            for task in tasks:
                if task.status == "paused":
                    self._resume(client, task.id)
            self._open = {task.id: (task.name, task.status) for task in tasks if task.status not in ENDS}
            return not flows

        deadline = time.monotonic() + DRAIN_S
        self._cancel_again(client)
        while not over():
            whys = [client.tasks.why(id_).model_dump_json() for id_ in list(self._open)[:5]]
            assert time.monotonic() < deadline, self.words(
                f"within {DRAIN_S:.0f} s these did not end: {self._open} {whys}"
            )
            time.sleep(0.5)

    def _resume(self, client: Client, task_id: str) -> None:
        try:
            client.tasks.resume(task_id)
        except ConflictError:
            return  # it goes on already
        self.ledger.note("resume", task_id)

    def _cancel_again(self, client: Client) -> None:
        told = {each.id for each in self.ledger.all("cancel")}
        for each in self.ledger.all("workflow"):
            (*_, task_id) = each.facts["tasks"]
            if each.facts["expects"] == "cancelled" and task_id not in told:
                client.tasks.cancel(task_id)
                self.ledger.note("cancel", task_id)

    def _settle(self) -> None:
        """Wait until nothing is held any more: what follows an end may take a moment."""
        began, seen = time.monotonic(), set[str]()
        while held := {fault.what for fault in self._faults(whole=True) if fault.promise == "at rest"}:
            after_s = time.monotonic() - began
            for what in sorted(held - seen):
                self.say(f"{after_s:5.1f} s after the last end there is still: {what}")
            seen |= held
            if after_s > SETTLE_S:
                return
            time.sleep(1)

    def _faults(self, *, whole: bool) -> list[Fault]:
        return check(self._read(), self.ledger, whole=whole)

    def _read(self) -> history.History:
        read = self.reader.read(self.world, filled=frozenset(self.filled), left=self.left, stopped=self.stopped)
        return replace(read, secrets=tuple(self.secrets))

    def _check(self, *, whole: bool) -> None:
        if whole:
            # Nothing is taken on trust at the end.
            self.reader = history.Reader()
        faults = self._faults(whole=whole)
        if whole:
            self.say(tally.words(self.struck, tally.results(self._read(), self.ledger)))
        if faults:
            kept = self.world.folder / "history.json"
            kept.write_text(json.dumps(asdict(history.rows(self.world)), default=str, indent=1))
        assert not faults, self.words("\n".join(["promises were not kept:", *map(str, faults)]))


def _keeping(failed: list[BaseException], act: object, *arguments: object) -> None:
    try:
        act(*arguments)  # type: ignore[operator]
    except BaseException as error:  # noqa: BLE001 -- raised again by whoever has started the thread
        failed.append(error)
