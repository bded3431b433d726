"""What is durable of campaigns, for the engine that runs them: each method is one transaction.

A step is *intended* before it acts and *done* after. Whoever takes a campaign whose step is intended does not know
whether it acted, asks (`intent` is there), and only then acts. Who holds a campaign is said by a lease; what somebody
says who does not hold it any more is refused with `LeaseLost`, so that two holders never both move a cycle.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final, Literal

from tunefleet.services.campaigns.state import Budget, BudgetError, CycleState, ModelVersion, NewVersion
from tunefleet.services.core import Core

LEASE_S: Final = 30.0
"""How long a campaign stays with a holder that says nothing."""
RENEW_S: Final = 10.0
TOPIC: Final = "campaigns"
"""Notified when a campaign may want something of the engine."""

Level = Literal["info", "warning", "error"]


class Book:
    """The campaigns of a server.

    Args:
        core: The server.
        jitter: Draws how much a backoff is longer or shorter than planned.
    """

    def __init__(self, core: Core, *, jitter: random.Random | None = None) -> None:
        self._core = core
        self._jitter = jitter or random.Random()

    async def due(self) -> dict[str, float]:
        """Return from when on each active campaign may want something, in Unix time, by its id.

        While somebody holds it that is when their lease ends. What is changed meanwhile is told under `TOPIC`.
        """
        raise NotImplementedError

    async def take(self, campaign_id: str, holder: str) -> CycleState | None:
        """Take a campaign for `LEASE_S`, and open its next cycle if that is due.

        Args:
            campaign_id: The campaign.
            holder: Who takes it; the same one may take it again.

        Returns:
            The cycle to work on; null if nothing is to be done now, or somebody else works on it.
        """
        raise NotImplementedError

    async def renew(self, state: CycleState) -> bool:
        """Keep a campaign for longer; false if it is somebody else's by now, or was paused or stopped."""
        raise NotImplementedError

    async def release(self, state: CycleState) -> None:
        """Let somebody else have the campaign, now; nothing happens if it is somebody else's."""
        raise NotImplementedError

    async def intend(self, state: CycleState, intent: Mapping[str, Any]) -> CycleState:
        """Store what a step is about to do, before it does it; once it is stored, another intent is refused.

        Raises:
            LeaseLost: If somebody else has the campaign, it was paused or stopped, or the cycle has moved on.
            ConflictError: If the step has another intent already.
        """
        raise NotImplementedError

    async def done(self, state: CycleState, outcome: Mapping[str, Any]) -> CycleState | None:
        """Store what a step has done, and go to the next one. A pause does not undo what is done: it is stored.

        Args:
            state: As it was.
            outcome: JSON. That of `SLEEP` has `next_at`, in Unix time: when the next cycle may open.

        Returns:
            The cycle at its next step; null after the last one, or while the campaign is paused.

        Raises:
            LeaseLost: If somebody else has the campaign, it was stopped, or the cycle has moved on.
        """
        raise NotImplementedError

    async def later(self, state: CycleState, until: float, why: str) -> None:
        """Let go of a step that waits for something, which is no failure.

        Args:
            state: As it is.
            until: When to look again, in Unix time.
            why: What it waits for; shown to people.

        Raises:
            LeaseLost: As in `done`.
        """
        raise NotImplementedError

    async def failed(self, state: CycleState, error: str, *, fatal: bool) -> None:
        """Let go of a step that failed.

        It is tried again after `backoff_s`; after `budget.max_failures` tries in a row the campaign is held. With
        `fatal` the cycle is a dead letter at once, its position is left to the next cycle, and the campaign is held
        after so many of them in a row.

        Raises:
            LeaseLost: As in `done`.
        """
        raise NotImplementedError

    async def over_budget(self, state: CycleState, error: BudgetError) -> None:
        """Let go of a step that the budget has no room for: until there is room, or until a person says so.

        Raises:
            LeaseLost: As in `done`.
        """
        raise NotImplementedError

    async def spend(self, state: CycleState, what: str, amount: float, key: str) -> None:
        """Enter something that was paid for; entered again under the same key, it counts once.

        Args:
            state: Who pays.
            what: `TASK`, `SECONDS`, or something else.
            amount: In the units of the campaign's costs.
            key: Of what was paid for, such as the order's.
        """
        raise NotImplementedError

    async def budget(self, state: CycleState) -> Budget:
        """Return where a campaign stands with what it may spend; `Budget.check(state.spec)` refuses what is too much.

        Everything that was spent under the key of this cycle's own order is left out: a call that is repeated is not
        refused for its own price.
        """
        raise NotImplementedError

    async def log(self, state: CycleState, level: Level, text: str) -> None:
        """Add a line to the log of a campaign; the oldest ones give way."""
        raise NotImplementedError

    async def promoted(self, state: CycleState) -> ModelVersion | None:
        """Return the promoted version of the campaign's model."""
        raise NotImplementedError

    async def register(self, state: CycleState, version: NewVersion) -> ModelVersion:
        """Enter a model; entered again by the same try of the cycle, it is the same version, changed.

        A version that becomes promoted archives the one that was.

        Raises:
            LeaseLost: As in `done`.
        """
        raise NotImplementedError

    async def to_cancel(self) -> list[CycleState]:
        """Return the abandoned cycles whose task at the provider may still run; `step` is `SUBMIT` or `WAIT`."""
        raise NotImplementedError

    async def cancelled(self, state: CycleState) -> None:
        """Store that the task of an abandoned cycle is cancelled, or that there is none."""
        raise NotImplementedError

    async def token(self, campaign_id: str) -> str:
        """Return the token that a campaign speaks with to its server; raises `NotFoundError` if there is none."""
        raise NotImplementedError
