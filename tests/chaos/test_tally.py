"""What a run prints at its end is counted from the stored history, not from its having ended well."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos import whole
from tests.chaos.history import Row
from tests.chaos.schedule import Kind, Strike
from tests.chaos.tally import Results, Strikes, results, words


def _second(row: Row) -> Row:
    return {**row, "id": f"{row['id']}-again"}


def test_results_are_counted_one_by_one() -> None:
    # The one that was cancelled was to bring none.
    assert results(whole.history(), whole.ledger()) == Results(asked=2, brought=2, told=0, lost=0, doubled=0)


def test_what_is_not_there_is_lost() -> None:
    history = whole.history()
    del history.rows.tasks[0]
    history.rows.task_documents[1]["result"] = None
    assert results(history, whole.ledger()) == Results(asked=2, brought=0, told=0, lost=2, doubled=0)
    history = whole.history()
    history.rows.tasks[0].update(status="queued")
    history.rows.attempts[3].update(state="void", reason="worker_lost")
    assert results(history, whole.ledger()) == Results(asked=2, brought=0, told=0, lost=2, doubled=0)


def test_what_is_there_twice_is_doubled() -> None:
    history = whole.history()
    history.rows.attempts.append(_second(history.rows.attempts[1]))
    history.rows.artifacts.append(
        {"id": "art-2", "task_id": "task-counted", "name": "output", "kind": "output"},
    )
    history.rows.artifacts.append(_second(history.rows.artifacts[-1]))
    assert results(history, whole.ledger()) == Results(asked=2, brought=0, told=0, lost=0, doubled=2)


def test_a_full_disk_is_told() -> None:
    history = replace(whole.history(), filled=frozenset({"worker-1"}))
    history.rows.tasks[1].update(status="failed", reason="disk_full")
    history.rows.attempts[3].update(reason="disk_full")
    assert results(history, whole.ledger()) == Results(asked=2, brought=1, told=1, lost=0, doubled=0)


def test_rounds_of_kills_are_those_in_which_one_has_met_somebody() -> None:
    struck = Strikes()
    kill, flush = Strike(1.0, Kind.KILL, "server", 1.0), Strike(1.0, Kind.FLUSH, "redis", 1.0)
    for hit in ([kill, kill, flush], [flush], [kill]):
        struck.add(hit)
    said = words(struck, Results(asked=9, brought=7, told=0, lost=2, doubled=0))
    assert said.startswith("2 SIGKILL rounds: 2 lost, 0 doubled\n")
    assert "3 rounds with 5 strikes: 3 SIGKILL, 2 Redis flush" in said
