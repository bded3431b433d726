"""`tunefleet models`: models of campaigns and their versions."""

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
from tunefleet.lifecycle.cycle import Stage

app = typer.Typer(help="List, promote and export the models of campaigns.", invoke_without_command=True)

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Model name or OWNER/NAME; it is the name of its campaign.", autocompletion=complete_model
    ),
]
Version = Annotated[
    int | None,
    typer.Argument(
        metavar="[VERSION]", min=1, help="Version number; default: the promoted version, or else the newest."
    ),
]


@app.callback()
def models(context: typer.Context, *, as_json: Json = False) -> None:
    """List, promote and export the models of campaigns."""
    if context.invoked_subcommand is None:
        ls(as_json=as_json)


@examples("tunefleet models ls", "tunefleet models ls daily --stage promoted")
def ls(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Filter by model.", autocompletion=complete_model)
    ] = None,
    *,
    stage: Annotated[Stage | None, typer.Option("--stage", help="Filter by stage.")] = None,
    as_json: Json = False,
) -> None:
    """List model versions, newest first."""
    owner, name = (None, None) if model is None else _named(model)
    with connect() as client:
        found = client.models.list(name=name, owner=owner, stage=stage, limit=1000).items
    if as_json:
        print_json(found)
    elif found:
        say(view.model_table(found))
    else:
        say("No model matches." if model or stage else "No models yet. Campaigns create them.")


@examples("tunefleet models show daily", "tunefleet models show daily 3")
def show(model: Model, version: Version = None, *, as_json: Json = False) -> None:
    """Show a version: its location, lineage and evaluation."""
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
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Version number.")],
    *,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Promote a version even if it failed its gate; the next cycle starts from it."""
    owner, name = _named(model)
    confirm(f"Promote version {version} of {name}?", yes=yes)
    with connect() as client:
        found = client.models.promote(name, version, owner=owner)
    print_json(found) if as_json else say(view.promoted(found, "promoted"))


@examples("tunefleet models rollback daily")
def rollback(model: Model, *, yes: Yes = False, as_json: Json = False) -> None:
    """Promote the previously promoted version again."""
    owner, name = _named(model)
    confirm(f"Roll {name} back to the previously promoted version?", yes=yes)
    with connect() as client:
        found = client.models.rollback(name, owner=owner)
    print_json(found) if as_json else say(view.promoted(found, "promoted again"))


@examples("tunefleet models export daily", "tunefleet models export daily 3 --out ./model")
def export(
    model: Model,
    version: Version = None,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Target folder; default: ./MODEL-vVERSION.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
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
        # Before the download, which may take long.
        refuse_to_overwrite(folder, force=force)
        with transfer_bar() as on_progress:
            where = client.artifacts.fetch(artifact, folder, on_progress=on_progress)
    if as_json:
        print_json({"path": str(where.resolve()), "model": found.name, "version": found.version, "form": found.form})
    else:
        say(f"Downloaded version {found.version} of {found.name} to {where}.")


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
