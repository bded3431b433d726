"""What Gradients is told, and what it says; what it adds to its answers one day is let pass."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from tunefleet.campaign.contract import CycleFailed, Order
from tunefleet.errors import UnreachableError, printable

CREATE: Final = "/v1/tasks/create"
CREATE_CHAT: Final = "/v1/tasks/create_chat"
CREATE_FIXED: Final = "/v1/tasks/create_with_fixed_datasets"
# The files of a task with datasets of its own, as the request calls them.
FIXED: Final = ("training_data", "synthetic_data", "test_data")
SUCCESS: Final = "success"
FAILURES: Final = frozenset({"failure", "failure_finding_nodes", "prep_task_failure", "node_training_failure"})
UNDER_WAY: Final = frozenset({
    "pending", "preparing_data", "idle", "ready", "looking_for_nodes", "delayed", "evaluating", "preevaluation",
    "training",
})  # fmt: skip
_MOST_SAID: Final = 300
_SKEW_S: Final = 3600.0
_QUERY: Final = re.compile(r"\?\S+")


def _number(value: Any) -> float | None:
    """Return a number that can be compared; what is none, such as NaN, counts as not said."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _moment(value: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


Number = Annotated[float | None, BeforeValidator(_number)]
Moment = Annotated[datetime | None, BeforeValidator(_moment)]
TextOrNone = Annotated[str | None, BeforeValidator(_text)]


class Answer(BaseModel):
    """What Gradients says; only what is read of it is named."""

    model_config = ConfigDict(extra="ignore", frozen=True)


T = TypeVar("T", bound=Answer)


class NewTask(Answer):
    """Of a task that was asked for."""

    success: bool | None = None
    task_id: TextOrNone = None
    account_id: TextOrNone = None
    message: Any = None
    detail: Any = None


class TaskState(Answer):
    """Of a task, alone or in the list of an account's."""

    id: TextOrNone = None
    account_id: TextOrNone = None
    status: str = ""
    base_model_repository: TextOrNone = None
    trained_model_repository: TextOrNone = None
    ds_repo: TextOrNone = None
    training_data: TextOrNone = None
    started_at: Moment = None
    finished_at: Moment = None
    created_at: Moment = None
    hours_to_complete: Number = None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.status == SUCCESS or self.status in FAILURES

    @property
    def rows(self) -> str | None:
        """The link to its rows; null if it does not say where they are, as of one with datasets of its own."""
        links = (each for each in (self.ds_repo, self.training_data) if each is not None and "/" in each)
        return next(links, None)

    def may_be_since(self, at: float | None) -> bool:
        """Return whether it may have been made since a moment, in Unix time; clocks may differ by an hour."""
        if at is None or self.created_at is None:
            return True
        made = self.created_at if self.created_at.tzinfo is not None else self.created_at.replace(tzinfo=UTC)
        return made.timestamp() > at - _SKEW_S

    @property
    def took_s(self) -> float | None:
        """How long it took, in seconds; null if that is not said."""
        begun = self.started_at or self.created_at
        if begun is None or self.finished_at is None:
            return None
        if (begun.tzinfo is None) != (self.finished_at.tzinfo is None):
            return None
        return max(0.0, (self.finished_at - begun).total_seconds())


class Submission(Answer):
    """What one of the trainers there has made."""

    hotkey: TextOrNone = None
    quality_score: Number = None
    test_loss: Number = None
    synth_loss: Number = None
    repo: TextOrNone = None
    rank: Number = None
    score_reason: TextOrNone = None


class Hotkeys(Answer):
    """All that were made for a task."""

    hotkey_details: tuple[Submission, ...] | None = None


class Breakdown(Answer):
    """The numbers alone, from another place."""

    miner_results: tuple[Submission, ...] | None = None


def read(kind: type[T], body: Any) -> T:
    """Return an answer as what it must be.

    Raises:
        UnreachableError: If it is something else: what is between us and Gradients may have answered.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        where = ", ".join(".".join(map(str, each["loc"])) or "all of it" for each in error.errors())
        raise UnreachableError(f"Gradients answers with what is no {kind.__name__}: {where}.") from error


def request_of(order: Order, repo: str) -> tuple[str, dict[str, Any]]:
    """Return where an order goes, and what it says.

    Raises:
        CycleFailed: If it has no link to its rows.
    """
    said: dict[str, Any] = {"model_repo": repo, "hours_to_complete": _hours(order.hours), "file_format": "s3"}
    if order.task_type == "InstructTextWithFixedDatasets":
        lacking = [role for role in FIXED if role not in order.uploads]
        if lacking:
            raise CycleFailed(f"The order {order.key} has no link to its {' and '.join(lacking)}.")
        files = {role: order.uploads[role] for role in FIXED}
        return CREATE_FIXED, {**said, **_FIELDS, **files, "ds_repo": None}
    if order.data.url is None:
        raise CycleFailed(f"The order {order.key} has no link to its rows.")
    said["ds_repo"] = order.data.url
    if order.task_type == "Chat":
        return CREATE_CHAT, {**said, **_CHAT, "chat_template": order.spec.chat_template}
    return CREATE, {**said, **_FIELDS}


_FIELDS: Final = {"field_instruction": "instruction", "field_input": "input", "field_output": "output"}
_CHAT: Final = {
    "chat_column": "conversations",
    "chat_role_field": "role",
    "chat_content_field": "content",
    "chat_user_reference": "user",
    "chat_assistant_reference": "assistant",
}


def _hours(hours: float) -> int | float:
    """A whole number where it is one: older servers take no other."""
    return int(hours) if float(hours).is_integer() else hours


def words_of(body: Any) -> str:
    """Return what an answer that refuses says, fit for a message; links in it lose what makes them work."""
    said = body
    if isinstance(body, Mapping):
        said = next((body[key] for key in ("detail", "message", "error") if body.get(key)), None)
    if isinstance(said, list):
        said = "; ".join(_faults(said))
    text = printable(str(said)) if said else "no reason was given"
    return _QUERY.sub("?…", text)[:_MOST_SAID]


def _faults(faults: list[Any]) -> Iterator[str]:
    # Such a list quotes what was sent, too.
    for each in faults:
        if isinstance(each, Mapping):
            yield f"{'.'.join(map(str, each.get('loc', ())))}: {each.get('msg', 'wrong')}"
        else:
            yield str(each)
