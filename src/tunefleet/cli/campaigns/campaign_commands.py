"""`tunefleet campaign`: training that goes on by itself, chunk by chunk."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from tunefleet.cli.campaigns import views as view
from tunefleet.cli.campaigns.config_file import CONFIG, Config, read
from tunefleet.cli.campaigns.dry_run import dry_run
from tunefleet.cli.campaigns.live_view import log_board
from tunefleet.cli.campaigns.run import run
from tunefleet.cli.console import Json, err, print_json, say
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import Yes, complete_campaign, confirm, connect
from tunefleet.lifecycle.cycle import StepName
from tunefleet.schemas.campaign import CampaignDetail, CampaignLine

app = typer.Typer(help="Train on and on by itself, chunk by chunk.", invoke_without_command=True)

Campaign = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of a campaign, or its id (camp-…).", autocompletion=complete_campaign),
]
Cycle = Annotated[int | None, typer.Option("--cycle", metavar="N", min=0, help="Which cycle.")]


@app.callback()
def campaign(context: typer.Context, *, as_json: Json = False) -> None:
    """Train on and on by itself, chunk by chunk."""
    if context.invoked_subcommand is None:
        list_(as_json=as_json)


@examples(
    "tunefleet campaign start",
    "tunefleet campaign start daily --config campaigns.yaml",
    "tunefleet campaign start daily",
)
def start(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]…", help="Only these.", autocompletion=complete_campaign),
    ] = None,
    *,
    config: Config = CONFIG,
    as_json: Json = False,
) -> None:
    """Make or change the campaigns of a file, and let them run; without a file, let known ones go on.

    What is changed holds from the next cycle on, the limits of a budget at once. A campaign with `enabled: false` is
    paused. Campaigns that the file does not name stay as they are.
    """
    if names and not config.exists() and config == CONFIG:
        _go_on(names, as_json=as_json)
        return
    wanted = read(config, names)
    with connect() as client:
        made = client.campaigns.send(wanted, config.expanduser().parent, start=True)
    if as_json:
        print_json(made)
        return
    for each in made:
        why = f" {each.reason}" if each.reason else ""
        say(Text.assemble((each.name, "head"), f" ({each.change}) is {each.status.value}.{why}"))
    say("Follow one: tunefleet campaign logs -f NAME", style="dim")


def _go_on(names: list[str], *, as_json: bool) -> None:
    with connect() as client:
        found = [client.campaigns.start(name) for name in names]
    if as_json:
        print_json(found)
        return
    for each in found:
        _say_status(each)


@examples("tunefleet campaign list", "tunefleet campaign list --json")
def list_(*, as_json: Json = False) -> None:
    """List campaigns, newest first."""
    with connect() as client:
        found = client.campaigns.list(limit=1000).items
    if as_json:
        print_json(found)
    elif found:
        say(view.campaign_table(found))
    else:
        say("There are no campaigns. `tunefleet campaign start --config FILE` makes them.")


@examples("tunefleet campaign show daily")
def show(name: Campaign, *, as_json: Json = False) -> None:
    """Show a campaign: what it does now, its budget, and its newest cycles."""
    with connect() as client:
        detail = client.campaigns.get(name)
    if as_json:
        print_json(detail)
        return
    for part in view.detail(detail):
        say(part)


@examples(
    "tunefleet campaign logs daily", "tunefleet campaign logs -f daily", "tunefleet campaign logs daily --cycle 3"
)
def logs(
    name: Campaign,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print what comes, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=1000, help="The last so many.")] = 200,
    cycle: Cycle = None,
    as_json: Json = False,
) -> None:
    """Print the log of a campaign; each line carries its name. With --json each line is a JSON object.

    With --follow a terminal has a bar below the lines: how far the campaign is.
    """
    shown = log_board(as_json=as_json)
    with connect(patience_s=30.0, refused_s=None) if follow else connect() as client:
        found = client.campaigns.log(name, limit=lines, cycle=cycle)
        for line in found.lines:
            shown.line(line)
        if not follow:
            if not found.lines:
                err().print(f"The campaign {name} has said nothing yet.")
            return
        try:
            with shown:
                for each in client.campaigns.watch(name, after=found.next_id, cycle=cycle):
                    shown.line(each) if isinstance(each, CampaignLine) else shown.show(each)
        except KeyboardInterrupt:
            err().print(f"\nThe campaign goes on. Follow it again with `tunefleet campaign logs -f {name}`.")
            raise typer.Exit(ExitCode.INTERRUPTED) from None


@examples("tunefleet campaign pause daily")
def pause(name: Campaign, *, as_json: Json = False) -> None:
    """Begin no further step; what a provider trains goes on there, and is fetched when the campaign goes on."""
    with connect() as client:
        detail = client.campaigns.pause(name)
    print_json(detail) if as_json else _say_status(detail)


@examples("tunefleet campaign resume daily")
def resume(name: Campaign, *, as_json: Json = False) -> None:
    """Let a paused campaign go on where it stands."""
    with connect() as client:
        detail = client.campaigns.resume(name)
    print_json(detail) if as_json else _say_status(detail)


@examples("tunefleet campaign stop daily --yes")
def stop(name: Campaign, *, yes: Yes = False, as_json: Json = False) -> None:
    """End a campaign: its open cycle is given up, and that cycle's task is cancelled; its models stay."""
    confirm(f"Stop the campaign {name}, and give up the cycle that runs?", yes=yes)
    with connect() as client:
        detail = client.campaigns.stop(name)
    print_json(detail) if as_json else _say_status(detail)


