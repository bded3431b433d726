"""Workers on the terminal: those that do not respond, and facts that are not known."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tunefleet.cli.console import _THEME, cut, facts
from tunefleet.cli.options import one_worker
from tunefleet.cli.tasks import why
from tunefleet.cli.workers import worker_commands
from tunefleet.errors import ConflictError, NotFoundError
from tunefleet.schemas.fleet import WorkerVerdict


def verdict(worker_id: str, reason: str) -> WorkerVerdict:
    return WorkerVerdict.model_validate({"worker_id": worker_id, "verdict": "never", "reason": reason})


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        (["lab-3"], "Restart lab-3 with its results folder, or remove it: tunefleet workers rm lab-3"),
        (["lab-3", "lab-4"], "Restart such a worker with its results folder, or remove it: "
                             "tunefleet workers rm WORKER"),
        ([], None),
    ],
    ids=["one", "two", "none"],
)  # fmt: skip
def test_of_a_worker_that_does_not_answer_the_way_out_is_told(
    gone: list[str], told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    why._workers([verdict("lab-1", "has no GPU"), *(verdict(each, "does not respond") for each in gone)])
    said = capsys.readouterr().out
    assert (told in said) if told else ("workers rm" not in said)


def test_what_is_not_known_has_no_row() -> None:
    console = Console(file=io.StringIO(), width=80, theme=_THEME, force_terminal=False)
    console.print(facts([("has", cut("")), ("runs", ""), ("load", None), ("cpu", "2")]))
    assert console.file.getvalue().split() == ["cpu", "2"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("ahead_s", "told"), [(None, "online"), (63.4, "online, clock 63 s ahead"), (-90.0, "online, clock 90 s behind")]
)
def test_a_clock_that_is_off_stands_beside_the_status(ahead_s: float | None, told: str) -> None:
    has = SimpleNamespace(clock_ahead_s=ahead_s)
    worker: Any = SimpleNamespace(
        status="online", draining=False, cordoned=False, elastic_disabled=False, capabilities=has
    )
    assert worker_commands._status(worker).plain == told


def test_a_worker_is_meant_by_its_id_or_a_beginning_that_no_other_has() -> None:
    found = SimpleNamespace(items=[SimpleNamespace(id=id_) for id_ in ("lab", "lab-2", "lab-3", "den-1")])
    client: Any = SimpleNamespace(workers=SimpleNamespace(list=lambda limit: found))
    assert [one_worker(client, name) for name in ("lab", "den", "lab-3")] == ["lab", "den-1", "lab-3"]
    with pytest.raises(ConflictError, match="Several workers begin with la") as caught:
        one_worker(client, "la")
    assert caught.value.hint == "Name one of them: lab, lab-2, lab-3."
    with pytest.raises(NotFoundError, match="Worker attic not found"):
        one_worker(client, "attic")
