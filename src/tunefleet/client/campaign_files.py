"""Campaigns with the files that they name: each file is uploaded once, and the campaign stores its digest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tunefleet.analysis.dataset.messages import ROLES, kind_of
from tunefleet.client import transfer
from tunefleet.client.call import Flow, ask, work
from tunefleet.client.routes import campaign_routes
from tunefleet.errors import DataError, Fault, ModelError, SpecError
from tunefleet.schemas.campaign import CampaignApplied
from tunefleet.spec.base import BUILTIN_PREFIX, hub_id_error, is_url, is_written_as_path
from tunefleet.spec.value_preview import nearest

if TYPE_CHECKING:
    from tunefleet.spec.documents.campaign_data import CampaignDatasetSpec
    from tunefleet.spec.documents.campaign_document import CampaignSpec

_MOST_SHOWN: Final = 20
_SPEAKERS: Final = (("chat_user_reference", "user"), ("chat_assistant_reference", "assistant"))


def named_files(spec: CampaignSpec, folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield the local files that a campaign names: key, path and kind.

    Args:
        folder: Base of relative paths: the folder of the campaign file.

    Raises:
        DataError: If a dataset does not exist.
        ModelError: If a model that can only be a path does not exist.
    """
    for key, named, path, kind in _places(spec, folder):
        if not path.exists():
            message, hint = _absent(key, named, path, kind)
            raise (DataError if kind == "dataset" else ModelError)(message, hint=hint)
        yield key, path, kind


def file_errors(
    spec: CampaignSpec, folder: Path, built_in: Mapping[int, Path] | None = None
) -> Iterator[tuple[str, str, str | None]]:
    """Yield the errors in files, folders and Hub ids that a campaign names: key, message, hint.

    Args:
        folder: As in `named_files`.
        built_in: Index of a dataset that ships with the package → its file.
    """
    # The import loads the schemas of all task kinds.

    local = dict(built_in or {})
    models = {"model_repo": spec.model_repo, "tokenizer_id": spec.tokenizer_id}
    for key, named, path, kind in _places(spec, folder):
        models.pop(key, None)
        if not path.exists():
            yield key, *_absent(key, named, path, kind)
        elif kind == "dataset":
            local[int(key.split(".")[1])] = path
    for key, model in models.items():
        if model is not None and not model.startswith(BUILTIN_PREFIX):
            yield from _id_errors(key, model, "name a model as ORG/NAME, or an existing folder")
    for number, dataset in enumerate(spec.datasets):
        if dataset.name is not None and not dataset.name.startswith(BUILTIN_PREFIX):
            there = (folder / Path(dataset.name).expanduser()).exists()
            hint = f"set path: {dataset.name}" if there else "name a dataset as ORG/NAME, or a file with path"
            yield from _id_errors(f"datasets.{number}.name", dataset.name, hint)
    for number, path in sorted(local.items()):
        for key, message, way in column_errors(spec.datasets[number], path, chat=spec.chats):
            yield f"datasets.{number}.{key}", message, way


def _id_errors(key: str, named: str, hint: str) -> Iterator[tuple[str, str, str]]:
    error = hub_id_error(named)
    if error is not None:
        yield key, f"{named!r} {error}: not a valid Hugging Face Hub id", hint


def _places(spec: CampaignSpec, folder: Path) -> Iterator[tuple[str, str, Path, str]]:
    for number, dataset in enumerate(spec.datasets):
        if dataset.path is not None and not is_url(dataset.path) and not dataset.path.startswith(BUILTIN_PREFIX):
            yield f"datasets.{number}.path", dataset.path, folder / Path(dataset.path).expanduser(), "dataset"
    for key, named in (("model_repo", spec.model_repo), ("tokenizer_id", spec.tokenizer_id)):
        if named is not None and ((path := folder / Path(named).expanduser()).is_dir() or is_written_as_path(named)):
            yield key, named, path, "model"


def _absent(key: str, named: str, path: Path, kind: str) -> tuple[str, str | None]:
    if kind == "dataset":
        hint = "Paths are relative to the folder of the file. Name a dataset of the Hub with `name`."
        return f"{key}: {named} not found at {path.absolute()}.", hint
    return f"{key}: {named} not found; there is no folder {path.absolute()}.", None


