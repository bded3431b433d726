"""`tunefleet agent`: run the training agent of this machine, or install it as a service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunefleet.agent.service import Service
from tunefleet.cli.console import say
from tunefleet.cli.lazy_group import add, examples
from tunefleet.errors import InputError, MachineError, NotFoundError
from tunefleet.settings import load_agent

app = typer.Typer(help="Run the training agent on this machine.", invoke_without_command=True)


@app.callback()
def agent(context: typer.Context) -> None:
    """Run the training agent on this machine.

    Settings come from the environment, .env and agent.env in TUNEFLEET_HOME. Ctrl-C stops the agent; its jobs keep
    running, and the next agent adopts them.
    """
    if context.invoked_subcommand is None:
        from tunefleet.agent.__main__ import main

        code = main()
        if code:
            raise typer.Exit(code)


@examples("tunefleet agent install --set TUNEFLEET_BACKEND_URL=http://gpu-box:8000 --set TUNEFLEET_BACKEND_KEY=tf_…")
def install(
    *,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Setting to write to agent.env.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="FOLDER", help="Working folder; default: `agent` in TUNEFLEET_HOME."),
    ] = None,
    no_start: Annotated[bool, typer.Option("--no-start", help="Write the files without starting the service.")] = False,
) -> None:
    """Install the agent as a systemd or launchd service of this user, and start it."""
    given = settings or []
    for setting in given:
        if "=" not in setting or not setting.partition("=")[0].isidentifier():
            raise InputError(f"--set {setting!r} is not NAME=VALUE.", hint="Example: --set TUNEFLEET_MAX_JOBS=2.")
    found = _service(folder)
    for path in found.install(given):
        say(f"Wrote {path}")
    if no_start:
        say(f"Start: {' && '.join(' '.join(command) for command in found.commands('start'))}")
        return
    found.call("start")
    say("The agent is running. Check it with `tunefleet agent status`; its key is TUNEFLEET_AGENT_KEY in agent.env.")


@examples("tunefleet agent status")
def status() -> None:
    """Show the status of the agent's service."""
    code = _installed().call("status")
    if code:
        raise typer.Exit(code)


@examples("tunefleet agent logs -n 50")
def logs(
    *, lines: Annotated[int, typer.Option("-n", "--lines", min=1, help="Number of lines to show, from the end.")] = 100
) -> None:
    """Print the last lines of the agent's log.

    The log is in LOGS_DIR, by default `logs` in the working folder of the service. Without a service, the working
    folder is the current folder.
    """
    service = _service(None)
    installed = service.definition.exists()
    path = (service.working_folder() if installed else Path.cwd()) / load_agent().logs_dir.expanduser() / "agent.log"
    if not path.exists():
        raise NotFoundError(
            f"Log not found: {path}.",
            hint=f"An agent in a terminal writes to {load_agent().logs_dir / 'agent.log'} in the folder where it was "
            "started: run this command there, or set LOGS_DIR.",
        )
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]:
        typer.echo(line)


@examples("tunefleet agent stop")
def stop() -> None:
    """Stop the agent; its jobs keep running."""
    _installed().call("stop")
    say("Stopped. Jobs keep running; the next agent adopts them.")


@examples("tunefleet agent uninstall")
def uninstall() -> None:
    """Remove the service; settings, jobs and their files are kept."""
    service = _installed()
    try:
        # A service that does not stop is removed anyway.
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
        raise NotFoundError(
            "The agent is not installed as a service.", hint="Install it with `tunefleet agent install`."
        )
    return service


for _function in (install, status, logs, stop, uninstall):
    add(app, _function, _function.__name__)
