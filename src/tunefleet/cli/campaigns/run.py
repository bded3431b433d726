"""`tunefleet campaign run`: the campaigns of a file, on a server that is there or on one of its own, until Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tunefleet.cli.campaigns import views as view
from tunefleet.cli.campaigns.config_file import CONFIG, Config, read
from tunefleet.cli.campaigns.live_view import Board, board
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

_LOOK_S = 1.0
_WORKERS_S = 60.0
_LINES = 500
_ON: Final = {"held": "retry", "paused": "resume", "stopped": "start"}
"""How to continue a campaign that is paused, unless its reason says so."""


@examples(
    "tunefleet campaign run", "tunefleet campaign run --config campaigns.yaml", "tunefleet campaign run --workers 2"
)
def run(
    config: Config = CONFIG,
    *,
    data: Annotated[Path | None, typer.Option(help="Folder of the server, if one is started.")] = None,
    port: Annotated[int | None, typer.Option(help="Its port.")] = None,
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Its workers.")] = 1,
    as_json: Json = False,
) -> None:
    """Run the campaigns of a file until Ctrl-C, and print what they say; each line carries the campaign's name.

    It uses the server that `tunefleet up` or `tunefleet login` made known. If none is known, or none answers, it starts
    a server and a worker on this machine, as `tunefleet up` does, and ends them at the end; the campaigns go on where
    they were at the next start. One that is held, or that you have paused or stopped, stays so, and it is said what
    lets it go on. Settings are read from the environment and from .env in this folder. With --json each line is a JSON
    object on standard output.
    """
    from tunefleet.cli.local_cluster.supervisor import LocalFleet
    from tunefleet.cli.local_cluster.up import ending
    from tunefleet.integrations.trackers import catalog

    specs = read(config, here=True)
    settings = load(CampaignSettings)
    for name, spec in specs.items():
        _tell(name, spec, settings)
    folder = config.expanduser().parent
    if _answers():
        err().print("A server is there: campaigns go on without this command; its own settings count.")
        with connect(patience_s=30.0, refused_s=None) as client, ending(None) as asked:
            _follow(client, specs, folder, asked, as_json=as_json)
        err().print("The server goes on with them; `tunefleet campaign stop NAME` ends one.")
        return
    catalog.refuse_faults(specs.values(), load(TrackingSettings))
    fleet = LocalFleet(data, port=port, workers=workers)
    with ending(fleet) as asked:
        fleet.start()
        err().print(f"A server is started at {fleet.url}, data in {fleet.data}.")
        err().print(f"Waiting for {plural(workers, 'worker')} to connect, up to {_WORKERS_S:g} s.")
        if len(fleet.await_workers(_WORKERS_S, asked)) < workers and not asked.is_set():
            err().print("Not all workers have connected; tasks wait for them: `tunefleet workers ls`.", style="warn")
        with Client(fleet.url, fleet.key, patience_s=30.0) as client:
            _follow(client, specs, folder, asked, as_json=as_json)
        fleet.stop()


def _tell(name: str, spec: CampaignSpec, settings: CampaignSettings) -> None:
    from tunefleet.campaign import paid_training_checks, providers
    from tunefleet.integrations.trackers import catalog

    if not spec.enabled:
        err().print(f"{name} is not enabled.")
        return
    provider, why = providers.chosen(spec, settings)
    providers.find(provider)
    err().print(f"{name} is trained by {provider}: {why}.")
    for message, hint in paid_training_checks.faults(name, spec, settings, provider):
        err().print(f"{name} cannot run like that: {message} {hint}", style="bad")
    for text in paid_training_checks.doubts(name, spec, settings, provider):
        err().print(f"{name}: {text}", style="warn")
    err().print(f"{name} is tracked {catalog.sentence(catalog.chosen(spec, load(TrackingSettings)))}.")


def _answers() -> bool:
    try:
        with connect() as client:
            return client.info().authenticated
    except (UnreachableError, AuthError):
        return False


def _follow(
    client: Client, specs: Mapping[str, CampaignSpec], folder: Path, asked: threading.Event, *, as_json: bool
) -> None:
    """Make the campaigns, and print their lines until somebody asks to end; what rests may be let go on meanwhile."""
    # A service is started again and again: that lets nothing go on which a budget or a person has ended.
    client.campaigns.send(specs, folder)
    resting: set[str] = set()
    names = [name for name, spec in specs.items() if spec.enabled]
    seen = {name: client.campaigns.log(name, limit=1).next_id for name in names}
    for found in [client.campaigns.get(name) for name in names]:
        # The log has a line when a wait begins; one that began earlier is shown here only.
        if found.status is CampaignStatus.ACTIVE:
            err().print(f"{found.name}: {view.doing(found)}")
    with board(as_json=as_json) as shown:
        while names and not asked.wait(_LOOK_S):
            for name in names:
                seen[name] = _print_new(client, name, seen[name], shown)
            for each in [client.campaigns.get(name) for name in names]:
                shown.show(each)
                _tell_rest(each, resting)


def _tell_rest(found: CampaignDetail, resting: set[str]) -> None:
    """Say once that a campaign rests, and what lets it go on."""
    if found.status is CampaignStatus.ACTIVE:
        resting.discard(found.name)
    elif found.name not in resting:
        resting.add(found.name)
        reason = found.reason or ""
        if not reason.startswith(NEEDS_YOU):
            reason += f" `tunefleet campaign {_ON[found.status.value]} {found.name}` lets it go on."
        err().print(f"{found.name} is {found.status.value}. {reason}", style="warn")


def _print_new(client: Client, name: str, after: int, shown: Board) -> int:
    found = client.campaigns.log(name, after=after, limit=_LINES)
    for line in found.lines:
        shown.line(line)
    return found.next_id
