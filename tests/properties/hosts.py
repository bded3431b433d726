"""A worker's machine beside the lab's worker: what it was offered, what it runs, and every token that it ever saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.unit.orchestrator.lab import FakeWorker, Lab
from tunefleet.schemas.worker_link import Desired, ExchangeReply, ExecutorOffer, Finish

SLOTS = {"light": 2, "job": 1}
EXECUTORS = (
    ExecutorOffer(kind="echo", slot_class="light"),
    ExecutorOffer(kind="lora_sft"),
    ExecutorOffer(kind="inference", merges=True),
)


@dataclass
class Host:
    """One machine.

    Args:
        worker: Its end of the link.
        offers: Token → slot class, of what it was offered and has not taken.
        wishes: Token → what it was told to bring it to.
        classes: Token → slot class, of all that it ever saw; of what goes along with another offer, nothing.
        starts: How often its process has started.
    """

    worker: FakeWorker
    offers: dict[str, str] = field(default_factory=dict)
    wishes: dict[str, Desired] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)
    starts: int = 0
    gone: bool = True

    @property
    def id(self) -> str:
        """Its worker id."""
        return self.worker.id

    @classmethod
    def named(cls, lab: Lab, id_: str) -> Host:
        """A machine that has not registered yet."""
        return cls(FakeWorker(lab, id_, state_id=f"folder-{id_}"))

    async def register(self, *, keeps: bool) -> Any:
        """Start its process anew, with or without what it ran."""
        self.starts += 1
        self.worker.session = f"session-{self.starts}"
        self.offers.clear()
        self.wishes.clear()
        if not keeps:
            self.worker.holding.clear()
        more = {"executors": EXECUTORS, "slots": SLOTS, "torch_version": "2.13", "environments": ("vllm",)}
        reply = await self.worker.register(hostname=f"host-{self.id}", **more)
        self.worker.holding = [token for token in self.worker.holding if token in reply.keep]
        self.gone = False
        return reply

    async def say(self, **said: Any) -> ExchangeReply:
        """Say something beside what it holds, and act on the answer as a worker does."""
        taken = [self.classes.get(token, "") for token in self.worker.holding]
        self.worker.want = {name: max(0, slots - taken.count(name)) for name, slots in SLOTS.items()}
        reply = await self.worker.exchange(**said)
        for offer in reply.offers:
            self.classes[offer.token] = offer.slot_class
            for token in (offer.token, *(each.token for each in offer.merged)):
                self.offers.setdefault(token, offer.slot_class)
        self.wishes = {wish.token: wish for wish in reply.desired}
        for token in reply.accepted:
            if self.offers.pop(token, None) is not None:
                self.worker.holding.append(token)
        gone = {*reply.finished, *reply.drop}
        self.worker.holding = [token for token in self.worker.holding if token not in gone]
        self.offers = {token: name for token, name in self.offers.items() if token not in gone}
        return reply


def ending(token: str, outcome: str, reason: str, *, ok: bool = True) -> Finish:
    """How an attempt ended; what has completed has found whether it is `ok`."""
    result = {"ok": ok, "items": []} if outcome == "completed" else {}
    error = None if outcome == "completed" else "It was to end so."
    return Finish.model_validate(
        {"token": token, "outcome": outcome, "reason": reason, "result": result, "error": error}
    )
