"""Requests to Gradients and its responses; unknown response fields are ignored."""

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
# Request fields for the files of a task with fixed datasets.
FIXED: Final = ("training_data", "synthetic_data", "test_data")
SUCCESS: Final = "success"
FAILURES: Final = frozenset({"failure", "failure_finding_nodes", "prep_task_failure", "node_training_failure"})
UNDER_WAY: Final = frozenset({
    "pending", "preparing_data", "idle", "ready", "looking_for_nodes", "delayed", "evaluating", "preevaluation",
    "training",
})  # fmt: skip
_MAX_REASON: Final = 300
_SKEW_S: Final = 3600.0
_QUERY: Final = re.compile(r"\?\S+")
_FIELDS: Final = {"field_instruction": "instruction", "field_input": "input", "field_output": "output"}
_CHAT: Final = {
    "chat_column": "conversations",
    "chat_role_field": "role",
    "chat_content_field": "content",
    "chat_user_reference": "user",
    "chat_assistant_reference": "assistant",
}


def _number(value: Any) -> float | None:
    """Return a finite number; anything else, such as NaN, counts as missing."""
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


class Response(BaseModel):
    """A response of Gradients, with the fields that are used."""

    model_config = ConfigDict(extra="ignore", frozen=True)


T = TypeVar("T", bound=Response)


class NewTask(Response):
    """Response to a new task."""

    success: bool | None = None
    task_id: TextOrNone = None
    account_id: TextOrNone = None
    message: Any = None
    detail: Any = None


class TaskState(Response):
    """A task, alone or in the list of an account."""

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
        """Whether the task has ended."""
        return self.status == SUCCESS or self.status in FAILURES

    @property
    def rows(self) -> str | None:
        """The link to its rows; None if it has none, for example with fixed datasets."""
        links = (each for each in (self.ds_repo, self.training_data) if each is not None and "/" in each)
        return next(links, None)

    def may_be_since(self, at: float | None) -> bool:
        """Return whether it may have been created after a Unix time; clocks may differ by an hour."""
        if at is None or self.created_at is None:
            return True
        made = self.created_at if self.created_at.tzinfo is not None else self.created_at.replace(tzinfo=UTC)
        return made.timestamp() > at - _SKEW_S

    @property
    def took_s(self) -> float | None:
        """Duration in seconds; None if not reported."""
        begun = self.started_at or self.created_at
        if begun is None or self.finished_at is None:
            return None
        # Naive and aware times cannot be subtracted.
        if (begun.tzinfo is None) != (self.finished_at.tzinfo is None):
            return None
        return max(0.0, (self.finished_at - begun).total_seconds())


class Submission(Response):
    """A model submitted by one of the trainers."""

    hotkey: TextOrNone = None
    quality_score: Number = None
    test_loss: Number = None
    synth_loss: Number = None
    repo: TextOrNone = None
    rank: Number = None
    score_reason: TextOrNone = None


class Hotkeys(Response):
    """All submissions for a task."""

    hotkey_details: tuple[Submission, ...] | None = None


class Breakdown(Response):
    """The scores of the submissions, from another endpoint."""

    miner_results: tuple[Submission, ...] | None = None


def read(kind: type[T], body: Any) -> T:
    """Parse a response.

    Raises:
        UnreachableError: If it does not match: a proxy between us and Gradients may have answered.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        where = ", ".join(".".join(map(str, each["loc"])) or "all of it" for each in error.errors())
        raise UnreachableError(f"Gradients returned an unexpected {kind.__name__}: {where}.") from error


def request_of(order: Order, repo: str) -> tuple[str, dict[str, Any]]:
    """Return the path and body of an order.

    Raises:
        CycleFailed: If the order has no link to its rows.
    """
    body: dict[str, Any] = {"model_repo": repo, "hours_to_complete": _hours(order.hours), "file_format": "s3"}
    if order.task_type == "InstructTextWithFixedDatasets":
        missing = [role for role in FIXED if role not in order.uploads]
        if missing:
            raise CycleFailed(f"The order {order.key} has no link to its {' and '.join(missing)}.")
        files = {role: order.uploads[role] for role in FIXED}
        return CREATE_FIXED, {**body, **_FIELDS, **files, "ds_repo": None}
    if order.data.url is None:
        raise CycleFailed(f"The order {order.key} has no link to its rows.")
    body["ds_repo"] = order.data.url
    if order.task_type == "Chat":
        return CREATE_CHAT, {**body, **_CHAT, "chat_template": order.spec.chat_template}
    return CREATE, {**body, **_FIELDS}


def _hours(hours: float) -> int | float:
    """Return an int where possible: older servers accept only integers."""
    return int(hours) if float(hours).is_integer() else hours


def reason_in(body: Any) -> str:
    """Return the reason in an error response for display, with the query strings of links removed."""
    reason = body
    if isinstance(body, Mapping):
        reason = next((body[key] for key in ("detail", "message", "error") if body.get(key)), None)
    if isinstance(reason, list):
        reason = "; ".join(_faults(reason))
    text = printable(str(reason)) if reason else "no reason was given"
    return _QUERY.sub("?…", text)[:_MAX_REASON]


def _faults(faults: list[Any]) -> Iterator[str]:
    # Only place and message: FastAPI's error list also quotes the input.
    for each in faults:
        if isinstance(each, Mapping):
            yield f"{'.'.join(map(str, each.get('loc', ())))}: {each.get('msg', 'wrong')}"
        else:
            yield str(each)
