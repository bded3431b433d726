"""`tunefleet agent`: run the training agent of this machine, or have the system run it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunefleet.agent.service import Service
from tunefleet.cli.console import say
from tunefleet.cli.lazy_group import add, examples
from tunefleet.errors import InputError, MachineError, NotFoundError
from tunefleet.settings import load_agent

app = typer.Typer(help="Run the training agent of this machine.", invoke_without_command=True)


@app.callback()
def agent(context: typer.Context) -> None:
    """Run the training agent of this machine.

    It is set by the environment, by .env and by agent.env in TUNEFLEET_HOME. Ctrl-C ends it; its jobs go on, and the
    next agent adopts them.
    """
    if context.invoked_subcommand is None:
        from tunefleet.agent.__main__ import main

        code = main()
        if code:
            raise typer.Exit(code)


@examples("tunefleet agent install --set BACKEND_URL=http://gpu-box:8000 --set API_KEY=tf_…")
def install(
    *,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting to write into agent.env.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="FOLDER", help="Where it works; default: `agent` in TUNEFLEET_HOME."),
    ] = None,
    no_start: Annotated[bool, typer.Option("--no-start", help="Only write the files.")] = False,
) -> None:
    """Have systemd or launchd run the agent for this user, now and after each login."""
    given = settings or []
    for setting in given:
        if "=" not in setting or not setting.partition("=")[0].isidentifier():
            raise InputError(f"--set {setting!r} is no NAME=VALUE.", hint="Write it like --set MAX_CONCURRENT_JOBS=2.")
    found = _service(folder)
    for path in found.install(given):
        say(f"Wrote {path}")
    if no_start:
        say(f"Start it with: {' && '.join(' '.join(command) for command in found.commands('start'))}")
        return
    found.call("start")
    say("The agent runs. `tunefleet agent status` shows how it stands; its key is AGENT_KEY in agent.env.")


@examples("tunefleet agent status")
def status() -> None:
    """Show what the service manager says of the agent."""
    code = _installed().call("status")
    if code:
        raise typer.Exit(code)


@examples("tunefleet agent logs -n 50")
def logs(
    *, lines: Annotated[int, typer.Option("-n", "--lines", min=1, help="How many lines, from the end.")] = 100
) -> None:
    """Print the end of the agent's log."""
    service = _service(None)
    directory = load_agent().logs_dir.expanduser()
    path = (directory if directory.is_absolute() else service.working_folder() / directory) / "agent.log"
    if not path.exists():
        raise NotFoundError(f"There is no {path}.", hint="Has the agent been started?")
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]:
        typer.echo(line)


@examples("tunefleet agent stop")
def stop() -> None:
    """Stop the agent; its jobs go on."""
    _installed().call("stop")
    say("Stopped. Running jobs go on; the next agent adopts them.")


@examples("tunefleet agent uninstall")
def uninstall() -> None:
    """Remove the service; settings, jobs and their files stay."""
    service = _installed()
    try:
        service.call("uninstall")
    except MachineError as error:
        say(f"{error}", style="warn")
    for path in service.uninstall():
        say(f"Removed {path}")


def _service(folder: Path | None) -> Service:
    home = load_agent().home_dir.absolute()
    return Service(home=home, folder=(folder or home / "agent").expanduser().absolute())


def _installed() -> Service:
    service = _service(None)
    if not service.definition.exists():
        raise NotFoundError("The agent is not installed as a service.", hint="`tunefleet agent install` does that.")
    return service


for _function in (install, status, logs, stop, uninstall):
    add(app, _function, _function.__name__)
