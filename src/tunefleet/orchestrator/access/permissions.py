"""Who asks, and what they may do with a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tunefleet.db import DEFAULT_PROJECT
from tunefleet.errors import ForbiddenError


@dataclass(frozen=True, slots=True)
class Actor:
    """Somebody with an API key."""

    key_id: str
    owner: str
    role: str
    project: str = DEFAULT_PROJECT


# How the worker of a job is called that its own machine has registered; it has no row, so nothing is placed on it.
EXTERNAL: Final = "external:"
# Every worker on the Redis link: it has no key, and is known by its state folder.
REDIS_WORKER: Final = Actor("redis", "redis", "worker")


@dataclass(frozen=True, slots=True)
class AttemptActor:
    """A worker that reports for one attempt; it reaches the attempt's own results and inputs only."""

    attempt_id: str
    task_id: str
    worker_id: str
    project: str = DEFAULT_PROJECT


def has_quota(who: Who) -> bool:
    """Whether what is stored by whom must fit a quota: by people, and by jobs that anybody may register."""
    return isinstance(who, Actor) or who.worker_id.startswith(EXTERNAL)


Who = Actor | AttemptActor


def may_read(actor: Actor) -> None:
    """Refuse who may not read the project."""
    if actor.role not in {"admin", "member", "viewer"}:
        raise ForbiddenError(f"A {actor.role} key cannot read this.", hint="Use an admin, member or viewer key.")


def may_submit(actor: Actor) -> None:
    """Refuse who may not make rows."""
    if actor.role not in {"admin", "member"}:
        raise ForbiddenError(f"A {actor.role} key cannot change anything.", hint="Use an admin or member key.")


def may_change(actor: Actor, owner: str, what: str) -> None:
    """Refuse who may not change a row."""
    may_submit(actor)
    if actor.role != "admin" and actor.owner != owner:
        raise ForbiddenError(f"{what} belongs to {owner}.", hint="Ask the owner, or use an admin key.")


def may_administer(actor: Actor) -> None:
    """Refuse who is not an admin."""
    if actor.role != "admin":
        raise ForbiddenError(
            f"This takes an admin key; yours is a {actor.role} key.",
            hint="Ask an admin, or log in with an admin's key (`tunefleet login URL`).",
        )


def is_operator(actor: Actor) -> bool:
    """Whether somebody looks after all projects: an admin of the default one."""
    return actor.role == "admin" and actor.project == DEFAULT_PROJECT


def may_operate(actor: Actor) -> None:
    """Refuse who does not look after all projects."""
    may_administer(actor)
    if not is_operator(actor):
        raise ForbiddenError(
            f"This takes an admin key of the project {DEFAULT_PROJECT}; yours is of {actor.project}.",
            hint="Ask who looks after the server.",
        )
