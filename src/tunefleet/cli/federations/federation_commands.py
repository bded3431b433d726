"""`tunefleet federation`: federated training of one adapter by many workers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tunefleet.cli.console import Json, err, print_json, say, show_warnings
from tunefleet.cli.federations import views as view
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import (
    Set,
    Yes,
    complete_federation,
    confirm,
    connect,
    one_federation,
    parse_duration,
    parse_sets,
)
from tunefleet.errors import InputError

app = typer.Typer(help="Federated training: many workers, each on its own data.", invoke_without_command=True)

Federation = Annotated[
    str,
    typer.Argument(
        metavar="FEDERATION",
        help="Federation id (fed-…), a unique prefix, or its number.",
        autocompletion=complete_federation,
    ),
]
_STANDARD_INPUT = "-"


@app.callback()
def federation(context: typer.Context, *, as_json: Json = False) -> None:
    """Federated training: many workers, each on its own data."""
    if context.invoked_subcommand is None:
        ls(as_json=as_json)


@examples(
    "tunefleet federation create --name gsm8k --min-workers 3",
    "tunefleet federation create federation.yaml --strategy fedavg_exact",
    "tunefleet federation create --participants ada,bob,eve --deadline 30m --rounds 20",
)
def create(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="YAML file with these options; - reads standard input.")
    ] = None,
    *,
    name: Annotated[str | None, typer.Option("--name", help="Display name.")] = None,
    base_model: Annotated[
        str | None,
        typer.Option("--base-model", help="Base model of the adapter; default: the base model of the first update."),
    ] = None,
    strategy: Annotated[
        str | None, typer.Option("--strategy", help="Aggregation strategy: fedavg, fedavg_exact, krum …")
    ] = None,
    min_workers: Annotated[int | None, typer.Option("--min-workers", help="Updates required for a round.")] = None,
    max_workers: Annotated[int | None, typer.Option("--max-workers", help="Maximum number of workers.")] = None,
    participants: Annotated[
        str | None, typer.Option("--participants", metavar="NAME,…", help="Names of the participants; default: open.")
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option("--deadline", metavar="TIME", help="Maximum time to wait for more updates, such as 10m."),
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Number of rounds.")] = None,
    sync_every: Annotated[int | None, typer.Option("--sync-every", help="Training steps between uploads.")] = None,
    mixed_ranks: Annotated[
        bool | None, typer.Option("--mixed-ranks", help="Allow different LoRA ranks and alphas.")
    ] = None,
    own_tokens: Annotated[
        bool | None, typer.Option("--own-tokens", help="Require a separate token for each worker.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="Pushed dataset to split into chunks.")] = None,
    chunk_size: Annotated[int | None, typer.Option("--chunk-size", help="Rows per chunk.")] = None,
    sets: Set = None,
    hold: Annotated[bool, typer.Option("--hold", help="Create the federation without starting it.")] = False,
    as_json: Json = False,
) -> None:
    """Create a federation and print the URL for its workers."""
    given = {
        "name": name,
        "base_model": base_model,
        "strategy.name": strategy,
        "min_workers": min_workers,
        "max_workers": max_workers,
        "participants": None if participants is None else _names(participants),
        "deadline_s": None if deadline is None else parse_duration(deadline),
        "rounds": rounds,
        "sync_every_steps": sync_every,
        "mixed_ranks": mixed_ranks,
        "own_tokens": own_tokens,
        "dataset": data,
        "chunk_size": chunk_size,
    }
    # Options win over --set, and both over the file.
    spec = _read(file, {**parse_sets(sets), **{key: value for key, value in given.items() if value is not None}})
    with connect() as client:
        made = client.federations.create(spec, start=not hold)
        url = client.url
    show_warnings(spec.remarks)
    if as_json:
        print_json(made)
        return
    named = Text() if made.name == made.id else Text.assemble((made.name, "head"), " as ")
    say(Text.assemble("Created ", named, (made.id, "id"), f", number {made.number}."))
    if spec.own_tokens:
        say(f"Each worker needs its own URL: `tunefleet federation token {made.id} --for NAME` prints it.")
    else:
        say(view.url_with_token(url, made.token))
        say(
            "Workers need only this URL, which is valid for this federation only. To show it again: "
            f"tunefleet federation token {made.id}",
            style="dim",
        )
    if hold:
        say(f"Start: tunefleet federation start {made.id}", style="dim")


def _read(file: str | None, overrides: Mapping[str, Any]) -> Any:
    # Imported here: the spec parser takes 50 ms, which `ls` and `show` do not need.
    from tunefleet.spec.documents.federation_file import parse_federation
    from tunefleet.spec.file_decoder import decode_file

    if file is None:
        return parse_federation("", overrides=overrides, filename="the options")
    if file == _STANDARD_INPUT:
        text = decode_file(sys.stdin.buffer.read(), "standard input")
        return parse_federation(text, overrides=overrides, filename="standard input")
    path = Path(file).expanduser()
    try:
        text = decode_file(path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise InputError(
            f"File {path} not found.",
            hint="FILE must be a YAML file; use --name for the name and --set for other fields.",
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read.", hint=str(error)) from error
    return parse_federation(text, overrides=overrides, filename=file)


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


@examples("tunefleet federation ls")
def ls(*, as_json: Json = False) -> None:
    """List federations, newest first."""
    with connect() as client:
        found = client.federations.list(limit=1000).items
    if as_json:
        print_json(found)
    elif found:
        say(view.federation_table(found))
    else:
        say("No federations yet. Create one with `tunefleet federation create`.")


@examples("tunefleet federation show fed-3f9c0a7be211", "tunefleet federation show 3 --json")
def show(federation: Federation, *, as_json: Json = False) -> None:
    """Show a federation with its rounds and workers."""
    with connect() as client:
        detail = client.federations.get(one_federation(client, federation))
    if as_json:
        print_json(detail)
        return
    for part in view.detail(detail):
        say(part)


@examples("tunefleet federation versions 3", "tunefleet federation versions 3 7")
def versions(
    federation: Federation,
    version: Annotated[int | None, typer.Argument(metavar="VERSION", help="Show the details of this version.")] = None,
    *,
    as_json: Json = False,
) -> None:
    """List adapter versions, or show one with its contributions, weights and rejected updates."""
    if version is not None:
        _show_version(federation, version, as_json=as_json)
        return
    with connect() as client:
        found = client.federations.versions(one_federation(client, federation), limit=1000).items
    if as_json:
        print_json(found)
    elif found:
        say(view.version_table(found))
    else:
        say("No versions yet. The first round has not been published.")


def _show_version(federation: str, version: int, *, as_json: bool) -> None:
    with connect() as client:
        found = client.federations.version(one_federation(client, federation), version)
    if as_json:
        print_json(found)
        return
    for part in view.version_detail(found):
        say(part)


@examples("tunefleet federation rollback 3 6")
def rollback(
    federation: Federation,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="Version to restore.")],
    *,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Publish an earlier version again as the newest one."""
    confirm(f"Roll federation {federation} back to version {version}?", yes=yes)
    with connect() as client:
        made = client.federations.rollback(one_federation(client, federation), version)
    if as_json:
        print_json(made)
    else:
        say(f"Published version {version} again as version {made.version}; workers fetch it at their next poll.")


