"""Workers on the terminal: those that do not answer, and facts that are not known."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tunefleet.cli import why
from tunefleet.cli.console import _THEME, cut, facts
from tunefleet.wire.fleet import WorkerVerdict


def verdict(worker_id: str, reason: str) -> WorkerVerdict:
    return WorkerVerdict.model_validate({"worker_id": worker_id, "verdict": "never", "reason": reason})


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        (["lab-3"], "Start lab-3 again on its results folder, or forget it: tunefleet workers rm lab-3"),
        (["lab-3", "lab-4"], "Start one that does not answer again on its results folder, or forget it: "
                             "tunefleet workers rm WORKER"),
        ([], None),
    ],
    ids=["one", "two", "none"],
)  # fmt: skip
def test_of_a_worker_that_does_not_answer_the_way_out_is_told(
    gone: list[str], told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    why._workers([verdict("lab-1", "has no GPU"), *(verdict(each, "does not answer") for each in gone)])
    said = capsys.readouterr().out
    assert (told in said) if told else ("workers rm" not in said)


def test_what_is_not_known_has_no_row() -> None:
    console = Console(file=io.StringIO(), width=80, theme=_THEME, force_terminal=False)
    console.print(facts([("has", cut("")), ("runs", ""), ("load", None), ("cpu", "2")]))
    assert console.file.getvalue().split() == ["cpu", "2"]  # type: ignore[attr-defined]
