"""`tunefleet doctor`: check this machine and show how to fix problems."""

from __future__ import annotations

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, print_json, say, table
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.server.check_machine import Finding
from tunefleet.cli.server.checks import findings

_MARKS = {"good": ("✓", "good"), "warning": ("!", "warn"), "bad": ("✗", "bad")}


@examples("tunefleet doctor", "tunefleet doctor --json | jq '.[] | select(.state != \"good\")'")
def doctor(*, as_json: Json = False) -> None:
    """Check this machine and show how to fix problems.

    The exit code is 1 if a problem prevents Tunefleet from working; warnings do not count.
    """
    found = list(findings())
    if as_json:
        print_json(found)
    else:
        for finding in found:
            _show(finding)
        _conclude(found)
    if any(finding.state == "bad" for finding in found):
        raise typer.Exit(ExitCode.FAILED)


def _show(finding: Finding) -> None:
    mark, style = _MARKS[finding.state]
    row = table("", "", "", wide="")
    row.show_header = False
    # Every finding is a table of its own: a fixed width aligns them.
    row.columns[1].min_width = 18
    row.columns[2].no_wrap = False
    row.columns[2].overflow = "fold"
    row.add_row(Text(mark, style=style), finding.name, finding.found)
    if finding.mend:
        row.add_row("", "", Text(finding.mend, style=style))
    say(row)


def _conclude(found: list[Finding]) -> None:
    wrong = sum(finding.state == "bad" for finding in found)
    warned = sum(finding.state == "warning" for finding in found)
    say()
    if wrong:
        say(f"{formatting.plural(wrong, 'problem')} to fix.", style="bad")
    elif warned:
        say(f"No problems, {formatting.plural(warned, 'warning')}.", style="warn")
    else:
        say("All checks passed.", style="good")
