"""The server's end of the link in memory: its rules without durability, placement or clocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunefleet.errors import UnreachableError
from tunefleet.schemas.worker_link import (
    Behind,
    Command,
    Desired,
    ExchangeReply,
    ExchangeRequest,
    Finish,
    Offer,
    RegisterReply,
    RegisterRequest,
)
from tunefleet.transport.base import WorkerLink

WAIT_S = 10.0


@dataclass
class Row:
    """An attempt as the server has it."""

    offer: Offer
    state: str = "offered"
    finish: Finish | None = None
    desired: Desired | None = None
    commands: list[Command] = field(default_factory=list)


class FakeServer(WorkerLink):
    """Offers, accepts, finishes, wishes; long-polled."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.exchanges: list[ExchangeRequest] = []
        self.registrations: list[RegisterRequest] = []
        self.outcomes: list[Any] = []
        self.reached: list[Any] = []
        self.discards: set[str] = set()
        self.clock_ahead_s: float | None = None
        self.away = False
        self.error: Exception | None = None
        self.behind_once: set[str] = set()
        self.loses_finishes = False
        self.on_accept: Callable[[str], None] = lambda _: None
        self._news = threading.Condition()
        self._turn = 0

    def offer(self, task_id: str = "task-1", *, kind: str = "train", attempt: int = 1, **more: Any) -> str:
        """Offer an attempt; returns its token."""
        token = f"att-{task_id}-{attempt}.secret"
        slot_class = "light" if kind == "echo" else "job"
        made = Offer(
            token=token,
            task_id=task_id,
            workflow_id="wf-1",
            attempt=attempt,
            kind=kind,
            name=task_id,
            slot_class=slot_class,
            spec=more.pop("spec", {}),
            grace_s=0.1,
            **more,
        )
        with self._news:
            self.rows[token] = Row(made)
            for part in made.merged:
                self.rows[part.token] = Row(made, state="carried")
            self._news.notify_all()
        return token

    def void(self, token: str) -> None:
        """Give the attempt to somebody else."""
        self._set(token, state="void")

    def want(self, token: str, action: str, generation: int = 1) -> None:
        """Want an attempt in another state."""
        self._set(token, desired=Desired(token=token, action=action, generation=generation))  # type: ignore[arg-type]

    def discard(self, task_id: str) -> None:
        """Remove a task; its folder is to go."""
        with self._news:
            self.discards.add(task_id)
            self._news.notify_all()

    def command(self, token: str, name: str) -> None:
        """Send a command."""
        with self._news:
            self.rows[token].commands.append(Command(token=token, command_id="cmd-1", command=name))
            self._news.notify_all()

    def wait_for(self, predicate: Callable[[], object]) -> None:
        """Wait until something is so on the server."""
        deadline = time.monotonic() + WAIT_S
        while not predicate():
            assert time.monotonic() < deadline, f"still waiting; rows: {self.rows}"
            time.sleep(0.002)

    def finished(self, token: str) -> Finish:
        """Wait for the end of an attempt and return it."""
        self.wait_for(lambda: self.rows[token].finish is not None)
        finish = self.rows[token].finish
        assert finish is not None
        return finish

    def register(self, request: RegisterRequest) -> RegisterReply:
        self._answerable()
        self.registrations.append(request)
        good = {token for token, row in self.rows.items() if row.state in {"offered", "carried", "accepted"}}
        return RegisterReply(
            keep=tuple(token for token in request.holding if token in good),
            drop=tuple(token for token in request.holding if token not in good),
            hold_s=5.0,
            lost_after_s=15.0,
            clock_ahead_s=self.clock_ahead_s,
        )

    def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        self._answerable()
        with self._news:
            self.exchanges.append(request)
            self._turn += 1
            mine = self._turn
            self._news.notify_all()
            self.outcomes += request.outcomes
            self._reach(request)
            said = self._take(request)
            deadline = time.monotonic() + request.wait_s
            while True:
                reply = self._reply(request, said)
                left = deadline - time.monotonic()
                if reply != ExchangeReply() or self._turn != mine or left <= 0 or self.away:
                    return ExchangeReply() if self._turn != mine and reply == ExchangeReply() else reply
                self._news.wait(left)

    def close(self) -> None:
        with self._news:
            self._news.notify_all()

    def go_away(self) -> None:
        """Stop answering; a long poll breaks."""
        self.away = True
        with self._news:
            self._turn += 1
            self._news.notify_all()

    def _answerable(self) -> None:
        if self.error is not None:
            raise self.error
        if self.away:
            raise UnreachableError("The server at nowhere does not respond.")

    def _set(self, token: str, **changes: Any) -> None:
        with self._news:
            for name, value in changes.items():
                setattr(self.rows[token], name, value)
            self._news.notify_all()

    def _reach(self, request: ExchangeRequest) -> None:
        self.reached += request.reached
        self.discards.difference_update(request.discarded)
        for reached in request.reached:
            row = self.rows.get(reached.token)
            if row is not None and row.desired is not None and row.desired.generation <= reached.generation:
                row.desired = None

    def _take(self, request: ExchangeRequest) -> ExchangeReply:
        accepted, finished, behind, drop = [], [], [], []
        for finish in () if self.loses_finishes else request.finishes:
            row = self.rows.get(finish.token)
            if row is None or row.state == "void":
                drop.append(finish.token)
            elif finish.token in self.behind_once:
                self.behind_once.discard(finish.token)
                behind.append(Behind(token=finish.token, launch="a", cursor=0))
            else:
                if row.finish is None:
                    row.finish, row.state = finish, "finished"
                finished.append(finish.token)
        for token in request.accepts:
            row = self.rows.get(token)
            if row is None or row.state in {"void", "finished"}:
                drop.append(token)
            else:
                self.on_accept(token)
                row.state = "accepted"
                accepted.append(token)
        return ExchangeReply(accepted=tuple(accepted), finished=tuple(finished), behind=tuple(behind), drop=tuple(drop))

    def _reply(self, request: ExchangeRequest, said: ExchangeReply) -> ExchangeReply:
        room: dict[str, int] = dict(request.want)
        offers, commands = [], []
        for row in self.rows.values():
            if row.state == "offered" and room.get(row.offer.slot_class, 0) > 0:
                room[row.offer.slot_class] -= 1
                offers.append(row.offer)
            commands += row.commands
            row.commands = []
        void = {token for token in request.holding if token in self.rows and self.rows[token].state == "void"}
        desired = tuple(row.desired for row in self.rows.values() if row.desired and row.state == "accepted")
        return said.model_copy(
            update={
                "offers": tuple(offers),
                "drop": tuple(void | set(said.drop)),
                "desired": desired,
                "commands": tuple(commands),
                "discard": tuple(sorted(self.discards)),
            }
        )


def seen(requests: Sequence[ExchangeRequest], token: str) -> list[str]:
    """What a worker said about a token, in order, without repetitions."""
    said: list[str] = []
    for request in requests:
        for word, tokens in (("accept", request.accepts), ("finish", [f.token for f in request.finishes])):
            if token in tokens and (not said or said[-1] != word):
                said.append(word)
    return said
