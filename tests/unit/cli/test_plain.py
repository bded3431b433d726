"""What tasks and workers say is shown on a terminal, and commands none."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.live import Live
from rich.text import Text

from tunefleet.cli import console, error_display, options
from tunefleet.cli.tasks import log_command, results, show, workflow_view
from tunefleet.errors import InputError, printable
from tunefleet.schemas.api import FaultView, TaskDetail, WorkflowView

AT = datetime(2026, 1, 1, tzinfo=UTC)
EVIL = "hi\x1b]0;owned\x07\x1b[2J\x1b[8m\x9b31m\u202eereht"
COMMANDS = re.compile(r"\x1b\[[0-9;]*m")
"""Rich's own colours."""


class Terminal(io.StringIO):
    """A fake terminal: it keeps what it gets."""

    def isatty(self) -> bool:
        return True


def at_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Put a terminal in the place of both outputs, for the rest of a test; what captures output sets them before."""
    made = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(sys, "stderr", made)
    return made


def task(**more: Any) -> TaskDetail:
    fields = {"name": "a", "kind": "echo", "status": "failed", "workflow_id": "wf-1", "owner": "me", "created_at": AT}
    return TaskDetail.model_validate({"id": "task-a", "spec": {}, **fields, **more})


def workflow() -> WorkflowView:
    told = task(name=EVIL, error=EVIL, why=EVIL, worker_id=EVIL)
    return WorkflowView(id="wf-1", name=EVIL, owner="me", status="failed", created_at=AT, tasks=(told, told))


def metrics_table() -> Any:
    listing = console.table(EVIL, wide=EVIL)
    listing.add_row(console.cut(EVIL))
    listing.add_row(EVIL)
    return listing


SCREENS: dict[str, Callable[[], Any]] = {
    "result": lambda: console.say(console.facts(results.rows(task(result={EVIL: [{"output": EVIL}], "s": EVIL})))),
    "task": lambda: console.say(
        show.screen(
            task(error=EVIL, why=EVIL, detail=EVIL, reason="bug"),
            related=show.Related(memory=EVIL, origin=EVIL),
            everything=True,
        )
    ),
    "workflow": lambda: console.say(workflow_view.screen(workflow())),
    "table": lambda: console.say(metrics_table()),
    "sentence": lambda: console.say(EVIL, style="dim"),
    "live": lambda: Live(Text(EVIL), console=console.out(), auto_refresh=False).console.print(Text(EVIL)),
    "error": lambda: error_display.report(InputError(EVIL, hint=EVIL)),
    "error as JSON": lambda: error_display.report(InputError(EVIL, hint=EVIL), as_json=True),
    "JSON": lambda: console.print_json(FaultView(path=EVIL, message=EVIL)),
    "log": lambda: log_command.LogOutput().write(EVIL),
    "log as JSON": lambda: log_command.LogOutput(as_json=True).write(EVIL),
}


@pytest.mark.parametrize("name", SCREENS)
def test_what_others_say_commands_no_terminal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    SCREENS[name]()
    got = terminal.getvalue()
    assert "owned" in got, "it is shown"
    left = COMMANDS.sub("", got).replace("\n", "")
    assert left.isprintable(), left
    assert "\x1b[8m" not in got, "a colour of somebody else is none of ours"


def test_what_people_write_stays_and_styles_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    fair = "a\u00a0b\u3000ü 漢字 👩\u200d💻"
    console.say(Text.assemble((f"{EVIL}", "bad"), (fair, "good")))
    assert f"\x1b[32m{fair}\x1b[0m" in terminal.getvalue()
    log_command.LogOutput().write("\x1b[32mINFO\x1b[0m one\r\ttwo\n")
    assert terminal.getvalue().endswith("INFO one\r\ttwo\n")


def test_a_pipe_gets_a_log_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    log_command.LogOutput().write(EVIL)
    assert capsys.readouterr().out == EVIL
    console.print_json({"text": EVIL})
    assert json.loads(capsys.readouterr().out) == {"text": EVIL}


def test_a_question_and_what_a_shell_completes_are_spelt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(options.typer, "confirm", lambda question, **_: asked.append(question))
    options.confirm(f"Remove {EVIL}?", yes=False)
    assert asked == [f"Remove {printable(EVIL)}?"]
    assert asked[0].isprintable()
