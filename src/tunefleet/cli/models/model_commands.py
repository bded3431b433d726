"""`tunefleet models`: what campaigns have made, and which version is in use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunefleet.cli.campaigns import views as view
from tunefleet.cli.console import Json, print_json, say
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import Yes, complete_model, confirm, connect
from tunefleet.cli.transfers import transfer_bar
from tunefleet.errors import InputError
from tunefleet.integrations.publishing.targets import refuse_to_overwrite
from tunefleet.lifecycle.model_version import Stage

app = typer.Typer(help="List, promote and export the models that campaigns have made.", invoke_without_command=True)

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Its name, or OWNER/NAME; it is called like its campaign.", autocompletion=complete_model
    ),
]
Version = Annotated[
    int | None, typer.Argument(metavar="[VERSION]", min=1, help="Default: the promoted one, or the newest.")
]


@app.callback()
def models(context: typer.Context, *, as_json: Json = False) -> None:
    """List, promote and export the models that campaigns have made."""
    if context.invoked_subcommand is None:
        ls(as_json=as_json)


@examples("tunefleet models ls", "tunefleet models ls daily --stage promoted")
def ls(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Only this one.", autocompletion=complete_model)
    ] = None,
    *,
    stage: Annotated[Stage | None, typer.Option("--stage", help="Only in this stage.")] = None,
    as_json: Json = False,
) -> None:
    """List versions of models, newest first."""
    owner, name = (None, None) if model is None else _named(model)
    with connect() as client:
        found = client.models.list(name=name, owner=owner, stage=stage, limit=1000).items
    if as_json:
        print_json(found)
    elif found:
        say(view.model_table(found))
    else:
        say("There are no such models." if model or stage else "No campaign has made a model yet.")


@examples("tunefleet models show daily", "tunefleet models show daily 3")
def show(model: Model, version: Version = None, *, as_json: Json = False) -> None:
    """Show a version: where it is, what it was made of, and how it was measured."""
    owner, name = _named(model)
    with connect() as client:
        found = client.models.get(name, version, owner=owner)
    if as_json:
        print_json(found)
        return
    for part in view.model_detail(found):
        say(part)


@examples("tunefleet models promote daily 3")
def promote(
    model: Model,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Which one.")],
    *,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Promote a version, whatever the gate said; the next cycle starts from it."""
    owner, name = _named(model)
    confirm(f"Promote version {version} of {name}?", yes=yes)
    with connect() as client:
        found = client.models.promote(name, version, owner=owner)
    print_json(found) if as_json else say(view.promoted(found, "promoted"))


@examples("tunefleet models rollback daily")
def rollback(model: Model, *, yes: Yes = False, as_json: Json = False) -> None:
    """Promote the version that was promoted before the one that is."""
    owner, name = _named(model)
    confirm(f"Go back to the version of {name} that was promoted before?", yes=yes)
    with connect() as client:
        found = client.models.rollback(name, owner=owner)
    print_json(found) if as_json else say(view.promoted(found, "promoted again"))


@examples("tunefleet models export daily", "tunefleet models export daily 3 --out ./model")
def export(
    model: Model,
    version: Version = None,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Where to; default: ./MODEL-vVERSION.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over what is there.")] = False,
    as_json: Json = False,
) -> None:
    """Download a version of a model from the server."""
    owner, name = _named(model)
    with connect(patience_s=10.0, refused_s=None) as client:
        found = client.models.get(name, version, owner=owner)
        artifact = found.location.get("artifact_id")
        if artifact is None:
            url = found.location.get("url")
            raise InputError(
                f"Version {found.version} of {found.name} is not on this server.",
                hint=f"It is at {url}." if url else None,
            )
        folder = out or Path(f"{found.name}-v{found.version}")
        refuse_to_overwrite(folder, force=force)
        with transfer_bar() as on_progress:
            where = client.artifacts.fetch(artifact, folder, on_progress=on_progress)
    if as_json:
        print_json({"path": str(where.resolve()), "model": found.name, "version": found.version, "form": found.form})
    else:
        say(f"Fetched version {found.version} of {found.name} to {where}.")


def _named(model: str) -> tuple[str | None, str]:
    owner, slash, name = model.rpartition("/")
    return (owner if slash else None), name


for _function, _name in (
    (ls, "ls"),
    (show, "show"),
    (promote, "promote"),
    (rollback, "rollback"),
    (export, "export"),
):
    add(app, _function, _name)