@examples("tunefleet federation start 3")
def start(federation: Federation, *, as_json: Json = False) -> None:
    """Start or resume a federation."""
    with connect() as client:
        detail = client.federations.start(one_federation(client, federation))
    print_json(detail) if as_json else say(f"{detail.name} is {detail.status}.")


@examples("tunefleet federation pause 3")
def pause(federation: Federation, *, as_json: Json = False) -> None:
    """Pause a federation: updates are still accepted, but no round is aggregated."""
    with connect() as client:
        detail = client.federations.pause(one_federation(client, federation))
    print_json(detail) if as_json else say(f"{detail.name} is {detail.status}.")


@examples("tunefleet federation cancel 3 --yes")
def cancel(federation: Federation, *, yes: Yes = False, as_json: Json = False) -> None:
    """Cancel a federation permanently; its versions are kept."""
    confirm(f"Cancel federation {federation} permanently?", yes=yes)
    with connect() as client:
        detail = client.federations.cancel(one_federation(client, federation))
    print_json(detail) if as_json else say(f"{detail.name} is {detail.status}.")


@examples("tunefleet federation rm 3 --yes")
def rm(federation: Federation, *, yes: Yes = False, as_json: Json = False) -> None:
    """Remove an ended federation and its versions."""
    confirm(f"Remove federation {federation} with all its versions?", yes=yes)
    with connect() as client:
        client.federations.remove(one_federation(client, federation))
    if as_json:
        print_json({"removed": [federation]})
    else:
        say(f"Removed {federation}.")


@examples(
    "tunefleet federation token 3",
    "tunefleet federation token 3 --for lab-3",
    "tunefleet federation token 3 --replace",
    "tunefleet federation token 3 --replace --keep-old 1h",
)
def token(
    federation: Federation,
    *,
    worker: Annotated[
        str | None, typer.Option("--for", metavar="NAME", help="Print a token for this worker only.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Revoke the token and print a new one.")] = False,
    keep_old: Annotated[
        str | None, typer.Option("--keep-old", metavar="TIME", help="How long the old token stays valid, such as 1h.")
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Print the URL for workers with its token, or replace a leaked token."""
    old_for_s = 0.0 if keep_old is None else parse_duration(keep_old)
    if old_for_s and not replace:
        raise InputError("--keep-old applies only when a token is replaced.", hint="Add --replace.")
    if worker is not None and replace:
        raise InputError(
            "--for and --replace cannot be combined.",
            hint="Replace the token first; this also revokes the tokens of individual workers.",
        )
    if replace:
        when = "immediately" if not old_for_s else f"in {keep_old}"
        confirm(f"Revoke the token of federation {federation} {when}?", yes=yes)
    with connect() as client:
        if replace:
            found = client.federations.replace_token(one_federation(client, federation), old_for_s=old_for_s)
        else:
            found = client.federations.token(one_federation(client, federation), worker=worker)
        url = client.url
    full_url = view.url_with_token(url, found.token)
    if as_json:
        print_json({**found.model_dump(mode="json"), "url": full_url})
        return
    say(full_url)
    # On standard error, because scripts read the URL from standard output.
    if found.old_until is not None:
        err().print(Text(f"The old token is valid until {found.old_until.astimezone():%Y-%m-%d %H:%M}.", style="dim"))
    name = found.worker or "…"
    callback = f'FederatedCallback("{url}", job_id="{found.id}", worker_id="{name}", token="{found.token}")'
    err().print(Text(callback, style="dim"))


for _function, _name in (
    (create, "create"),
    (ls, "ls"),
    (show, "show"),
    (versions, "versions"),
    (rollback, "rollback"),
    (start, "start"),
    (pause, "pause"),
    (cancel, "cancel"),
    (rm, "rm"),
    (token, "token"),
):
    add(app, _function, _name)
