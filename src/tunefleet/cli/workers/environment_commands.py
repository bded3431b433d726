"""`tunefleet env`: manage the environments that some task kinds need."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.status import Status
from rich.text import Text

from tunefleet.cli.console import Json, err, print_json, say, table
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import Yes, confirm
from tunefleet.errors import MachineError
from tunefleet.runtime.envs import FAMILIES, Environment, at
from tunefleet.runtime.envs.build import create as create_environment
from tunefleet.runtime.envs.build import remove as remove_environment
from tunefleet.runtime.envs.verify import EnvironmentFinding
from tunefleet.runtime.envs.verify import check as check_environment

app = typer.Typer(help="Manage the environments that some task kinds need.", invoke_without_command=True)

_STYLES = {"ready": "good", "missing": "dim", "stale": "warn", "unfinished": "warn"}


def _names(incomplete: str) -> list[tuple[str, str]]:
    return [(name, each.about) for name, each in FAMILIES.items() if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(metavar="NAME", help=f"One of: {', '.join(FAMILIES)}.", autocompletion=_names)]


@app.callback()
def env(context: typer.Context, *, as_json: Json = False) -> None:
    """Manage the environments that some task kinds need."""
    if context.invoked_subcommand is None:
        ls(as_json=as_json)


@examples("tunefleet env list", "tunefleet env list --json | jq '.environments[] | select(.state == \"ready\").python'")
def ls(*, as_json: Json = False) -> None:
    """List the environments with their state and path."""
    found = [at(name) for name in FAMILIES]
    if as_json:
        print_json({"environments": [_as_json(each) for each in found]})
        return
    listing = table("name", "state", "purpose", "path", wide="path")
    for each in found:
        state = "needs a GPU" if each.lock_file is None else each.state
        path = str(each.root) if each.state != "missing" else ""
        listing.add_row(each.name, Text(state, style=_STYLES.get(state, "dim")), each.family.about, path)
    say(listing)


@examples("tunefleet env create ppo", "tunefleet env create vllm --torch-index https://download.pytorch.org/whl/cu130")
def create(
    name: Name,
    *,
    again: Annotated[bool, typer.Option("--again", help="Recreate the environment even if it is ready.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Use the CPU variant even if there is a GPU.")] = False,
    torch_index: Annotated[
        str | None,
        typer.Option(
            "--torch-index", metavar="URL", help="Package index to install torch from, such as one with ROCm builds."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create an environment from its lock file and check it; does nothing if it is ready."""
    # Checked before anything is downloaded.
    if not again and (existing := at(name, "cpu" if cpu else None)).ready:
        if as_json:
            print_json(_as_json(existing) | {"checks": []})
        else:
            say(f"Environment {name!r} is already ready: {existing.root}")
        return
    with _steps(name) as step:
        done = create_environment(name, where="cpu" if cpu else None, again=again, torch_index=torch_index, say=step)
        step("checking imports")
        findings = check_environment(name)
    wrong = [each for each in findings if not each.good]
    if as_json:
        print_json(_as_json(done) | {"checks": [each.model_dump(mode="json") for each in findings]})
    else:
        for each in wrong:
            _show(each)
    if wrong:
        raise MachineError(
            f"Environment {name!r} was created, but {len(wrong)} of its checks fail.", hint=wrong[0].mend
        )
    if not as_json:
        say(f"Environment {name!r} is ready: {done.root}")
        say(
            "A worker on this machine reports it with its next heartbeat (TUNEFLEET_HEARTBEAT_INTERVAL_S, 30 s).",
            style="dim",
        )


@examples("tunefleet env check ppo")
def check(name: Name, *, as_json: Json = False) -> None:
    """Test an environment and compare it with its lock file; the exit code is 1 if a check fails."""
    with _steps(name) as step:
        step("checking imports")
        findings = check_environment(name)
    if as_json:
        print_json(_as_json(at(name)) | {"checks": [each.model_dump(mode="json") for each in findings]})
    else:
        for each in findings:
            _show(each)
    if not all(each.good for each in findings):
        raise typer.Exit(ExitCode.FAILED)


@examples("tunefleet env remove vllm --yes")
def remove(name: Name, *, yes: Yes = False, as_json: Json = False) -> None:
    """Remove an environment that no process uses."""
    if at(name).state != "missing":
        confirm(f"Remove the environment {name}?", yes=yes)
    existed = remove_environment(name)
    if as_json:
        print_json({"removed": [name] if existed else []})
    else:
        say(f"Removed {name}." if existed else f"Environment {name} does not exist on this machine.")


def _as_json(each: Environment) -> dict[str, Any]:
    return {
        "name": each.name,
        "about": each.family.about,
        "state": each.state,
        "why": each.why,
        "layer": each.family.layer,
        "machine": each.machine,
        "path": str(each.root),
        "python": each.python if each.state != "missing" else None,
        "lock": each.lock_file.name if each.lock_file is not None else None,
    }


def _show(finding: EnvironmentFinding) -> None:
    row = table("", "", "")
    row.show_header = False
    row.columns[1].min_width = 12
    row.columns[2].no_wrap = False
    row.columns[2].overflow = "fold"
    mark, style = ("✓", "good") if finding.good else ("✗", "bad")
    row.add_row(Text(mark, style=style), finding.name, finding.found)
    if finding.mend:
        row.add_row("", "", Text(finding.mend, style=style))
    say(row)


@dataclass
class _StepOutput:
    """Shows steps as they begin: on a terminal in one status line, elsewhere one line each."""

    name: str
    status: Status | None

    def __call__(self, step: str) -> None:
        if self.status is None:
            err().print(f"{self.name}: {step}", markup=False)
        else:
            self.status.update(Text(f"{self.name}: {step}"))


@contextmanager
def _steps(name: str) -> Iterator[Callable[[str], None]]:
    if not sys.stderr.isatty():
        yield _StepOutput(name, None)
        return
    with err().status(Text(f"{name}: …")) as status:
        yield _StepOutput(name, status)


for _function, _name in ((ls, "list"), (create, "create"), (check, "check"), (remove, "remove")):
    add(app, _function, _name)