def send(
    campaigns: Mapping[str, CampaignSpec],
    folder: Path,
    *,
    start: bool = False,
    on_progress: transfer.OnProgress = transfer.ignore_progress,
) -> Flow[tuple[CampaignApplied, ...]]:
    """Create or update campaigns by name and upload the files they refer to; see `apply`.

    Args:
        campaigns: Configuration of each campaign, by name.
        folder: Folder of the campaign file.
        start: Also start campaigns that are paused, held or stopped.
        on_progress: Called with the progress of uploads.

    Raises:
        DataError: If a dataset does not exist.
        ModelError: If a model does not exist.
        SpecError: If a data file lacks a column that its campaign names, or a Hub id is invalid.
    """
    yield from work(lambda: _check(campaigns, folder))
    whole: dict[str, CampaignSpec] = {}
    for name, spec in campaigns.items():
        inputs: dict[str, str] = {}
        for key, file, kind in named_files(spec, folder):
            inputs[key] = (yield from transfer.push(file, kind=kind, on_progress=on_progress)).digest
        whole[name] = spec.model_copy(update={"inputs": inputs}) if inputs else spec
    return (yield from ask(campaign_routes.apply_campaigns(whole, start=start)))


def _check(campaigns: Mapping[str, CampaignSpec], folder: Path) -> None:
    for spec in campaigns.values():
        for _ in named_files(spec, folder):
            pass  # raises for a missing file
    errors = [
        Fault(f"{name}.{key}", message, hint=hint)
        for name, spec in campaigns.items()
        for key, message, hint in file_errors(spec, folder)
    ]
    if errors:
        raise SpecError(errors)


Rows = Sequence[Mapping[str, Any]]
Errors = Iterator[tuple[str, str, str | None]]


def column_errors(dataset: CampaignDatasetSpec, file: Path, *, chat: bool) -> Errors:
    """Yield columns that a dataset names and the first rows of its file do not have: key, message, hint.

    Args:
        dataset: The dataset with its column names.
        file: Its file; a file that only a worker can read yields nothing.
        chat: Whether its rows are conversations.
    """
    # Not at the head: both load the models of the spec, which no list needs.
    from tunefleet.client.local_data import first_rows
    from tunefleet.spec.documents.campaign_data import INSTRUCTION_FIELDS

    try:
        rows = first_rows(file)
    except DataError as error:
        yield "path", error.message, error.hint
        return
    if rows is None:
        return
    columns = list(dict.fromkeys(str(name) for row in rows for name in row))
    for key in ("chat_column",) if chat else INSTRUCTION_FIELDS:
        named = getattr(dataset, key)
        # Only a column that none of these rows has: the worker skips single rows without it.
        if named is not None and named not in columns:
            yield _missing(key, "column", named, f"{file.name} (columns: {_listed(columns)})", columns)
    if chat and dataset.chat_column in columns:
        yield from _message_errors(dataset, rows, file.name)


def _message_errors(dataset: CampaignDatasetSpec, rows: Rows, origin: str) -> Errors:
    column = dataset.chat_column
    chats = [row[column] for row in rows if isinstance(row.get(column), list)]
    if not chats:
        held = next((row[column] for row in rows if row.get(column) is not None), None)
        message = f"column {column!r} of {origin} holds {kind_of(held)}, not a list of messages"
        yield "chat_column", message, "name the column with the list of messages"
        return
    messages = [each for chat in chats for each in chat if isinstance(each, Mapping)]
    fields = list(dict.fromkeys(str(name) for each in messages for name in each))
    missing = [key for key in ("chat_role_field", "chat_content_field") if getattr(dataset, key) not in fields]
    for key in missing:
        where = f"the messages of {origin} (fields: {_listed(fields)})"
        yield _missing(key, "field", getattr(dataset, key), where, fields)
    if "chat_role_field" in missing:
        return
    role_values = (each.get(dataset.chat_role_field) for each in messages)
    roles = list(dict.fromkeys(each for each in role_values if isinstance(each, str)))
    # The dataset reader also maps other common names of these roles, so the default matches them, too.
    known = {ROLES.get(each.lower(), each.lower()) for each in roles}
    for key, default in _SPEAKERS:
        named = getattr(dataset, key)
        if named not in roles and not (named == default and default in known):
            where = f"field {dataset.chat_role_field!r} of the messages of {origin} (roles: {_listed(roles)})"
            yield _missing(key, "role", named, where, roles)


def _missing(key: str, what: str, named: str, where: str, known: list[str]) -> tuple[str, str, str]:
    guess = nearest(named, known)
    hint = f"did you mean {guess}?" if guess is not None else f"name an existing {what}"
    return key, f"{what} {named!r} not found in {where}", hint


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    more = len(shown) - _MOST_SHOWN
    return ", ".join(shown[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "") or "none"
