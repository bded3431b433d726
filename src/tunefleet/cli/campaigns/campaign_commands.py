"""`tunefleet campaign`: continuous training, chunk by chunk."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from tunefleet.cli.campaigns import views as view
from tunefleet.cli.campaigns.config_file import CONFIG, Config, read
from tunefleet.cli.campaigns.dry_run import dry_run
from tunefleet.cli.campaigns.live_view import log_output
from tunefleet.cli.campaigns.run import run
from tunefleet.cli.console import Json, err, print_json, say
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import Yes, complete_campaign, confirm, connect
from tunefleet.lifecycle.cycle import StepName
from tunefleet.schemas.campaign import CampaignDetail, CampaignLine

app = typer.Typer(help="Continuous training, chunk by chunk.", invoke_without_command=True)

Campaign = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Campaign name or id (camp-…).", autocompletion=complete_campaign),
]
Cycle = Annotated[int | None, typer.Option("--cycle", metavar="N", min=0, help="Cycle number.")]


@app.callback()
def campaign(context: typer.Context, *, as_json: Json = False) -> None:
    """Continuous training, chunk by chunk."""
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
        typer.Argument(metavar="[NAME]…", help="Only these campaigns.", autocompletion=complete_campaign),
    ] = None,
    *,
    config: Config = CONFIG,
    as_json: Json = False,
) -> None:
    """Create or update the campaigns in a file and start them; without a file, start existing campaigns.

    Changes take effect at the next cycle, except budget limits, which take effect immediately. A campaign with
    `enabled: false` is paused. Campaigns that are not in the file are left unchanged.
    """
    # A --config that does not exist is an error, not a reason to start existing campaigns.
    if names and not config.exists() and config == CONFIG:
        _start_existing(names, as_json=as_json)
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
    say("Follow: tunefleet campaign logs -f NAME", style="dim")


def _start_existing(names: list[str], *, as_json: bool) -> None:
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
        say("No campaigns yet. Create one with `tunefleet campaign start --config FILE`.")


@examples("tunefleet campaign show daily")
def show(name: Campaign, *, as_json: Json = False) -> None:
    """Show a campaign: current activity, budget, newest cycles."""
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
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until Ctrl-C.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=1000, help="Number of lines to show, from the end.")
    ] = 200,
    cycle: Cycle = None,
    as_json: Json = False,
) -> None:
    """Print the log of a campaign. With --json, each line is a JSON object.

    With --follow, a terminal shows a progress bar below the log.
    """
    shown = log_output(as_json=as_json)
    with connect(patience_s=30.0, refused_s=None) if follow else connect() as client:
        found = client.campaigns.log(name, limit=lines, cycle=cycle)
        for line in found.lines:
            shown.line(line)
        if not follow:
            if not found.lines:
                err().print(f"Campaign {name} has no log lines yet.")
            return
        try:
            with shown:
                for each in client.campaigns.watch(name, after=found.next_id, cycle=cycle):
                    shown.line(each) if isinstance(each, CampaignLine) else shown.show(each)
        except KeyboardInterrupt:
            err().print(f"\nThe campaign keeps running. Follow it again with `tunefleet campaign logs -f {name}`.")
            raise typer.Exit(ExitCode.INTERRUPTED) from None


@examples("tunefleet campaign pause daily")
def pause(name: Campaign, *, as_json: Json = False) -> None:
    """Pause a campaign: no further step starts. Training at a provider continues, and its result is collected later."""
    with connect() as client:
        detail = client.campaigns.pause(name)
    print_json(detail) if as_json else _say_status(detail)


@examples("tunefleet campaign resume daily")
def resume(name: Campaign, *, as_json: Json = False) -> None:
    """Resume a paused campaign."""
    with connect() as client:
        detail = client.campaigns.resume(name)
    print_json(detail) if as_json else _say_status(detail)


@examples("tunefleet campaign stop daily --yes")
def stop(name: Campaign, *, yes: Yes = False, as_json: Json = False) -> None:
    """Stop a campaign: its current cycle is abandoned and its task cancelled, but its models are kept."""
    confirm(f"Stop campaign {name} and abandon its running cycle?", yes=yes)
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
        typer.Option("--from", metavar="STEP", help="Step to restart from; default: the failed step."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Retry a held campaign or a failed cycle from the failed step, with the current configuration.

    If training failed at an external provider, it is ordered and paid for again.
    """
    with connect() as client:
        detail = client.campaigns.retry(name, cycle=cycle, step=step)
    print_json(detail) if as_json else _say_status(detail)


@examples("tunefleet campaign remerge daily", "tunefleet campaign remerge daily --cycle 3")
def remerge(name: Campaign, *, cycle: Cycle = None, as_json: Json = False) -> None:
    """Merge, publish and record the model of a cycle again; default: the newest cycle."""
    with connect() as client:
        detail = client.campaigns.remerge(name, cycle=cycle)
    if as_json:
        print_json(detail)
        return
    number = detail.cycle.number if cycle is None and detail.cycle is not None else cycle
    say(f"Merging the model of cycle {number} of {detail.name} again. Follow: tunefleet campaign logs -f {detail.name}")


@examples("tunefleet campaign rollback daily", "tunefleet campaign rollback daily --to 2")
def rollback(
    name: Campaign,
    *,
    to: Annotated[
        int | None,
        typer.Option("--to", metavar="VERSION", min=1, help="Version to promote; default: the previous version."),
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Promote an earlier model version: the next cycle starts from it and is compared with it."""
    confirm(f"Roll {name} back to {'the previous version' if to is None else f'version {to}'}?", yes=yes)
    with connect() as client:
        made = client.campaigns.rollback(name, version=to)
    print_json(made) if as_json else say(view.promoted(made, "promoted again"))


@examples("tunefleet campaign lineage daily")
def lineage(
    name: Campaign,
    *,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="Maximum number of cycles.")] = 10,
    as_json: Json = False,
) -> None:
    """Show the lineage of each cycle's model: chunk, task, adapter, evaluation, merged model."""
    with connect() as client:
        found = client.campaigns.lineage(name, limit=limit).items
    if as_json:
        print_json(found)
        return
    if not found:
        say(f"Campaign {name} has no cycles yet.")
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
