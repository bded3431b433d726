"""Counts what was struck, what was asked for, and what of it is lost or doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.chaos.check_results import ENDS, told_of_a_full_disk
from tests.chaos.history import History
from tests.chaos.index import Index
from tests.chaos.ledger import Ledger
from tests.chaos.schedule import Kind, Strike


@dataclass(frozen=True, slots=True)
class Results:
    """How many results there are of what clients were told is accepted.

    Args:
        asked: Tasks that were accepted and not cancelled.
        brought: Those of them with exactly one result.
        told: Those that ended for a full disk, which is told.
        lost: Those with none, or that are not there.
        doubled: Those with more than one.
    """

    asked: int
    brought: int
    told: int
    lost: int
    doubled: int


def results(history: History, ledger: Ledger) -> Results:
    """Count the results of a history, each task by the attempts that have brought one."""
    index, found = Index(history), Counter[str]()
    cancelled = {each.id for each in ledger.all("cancel")}
    for flow in ledger.all("workflow"):
        for task_id in flow.facts["tasks"]:
            if task_id not in cancelled:
                found[_of(index, task_id, flow.facts["tasks"])] += 1
    return Results(found.total(), found["brought"], found["told"], found["lost"], found["doubled"])


def _of(index: Index, task_id: str, flow: Iterable[str]) -> str:
    task = index.tasks.get(task_id)
    if task is None:
        return "lost"
    own = [row for row in index.attempts[task_id] if row["gang_of"] in {None, row["id"]}]
    ended = sum(row["state"] == "finished" and row["reason"] in {"finished", "stopped_early"} for row in own)
    files = Counter((row["name"], row["kind"]) for row in index.artifacts[task_id] if row["kind"] != "checkpoint")
    if ended > 1 or max(files.values(), default=0) > 1:
        return "doubled"
    if task["status"] in ENDS and told_of_a_full_disk(index, task, flow):
        return "told"
    # A task of parts has no attempt of its own.
    split = any(event["kind"] == "task.running" for event in index.events[task_id])
    document = index.documents.get(task["seq"])
    there = document is not None and document["result"] is not None
    return "brought" if task["status"] == "completed" and there and (ended or split) else "lost"


@dataclass
class Strikes:
    """How often each kind has met somebody, and in how many rounds."""

    kinds: Counter[Kind] = field(default_factory=Counter)
    rounds: int = 0
    killed: int = 0
    """Rounds in which a SIGKILL has met somebody."""

    def add(self, hit: Iterable[Strike]) -> None:
        """Count what a round's strikes have met."""
        met = Counter(strike.kind for strike in hit)
        self.kinds += met
        self.rounds += 1
        self.killed += bool(met[Kind.KILL])


def words(strikes: Strikes, results: Results) -> str:
    """Return both counts as text."""
    kinds = ", ".join(f"{count} {kind.value}" for kind, count in strikes.kinds.most_common())
    return (
        f"{strikes.killed} SIGKILL rounds: {results.lost} lost, {results.doubled} doubled\n"
        f"  of {results.asked} results that were asked for; {results.brought} are there once, "
        f"{results.told} ended for a full disk, as it was told\n"
        f"  {strikes.rounds} rounds with {strikes.kinds.total()} strikes: {kinds}"
    )
