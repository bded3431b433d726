"""Replies in parts: one entry per dispatch, command and desired state, and a closing entry.

A dispatch has the fields of the Worker Guide's dispatch message; additional data is under `offer`. Payloads that are
too large for Redis are replaced by their digest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from tunefleet import errors
from tunefleet.errors import TunefleetError, UnreachableError
from tunefleet.schemas.worker_link import Command, Desired, ExchangeReply, MergedTask, Offer, readable
from tunefleet.transport.redis.keys import COMMAND, DESIRED, REPLY, TASK

Entry = dict[str, str]
_APART: Final = {"offers", "commands", "desired"}


def now_text() -> str:
    """Return the time in the format of the documented events."""
    return datetime.now(UTC).isoformat()


def dumps(value: Any) -> str:
    """Serialize to JSON."""
    return orjson.dumps(value).decode()


def dispatch(offer: Offer, worker_id: str) -> Entry:
    """Return the entry for an offer."""
    document = {
        "apiVersion": "tunefleet/v1",
        "metadata": {"name": offer.name, "workflow_id": offer.workflow_id},
        "spec": offer.spec,
    }
    entry = about(offer, worker_id)
    entry["task"] = dumps(document)
    entry["offer"] = offer.model_dump_json(exclude={"spec", "merged"})
    if offer.merged:
        entry["merged_children"] = dumps([_child(merged) for merged in offer.merged])
    return entry


def about(offer: Offer, worker_id: str) -> Entry:
    """Return the fields of a dispatch besides the task itself."""
    return {
        "type": TASK,
        "task_id": offer.task_id,
        "task_type": offer.kind,
        "assigned_worker": worker_id,
        "dispatched_at": now_text(),
        "parent_task_id": "",
    }


def _child(merged: MergedTask) -> dict[str, Any]:
    child = merged.model_dump(mode="json")
    return {**child, "metadata": {"name": child.pop("name")}}


def offer_of(entry: Mapping[str, str]) -> Offer:
    """Parse a complete dispatch."""
    children = [
        {**child, "name": child.get("metadata", {}).get("name", "")}
        for child in orjson.loads(entry.get("merged_children") or b"[]")
    ]
    spec = orjson.loads(entry["task"])["spec"]
    return readable({**orjson.loads(entry["offer"]), "spec": spec, "merged": children})


def wishes(commands: Iterable[Command], desired: Iterable[Desired]) -> list[Entry]:
    """Return the entries for commands and desired states."""
    return [
        *({"type": COMMAND, "body": command.model_dump_json()} for command in commands),
        *({"type": DESIRED, "body": wish.model_dump_json()} for wish in desired),
    ]


def closing(reply: ExchangeReply) -> Entry:
    """Return the entry with the rest of the reply and the number of its parts."""
    return {
        "type": REPLY,
        "offers": str(len(reply.offers)),
        "wishes": str(len(reply.commands) + len(reply.desired)),
        "body": reply.model_dump_json(exclude=_APART, exclude_defaults=True),
    }


def reply_of(body: str, offers: Iterable[Offer], state_entries: Iterable[Mapping[str, str]]) -> ExchangeReply:
    """Reassemble a reply."""
    state_entries = list(state_entries)
    rest = ExchangeReply.model_validate_json(body)
    return rest.model_copy(
        update={
            "offers": tuple(offers),
            "commands": tuple(Command.model_validate_json(e["body"]) for e in state_entries if e["type"] == COMMAND),
            "desired": tuple(Desired.model_validate_json(e["body"]) for e in state_entries if e["type"] == DESIRED),
        }
    )


def refusal(error: TunefleetError) -> Entry:
    """Return the entry for an error."""
    state_entries = {"code": error.code, "message": error.message, "hint": error.hint}
    return {"type": REPLY, "offers": "0", "wishes": "0", "error": json.dumps(state_entries)}


def raised(text: str) -> TunefleetError:
    """Return the exception for an error entry; a database error of the server is retryable, as over HTTP."""
    state_entries = json.loads(text)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TunefleetError)]
    simple = {kind.code: kind for kind in kinds if kind.__init__ is TunefleetError.__init__}
    kind = (
        UnreachableError
        if state_entries["code"] == errors.StoreError.code
        else simple.get(state_entries["code"], UnreachableError)
    )
    return kind(state_entries["message"], hint=state_entries.get("hint"))
