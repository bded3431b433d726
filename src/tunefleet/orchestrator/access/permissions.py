"""Authenticated callers, and checks of what they may do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tunefleet.db import DEFAULT_PROJECT
from tunefleet.db.federations.federations import TokenRow
from tunefleet.errors import ForbiddenError

# Topic of revoked keys and federation tokens: every server drops its cached keys.
KEYS: Final = "keys"


@dataclass(frozen=True, slots=True)
class Actor:
    """A caller with an API key."""

    key_id: str
    owner: str
    role: str
    project: str = DEFAULT_PROJECT
    endpoint: str | None = None
    """The only endpoint that a key with the role `endpoint` may call; None for all of its project."""


# Prefix of the worker id of a registered job. It has no worker row, so that nothing is scheduled on it.
EXTERNAL: Final = "external:"
# The actor for all workers on the Redis transport: they have no key, and are identified by their state folder.
REDIS_WORKER: Final = Actor("redis", "redis", "worker")


@dataclass(frozen=True, slots=True)
class AttemptActor:
    """A worker that reports for one attempt; it can access only the attempt's own results and inputs."""

    attempt_id: str
    task_id: str
    worker_id: str
    project: str = DEFAULT_PROJECT


def has_quota(caller: Caller) -> bool:
    """Whether a caller's uploads count against a quota: those of users and of registered jobs."""
    return isinstance(caller, Actor) or caller.worker_id.startswith(EXTERNAL)


Caller = Actor | AttemptActor


def may_read(actor: Actor) -> None:
    """Raise if the actor may not read the project."""
    if actor.role not in {"admin", "member", "viewer"}:
        raise ForbiddenError(f"A {actor.role} key cannot read this.", hint="Use an admin, member or viewer key.")


def may_submit(actor: Actor) -> None:
    """Raise if the actor may not submit or change anything."""
    if actor.role not in {"admin", "member"}:
        raise ForbiddenError(f"A {actor.role} key cannot change anything.", hint="Use an admin or member key.")


def may_change(actor: Actor, owner: str, what: str) -> None:
    """Raise if the actor may not change something of this owner."""
    may_submit(actor)
    if actor.role != "admin" and actor.owner != owner:
        raise ForbiddenError(f"{what} belongs to {owner}.", hint="Ask the owner, or use an admin key.")


def may_administer(actor: Actor) -> None:
    """Raise if the actor is not an admin."""
    if actor.role != "admin":
        raise ForbiddenError(
            f"This requires an admin key; yours is a {actor.role} key.",
            hint="Ask an admin, or log in with an admin's key (`tunefleet login URL`).",
        )


def is_operator(actor: Actor) -> bool:
    """Whether the actor operates the server: an admin of the default project, with access to all projects."""
    return actor.role == "admin" and actor.project == DEFAULT_PROJECT


def may_operate(actor: Actor) -> None:
    """Raise if the actor is not an operator."""
    may_administer(actor)
    if not is_operator(actor):
        raise ForbiddenError(
            f"This requires an admin key of project {DEFAULT_PROJECT}; yours belongs to {actor.project}.",
            hint="Ask the server's operator.",
        )


@dataclass(frozen=True, slots=True)
class FederationActor:
    """A caller that authenticated with a federation's token.

    Args:
        worker: The only worker name that the token is valid for; None for the token that all workers share.
    """

    federation_id: str
    project: str = DEFAULT_PROJECT
    worker: str | None = None


def may_see_worker(actor: Actor, project: str) -> bool:
    """Whether an actor sees a worker of a project: workers that serve all projects, and those of its own."""
    return project in {DEFAULT_PROJECT, actor.project} or is_operator(actor)


@dataclass(slots=True)
class KeyCache:
    """Cache of keys and federation tokens, with the last use of keys; cleared when one of them changes."""

    actors: dict[str, Actor] = field(default_factory=dict)
    federations: dict[str, TokenRow] = field(default_factory=dict)
    projects: dict[str, str] = field(default_factory=dict)
    """Federation → its project, which never changes."""
    used_at: dict[str, float] = field(default_factory=dict)

    def forget(self) -> None:
        """Clear the cache, including results of look-ups that are in progress."""
        # New dictionaries, not `clear()`: a look-up that started before the change stores its result in the old one.
        self.actors = {}
        self.federations = {}
