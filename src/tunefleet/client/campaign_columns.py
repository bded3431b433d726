"""Checks the columns of a campaign's local data files before anything is uploaded or ordered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tunefleet.analysis.dataset.messages import ROLES, kind_of
from tunefleet.client.local_data import first_rows
from tunefleet.errors import DataError
from tunefleet.spec.documents.campaign_data import INSTRUCTION_FIELDS
from tunefleet.spec.value_preview import nearest

if TYPE_CHECKING:
    from tunefleet.spec.documents.campaign_data import CampaignDatasetSpec

_MOST_SHOWN: Final = 20
_SPEAKERS: Final = (("chat_user_reference", "user"), ("chat_assistant_reference", "assistant"))
Rows = Sequence[Mapping[str, Any]]
Errors = Iterator[tuple[str, str, str | None]]


def column_errors(dataset: CampaignDatasetSpec, file: Path, *, chat: bool) -> Errors:
    """Yield what a dataset says of its file that the first rows do not have: key, what is wrong, what to write.

    A column is missing if none of these rows has it: a worker would leave all of them out.

    Args:
        dataset: With the names of its columns.
        file: Where it is; nothing is yielded for one that only a worker can read.
        chat: Whether its rows are conversations.
    """
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
    said = (each.get(dataset.chat_role_field) for each in messages)
    roles = list(dict.fromkeys(each for each in said if isinstance(each, str)))
    # Other usual names of the two are known to the reader of rows, so that the default fits them, too.
    known = {ROLES.get(each.lower(), each.lower()) for each in roles}
    for key, default in _SPEAKERS:
        named = getattr(dataset, key)
        if named not in roles and not (named == default and default in known):
            where = f"field {dataset.chat_role_field!r} of the messages of {origin} (roles: {_listed(roles)})"
            yield _missing(key, "role", named, where, roles)


def _missing(key: str, what: str, named: str, where: str, known: list[str]) -> tuple[str, str, str]:
    guess = nearest(named, known)
    hint = f"did you mean {guess}?" if guess is not None else f"name a {what} that is there"
    return key, f"{what} {named!r} not found in {where}", hint


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    more = len(shown) - _MOST_SHOWN
    return ", ".join(shown[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "") or "none"
