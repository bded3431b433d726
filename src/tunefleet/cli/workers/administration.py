"""`tunefleet workers cordon | drain | restart | update | …`: administration of workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tunefleet.cli.console import Json, print_json, say
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import WorkerId, connect, one_worker
from tunefleet.errors import InputError
from tunefleet.schemas.api import CommandView
from tunefleet.schemas.fleet import WorkerView
from tunefleet.schemas.training_protocol.training import AgentVerb
from tunefleet.spec import parse_value

Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0, help="Stop waiting after this time.")]


@examples("tunefleet workers restart lab-3")
def restart(worker: WorkerId, *, timeout: Timeout = 120.0, as_json: Json = False) -> None:
    """Restart a worker; its jobs keep running."""
    _report(_send_command(worker, AgentVerb.RESTART, {}, timeout), as_json=as_json)


@examples("tunefleet workers update lab-3 job_slots=2 tags=[fast]")
def update(
    worker: WorkerId,
    pairs: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE…", help="job_slots, light_slots, tags or log_level.")
    ],
    *,
    timeout: Timeout = 120.0,
    as_json: Json = False,
) -> None:
    """Change the configuration of a worker; it restarts, and its jobs keep running.

    `null` restores the worker's own setting.
    """
    _report(_send_command(worker, AgentVerb.UPDATE_CONFIG, _pairs(pairs), timeout), as_json=as_json)


@examples("tunefleet workers diagnostics lab-3", "tunefleet workers diagnostics lab-3 --output lab-3.json")
def diagnostics(
    worker: WorkerId,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Output file; default: standard output.")
    ] = None,
    timeout: Timeout = 60.0,
    as_json: Json = False,
) -> None:
    """Collect a worker's configuration, hardware, jobs and log as JSON, without secrets."""
    done = _send_command(worker, AgentVerb.COLLECT_DIAGNOSTICS, {}, timeout)
    if done.state == "failed" or as_json:
        _report(done, as_json=as_json)
        return
    if output is None:
        print_json(done.result or {})
        return
    output.write_text(json.dumps(done.result or {}, indent=2) + "\n", encoding="utf-8")
    say(f"Wrote {output}.")


@examples("tunefleet workers upgrade lab-3", "tunefleet workers upgrade lab-3 1.2.3")
def upgrade(
    worker: WorkerId,
    version: Annotated[
        str | None, typer.Argument(metavar="VERSION", help="Expected version; default: the server's version.")
    ] = None,
    *,
    # pip downloads and installs packages, which takes minutes.
    timeout: Timeout = 900.0,
    as_json: Json = False,
) -> None:
    """Install the server's version on a worker and restart it; its jobs keep running.

    Fails if the worker was not installed from a server's `/install`, if it runs from a source tree or in an
    externally managed environment, or if the server's version is not VERSION.
    """
    _report(_send_command(worker, AgentVerb.UPGRADE, {"version": version} if version else {}, timeout), as_json=as_json)


@examples("tunefleet workers cordon lab-3")
def cordon(worker: WorkerId, *, as_json: Json = False) -> None:
    """Cordon a worker: it gets no new tasks; its running tasks continue."""
    with connect() as client:
        _print_decision(client.workers.cordon(one_worker(client, worker)), "gets no new tasks", as_json=as_json)


@examples("tunefleet workers uncordon lab-3")
def uncordon(worker: WorkerId, *, as_json: Json = False) -> None:
    """Uncordon a worker: it gets tasks again, and an unfinished drain is cancelled."""
    with connect() as client:
        _print_decision(client.workers.uncordon(one_worker(client, worker)), "gets tasks again", as_json=as_json)


@examples("tunefleet workers drain lab-3")
def drain(worker: WorkerId, *, as_json: Json = False) -> None:
    """Drain a worker: it finishes its tasks, then exits; it stays cordoned until uncordoned."""
    with connect() as client:
        _print_decision(
            client.workers.drain(one_worker(client, worker)), "finishes its tasks, then exits", as_json=as_json
        )


def _print_decision(view: WorkerView, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json(view)
    else:
        runs = f"; running: {', '.join(view.running)}" if view.running else ""
        say(f"{view.id} {what}{runs}.")


def attach(app: typer.Typer) -> None:
    """Add the administration commands to the `workers` group."""
    for name, function in (
        ("cordon", cordon), ("uncordon", uncordon), ("drain", drain), ("restart", restart), ("update", update),
        ("diagnostics", diagnostics), ("upgrade", upgrade),
    ):  # fmt: skip
        add(app, function, name)


def _send_command(worker: str, verb: AgentVerb, data: dict[str, Any], timeout_s: float) -> CommandView:
    with connect() as client:
        worker = one_worker(client, worker)
        command = client.workers.tell(worker, verb, data)
        try:
            return client.workers.wait_for_command(worker, command.id, timeout_s=timeout_s)
        except TimeoutError as error:
            say(str(error), style="warn")
            raise typer.Exit(ExitCode.TIMED_OUT) from None


def _report(done: CommandView, *, as_json: bool) -> None:
    failed = done.state == "failed"
    if as_json:
        print_json(done)
    else:
        text = f"{done.worker_id}: {done.command} {'failed' if failed else 'done'}. {done.message or ''}".rstrip()
        say(text, style="bad" if failed else None)
    if failed:
        raise typer.Exit(ExitCode.FAILED)


def _pairs(pairs: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip() or not text.strip():
            raise InputError(f"{pair} is not KEY=VALUE.", hint="Example: job_slots=2.")
        found[name.strip()] = parse_value(text.strip())
    return found
