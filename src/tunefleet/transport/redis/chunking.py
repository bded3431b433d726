"""An answer in parts: one entry for each dispatch, command and wish, and one that closes the answer.

A dispatch has the fields that the Worker Guide's dispatch message has; what only we need is under `offer`. What is too
large for Redis is named by its digest.
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
    """Return the time as the documented events have it."""
    return datetime.now(UTC).isoformat()


def dumps(value: Any) -> str:
    """Write JSON."""
    return orjson.dumps(value).decode()


def dispatch(offer: Offer, worker_id: str) -> Entry:
    """Return the entry that carries an offer."""
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
    """Return what a dispatch says beside the task itself."""
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
    """Read a dispatch that is here as a whole."""
    children = [
        {**child, "name": child.get("metadata", {}).get("name", "")}
        for child in orjson.loads(entry.get("merged_children") or b"[]")
    ]
    spec = orjson.loads(entry["task"])["spec"]
    return readable({**orjson.loads(entry["offer"]), "spec": spec, "merged": children})


def wishes(commands: Iterable[Command], desired: Iterable[Desired]) -> list[Entry]:
    """Return the entries that carry commands and desired states."""
    return [
        *({"type": COMMAND, "body": command.model_dump_json()} for command in commands),
        *({"type": DESIRED, "body": wish.model_dump_json()} for wish in desired),
    ]


def closing(reply: ExchangeReply) -> Entry:
    """Return the entry that says what else there is, and how many parts came before it."""
    return {
        "type": REPLY,
        "offers": str(len(reply.offers)),
        "wishes": str(len(reply.commands) + len(reply.desired)),
        "body": reply.model_dump_json(exclude=_APART, exclude_defaults=True),
    }


def reply_of(body: str, offers: Iterable[Offer], told: Iterable[Mapping[str, str]]) -> ExchangeReply:
    """Put an answer together again."""
    told = list(told)
    rest = ExchangeReply.model_validate_json(body)
    return rest.model_copy(
        update={
            "offers": tuple(offers),
            "commands": tuple(Command.model_validate_json(e["body"]) for e in told if e["type"] == COMMAND),
            "desired": tuple(Desired.model_validate_json(e["body"]) for e in told if e["type"] == DESIRED),
        }
    )


def refusal(error: TunefleetError) -> Entry:
    """Return the entry that answers with an error."""
    told = {"code": error.code, "message": error.message, "hint": error.hint}
    return {"type": REPLY, "offers": "0", "wishes": "0", "error": json.dumps(told)}


def raised(text: str) -> TunefleetError:
    """Return the error that a refusal stands for; a server whose store is away has a bad moment, as over HTTP."""
    told = json.loads(text)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TunefleetError)]
    simple = {kind.code: kind for kind in kinds if kind.__init__ is TunefleetError.__init__}
    kind = UnreachableError if told["code"] == errors.StoreError.code else simple.get(told["code"], UnreachableError)
    return kind(told["message"], hint=told.get("hint"))