@examples("tunefleet campaign retry daily", "tunefleet campaign retry daily --cycle 3 --from merge")
def retry(
    name: Campaign,
    *,
    cycle: Cycle = None,
    step: Annotated[
        StepName | None,
        typer.Option("--from", metavar="STEP", help="From which step on; default: the one that failed."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Let a held campaign go on, or a failed cycle go back to the step that failed; with the newest configuration.

    A task that failed at the provider is ordered anew, and paid for anew.
    """
    with connect() as client:
        detail = client.campaigns.retry(name, cycle=cycle, step=step)
    print_json(detail) if as_json else _say_status(detail)


@examples("tunefleet campaign remerge daily", "tunefleet campaign remerge daily --cycle 3")
def remerge(name: Campaign, *, cycle: Cycle = None, as_json: Json = False) -> None:
    """Merge the model of a cycle once more, and publish and record it; by default that of the newest."""
    with connect() as client:
        detail = client.campaigns.remerge(name, cycle=cycle)
    if as_json:
        print_json(detail)
        return
    number = detail.cycle.number if cycle is None and detail.cycle is not None else cycle
    say(f"The model of cycle {number} of {detail.name} is merged again: tunefleet campaign logs -f {detail.name}")


@examples("tunefleet campaign rollback daily", "tunefleet campaign rollback daily --to 2")
def rollback(
    name: Campaign,
    *,
    to: Annotated[int | None, typer.Option("--to", metavar="VERSION", min=1, help="Default: the one before.")] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Promote an earlier version of the model: the next cycle starts from it, and is compared with it."""
    confirm(f"Go back to {'the version before' if to is None else f'version {to}'} of {name}?", yes=yes)
    with connect() as client:
        made = client.campaigns.rollback(name, version=to)
    print_json(made) if as_json else say(view.promoted(made, "promoted again"))


@examples("tunefleet campaign lineage daily")
def lineage(
    name: Campaign,
    *,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="How many cycles.")] = 10,
    as_json: Json = False,
) -> None:
    """Show how each cycle came to its model: chunk, task, adapter, evaluation, merged model."""
    with connect() as client:
        found = client.campaigns.lineage(name, limit=limit).items
    if as_json:
        print_json(found)
        return
    if not found:
        say(f"The campaign {name} has had no cycle yet.")
    for part in view.lineage(found):
        say(part)


def _say_status(detail: CampaignDetail) -> None:
    why = f" {detail.reason}" if detail.reason else ""
    say(Text.assemble((detail.name, "head"), f" is {detail.status.value}.{why}"))


for _function, _name in (
    (run, "run"),
    (dry_run, "dry-run"),
    (start, "start"),
    (list_, "list"),
    (show, "show"),
    (logs, "logs"),
    (pause, "pause"),
    (resume, "resume"),
    (stop, "stop"),
    (retry, "retry"),
    (remerge, "remerge"),
    (rollback, "rollback"),
    (lineage, "lineage"),
):
    add(app, _function, _name)
