"""`tunefleet campaign run`: run the campaigns of a file, on an existing or a local server, until Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tunefleet.cli.campaigns import views as view
from tunefleet.cli.campaigns.config_file import CONFIG, Config, read
from tunefleet.cli.campaigns.live_view import CampaignOutput, campaign_output
from tunefleet.cli.console import Json, err
from tunefleet.cli.formatting import plural
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import connect
from tunefleet.client import Client
from tunefleet.errors import AuthError, UnreachableError
from tunefleet.lifecycle.cycle import NEEDS_YOU, CampaignStatus
from tunefleet.settings import CampaignSettings, TrackingSettings, load

if TYPE_CHECKING:
    from tunefleet.schemas.campaign import CampaignDetail
    from tunefleet.spec.documents.campaign_document import CampaignSpec

_POLL_S = 1.0
_WORKERS_S = 60.0
_LINES = 500
# Status → the command that continues the campaign.
_CONTINUE_WITH: Final = {"held": "retry", "paused": "resume", "stopped": "start"}


@examples(
    "tunefleet campaign run", "tunefleet campaign run --config campaigns.yaml", "tunefleet campaign run --workers 2"
)
def run(
    config: Config = CONFIG,
    *,
    data: Annotated[Path | None, typer.Option(help="Data folder, if a server is started.")] = None,
    port: Annotated[int | None, typer.Option(help="Port, if a server is started.")] = None,
    workers: Annotated[
        int, typer.Option("--workers", metavar="N", min=1, help="Number of workers, if a server is started.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Run the campaigns of a file until Ctrl-C and print their logs.

    Uses the server started by `tunefleet up` or saved by `tunefleet login`. If there is none, or it does not
    respond, the command starts a server and a worker on this machine and stops them on exit; the campaigns continue
    at the next start. Campaigns that are held, paused or stopped stay that way; the command to continue each one is
    printed. Settings are read from the environment and from .env in this folder. With --json, each line on standard
    output is a JSON object.
    """
    from tunefleet.cli.local_cluster.supervisor import LocalFleet
    from tunefleet.cli.local_cluster.up import stop_on_signal
    from tunefleet.integrations.trackers import catalog

    specs = read(config, local=True)
    settings = load(CampaignSettings)
    for name, spec in specs.items():
        _print_settings(name, spec, settings)
    folder = config.expanduser().parent
    if _answers():
        err().print("Using the running server and its settings; campaigns continue after this command ends.")
        with connect(patience_s=30.0, refused_s=None) as client, stop_on_signal(None) as stop_requested:
            _follow(client, specs, folder, stop_requested, as_json=as_json)
        err().print("The campaigns continue on the server. Stop one with `tunefleet campaign stop NAME`.")
        return
    catalog.refuse_faults(specs.values(), load(TrackingSettings))
    fleet = LocalFleet(data, port=port, workers=workers)
    with stop_on_signal(fleet) as stop_requested:
        fleet.start()
        err().print(f"Started a server at {fleet.url}, data in {fleet.data}.")
        err().print(f"Waiting for {plural(workers, 'worker')} to connect, up to {_WORKERS_S:g} s.")
        if len(fleet.await_workers(_WORKERS_S, stop_requested)) < workers and not stop_requested.is_set():
            err().print(
                "Not all workers have connected, so runs stay queued. See `tunefleet workers ls`.", style="warn"
            )
        with Client(fleet.url, fleet.key, patience_s=30.0) as client:
            _follow(client, specs, folder, stop_requested, as_json=as_json)
        fleet.stop()


def _print_settings(name: str, spec: CampaignSpec, settings: CampaignSettings) -> None:
    from tunefleet.campaign import paid_training_checks, providers
    from tunefleet.integrations.trackers import catalog

    if not spec.enabled:
        err().print(f"{name} is not enabled.")
        return
    provider, why = providers.chosen(spec, settings)
    providers.find(provider)
    err().print(f"{name}: provider {provider} ({why}).")
    for message, hint in paid_training_checks.faults(name, spec, settings, provider):
        err().print(f"{name} cannot run with these settings: {message} {hint}", style="bad")
    for text in paid_training_checks.doubts(name, spec, settings, provider):
        err().print(f"{name}: {text}", style="warn")
    err().print(f"{name} is tracked {catalog.sentence(catalog.chosen(spec, load(TrackingSettings)))}.")


def _answers() -> bool:
    try:
        with connect() as client:
            return client.info().authenticated
    # A server that rejects the key cannot be used either.
    except (UnreachableError, AuthError):
        return False


def _follow(
    client: Client, specs: Mapping[str, CampaignSpec], folder: Path, stop_requested: threading.Event, *, as_json: bool
) -> None:
    """Create the campaigns, and print their logs until a stop is requested."""
    # Not started here: a service restarts often, which must not continue what a budget or a user has stopped.
    client.campaigns.send(specs, folder)
    inactive: set[str] = set()
    names = [name for name, spec in specs.items() if spec.enabled]
    seen = {name: client.campaigns.log(name, limit=1).next_id for name in names}
    for found in [client.campaigns.get(name) for name in names]:
        # The log has a line at the start of a wait; an earlier one is only shown here.
        if found.status is CampaignStatus.ACTIVE:
            err().print(f"{found.name}: {view.doing(found)}")
    with campaign_output(as_json=as_json) as shown:
        while names and not stop_requested.wait(_POLL_S):
            for name in names:
                seen[name] = _print_new(client, name, seen[name], shown)
            for each in [client.campaigns.get(name) for name in names]:
                shown.show(each)
                _print_inactive(each, inactive)


def _print_inactive(found: CampaignDetail, inactive: set[str]) -> None:
    """Print once that a campaign is inactive, and how to continue it."""
    if found.status is CampaignStatus.ACTIVE:
        inactive.discard(found.name)
    elif found.name not in inactive:
        inactive.add(found.name)
        reason = found.reason or ""
        if not reason.startswith(NEEDS_YOU):
            reason += f" Continue with `tunefleet campaign {_CONTINUE_WITH[found.status.value]} {found.name}`."
        err().print(f"{found.name} is {found.status.value}. {reason}", style="warn")


def _print_new(client: Client, name: str, after: int, shown: CampaignOutput) -> int:
    found = client.campaigns.log(name, after=after, limit=_LINES)
    for line in found.lines:
        shown.line(line)
    return found.next_id
