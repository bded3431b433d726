"""The two hands: one exchange is kept open, news interrupt it, a confused server is not flooded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tunefleet.errors import AuthError, ConflictError, NotFoundError, UnreachableError
from tunefleet.schemas.worker_link import (
    ExchangeReply,
    ExchangeRequest,
    Finish,
    Offer,
    RegisterReply,
    RegisterRequest,
)
from tunefleet.transport.base import WorkerLink
from tunefleet.worker.exchange import Exchanger
from tunefleet.worker.outbox import MAX_FINISHES_BYTES, Draft, Outbox

REGISTERED = RegisterReply(keep=(), drop=(), hold_s=3.0, lost_after_s=9.0)


class ScriptedLink(WorkerLink):
    """Answers each exchange with a function."""

    def __init__(self, answer: Callable[[int, ExchangeRequest], ExchangeReply]) -> None:
        self.requests: list[ExchangeRequest] = []
        self.open = 0
        self.most_open = 0
        self._answer = answer
        self._lock = threading.Lock()

    def register(self, request: RegisterRequest) -> RegisterReply:
        return REGISTERED

    def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        with self._lock:
            self.requests.append(request)
            number = len(self.requests)
            self.open += 1
            self.most_open = max(self.most_open, self.open)
        try:
            return self._answer(number, request)
        finally:
            with self._lock:
                self.open -= 1

    def close(self) -> None:
        """Nothing to close."""


class ExchangeDelegate:
    """Says what the outbox has."""

    def __init__(self, outbox: Outbox, *, register: Callable[[], RegisterReply] = lambda: REGISTERED) -> None:
        self._outbox = outbox
        self._register = register
        self.handled: list[ExchangeReply] = []
        self.registered = 0

    def draft(self, wait_s: float) -> Draft:
        return self._outbox.draft(holding=(), want={"light": 1}, wait_s=wait_s)

    def handle(self, reply: ExchangeReply) -> None:
        self.handled.append(reply)

    def register(self) -> RegisterReply:
        self.registered += 1
        return self._register()


class Stage:
    """An exchanger between a scripted link and a mind."""

    def __init__(
        self,
        answer: Callable[[int, ExchangeRequest], ExchangeReply],
        *,
        register: Callable[[], RegisterReply] = lambda: REGISTERED,
    ) -> None:
        self.outbox = Outbox("w", "s")
        self.link = ScriptedLink(answer)
        self.mind = ExchangeDelegate(self.outbox, register=register)
        self.fatal: list[Exception] = []
        self.exchanger = Exchanger(self.link, self.outbox, self.mind, on_fatal=self.fatal.append)
        self.gate = threading.Event()

    def until(self, predicate: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not predicate():
            assert time.monotonic() < deadline
            time.sleep(0.001)


@pytest.fixture
def stages() -> Iterator[list[Stage]]:
    made: list[Stage] = []
    yield made
    for stage in made:
        stage.exchanger.stop()
        stage.gate.set()
        stage.exchanger.join(60)


def test_one_exchange_is_open_while_there_is_no_news(stages: list[Stage]) -> None:
    stage = Stage(lambda n, r: (stage.gate.wait(60) and ExchangeReply()) or ExchangeReply())
    stages.append(stage)
    stage.exchanger.start(3.0)
    stage.until(lambda: stage.link.requests)
    time.sleep(0.05)
    assert len(stage.link.requests) == 1
    assert stage.link.requests[0].wait_s == 3.0


def test_news_go_out_at_once_on_a_second_connection(stages: list[Stage]) -> None:
    def answer(number: int, request: ExchangeRequest) -> ExchangeReply:
        if request.finishes:
            return ExchangeReply(finished=tuple(f.token for f in request.finishes))
        stage.gate.wait(60)
        return ExchangeReply()

    stage = Stage(answer)
    stages.append(stage)
    stage.exchanger.start(3.0)
    stage.until(lambda: stage.link.requests)
    stage.outbox.finish(Finish(token="t", outcome="completed", reason="finished"))
    stage.until(lambda: any(reply.finished for reply in stage.mind.handled))
    assert [reply.finished for reply in stage.mind.handled] == [("t",)], "the first one is still open"
    assert stage.link.most_open == 2
    stage.gate.set()
    stage.until(lambda: stage.link.requests[-1].finishes == ())


def test_what_an_answer_brings_about_is_said_in_one_exchange(stages: list[Stage]) -> None:
    def answer(number: int, request: ExchangeRequest) -> ExchangeReply:
        if number == 1:
            return ExchangeReply(accepted=("go",))
        if number > 2:
            stage.gate.wait(60)
        return ExchangeReply(finished=tuple(f.token for f in request.finishes))

    def handle(reply: ExchangeReply) -> None:
        for token in "abcdefgh" if reply.accepted else "":
            stage.outbox.finish(Finish(token=token, outcome="completed", reason="finished"))
            time.sleep(0.002)

    stage = Stage(answer)
    stage.mind.handle = handle  # type: ignore[method-assign]
    stages.append(stage)
    stage.exchanger.start(3.0)
    stage.until(lambda: len(stage.link.requests) > 2)
    assert len(stage.link.requests[1].finishes) == 8


def test_what_an_overtaken_answer_offers_is_not_taken(stages: list[Stage]) -> None:
    offered = ExchangeReply.model_construct(**{**dict(ExchangeReply()), "offers": (Offer.model_construct(token="t"),)})

    def answer(number: int, request: ExchangeRequest) -> ExchangeReply:
        if request.finishes:
            return ExchangeReply(finished=("t",))
        stage.gate.wait(60)
        return offered if number == 1 else ExchangeReply()

    stage = Stage(answer)
    stages.append(stage)
    stage.exchanger.start(3.0)
    stage.until(lambda: stage.link.requests)
    stage.outbox.finish(Finish(token="t", outcome="completed", reason="finished"))
    stage.until(lambda: stage.mind.handled)
    stage.gate.set()
    stage.until(lambda: len(stage.mind.handled) > 1)
    assert [reply.offers for reply in stage.mind.handled if reply.offers] == []


def test_an_early_empty_answer_is_not_asked_again_at_once(stages: list[Stage]) -> None:
    stage = Stage(lambda n, r: ExchangeReply())
    stages.append(stage)
    stage.exchanger.start(3.0)
    time.sleep(0.5)
    assert len(stage.link.requests) <= 8


def test_an_absent_server_is_registered_with_anew_and_nothing_is_lost(stages: list[Stage]) -> None:
    tries = iter([UnreachableError("away"), UnreachableError("away")])

    def register() -> RegisterReply:
        error = next(tries, None)
        if error is not None:
            raise error
        return REGISTERED

    def answer(number: int, request: ExchangeRequest) -> ExchangeReply:
        if number == 1:
            raise UnreachableError("cut")
        if request.finishes:
            return ExchangeReply(finished=("t",))
        stage.gate.wait(60)
        return ExchangeReply()

    stage = Stage(answer, register=register)
    stages.append(stage)
    stage.outbox.finish(Finish(token="t", outcome="completed", reason="finished"))
    stage.exchanger.start(3.0)
    stage.until(lambda: any(reply.finished for reply in stage.mind.handled))
    assert stage.mind.registered == 3
    assert not stage.fatal


def test_a_server_that_registers_but_cannot_exchange_is_asked_ever_more_slowly(stages: list[Stage]) -> None:
    def answer(number: int, request: ExchangeRequest) -> ExchangeReply:
        raise UnreachableError("500")

    stage = Stage(answer)
    stages.append(stage)
    stage.exchanger.start(3.0)
    time.sleep(1.0)
    assert len(stage.link.requests) <= 5


def test_a_worker_that_the_server_does_not_know_registers_again(stages: list[Stage]) -> None:
    def answer(number: int, request: ExchangeRequest) -> ExchangeReply:
        if number == 1:
            raise NotFoundError("The worker is not registered.")
        stage.gate.wait(60)
        return ExchangeReply()

    stage = Stage(answer)
    stages.append(stage)
    stage.exchanger.start(3.0)
    stage.until(lambda: len(stage.link.requests) > 1)
    assert stage.mind.registered == 1


def test_a_worker_that_is_told_so_while_it_leaves_does_not_come_back(stages: list[Stage]) -> None:
    def answer(number: int, request: ExchangeRequest) -> ExchangeReply:
        stage.gate.wait(60)
        raise NotFoundError("The worker is not registered.")

    stage = Stage(answer)
    stages.append(stage)
    stage.exchanger.start(3.0)
    stage.until(lambda: stage.link.open)
    stage.exchanger.stop()
    stage.gate.set()
    stage.exchanger.join(60)
    assert (stage.mind.registered, stage.fatal) == (0, [])


@pytest.mark.parametrize("error", [AuthError("revoked"), ConflictError("taken over"), ValueError("a bug")])
def test_what_no_repetition_mends_is_reported_once(stages: list[Stage], error: Exception) -> None:
    def answer(number: int, request: ExchangeRequest) -> ExchangeReply:
        raise error

    stage = Stage(answer)
    stages.append(stage)
    stage.exchanger.start(3.0)
    stage.until(lambda: stage.fatal)
    time.sleep(0.05)
    assert stage.fatal == [error]
    assert len(stage.link.requests) == 1


def test_results_go_out_in_exchanges_that_a_server_takes(stages: list[Stage]) -> None:
    def answer(number: int, request: ExchangeRequest) -> ExchangeReply:
        if request.finishes:
            return ExchangeReply(finished=tuple(f.token for f in request.finishes))
        stage.gate.wait(60)
        return ExchangeReply()

    stage = Stage(answer)
    stages.append(stage)
    tokens = [f"t{number}" for number in range(6)]
    for token in tokens:
        result = {"items": ["x" * 1_500_000]}
        stage.outbox.finish(Finish(token=token, outcome="completed", reason="finished", result=result))
    stage.exchanger.start(3.0)
    stage.until(lambda: {t for reply in stage.mind.handled for t in reply.finished} == set(tokens))
    assert all(len(request.model_dump_json()) < 5 << 20 for request in stage.link.requests)
    assert stage.link.requests[0].finishes[0].outcome == "completed"


def test_a_result_that_no_exchange_carries_fails_its_task_alone() -> None:
    outbox = Outbox("w", "s")
    huge = {"items": ["x" * (MAX_FINISHES_BYTES + 1)]}
    outbox.finish(Finish(token="huge", outcome="completed", reason="finished", result=huge, cursors={"l": 3}))
    outbox.finish(
        Finish(token="loud", outcome="failed", reason="bug", error="e", detail="y" * (MAX_FINISHES_BYTES + 1))
    )
    with outbox.changed:
        said = {finish.token: finish for finish in outbox.draft(holding=(), want={}, wait_s=0.0).request.finishes}
    assert (said["huge"].outcome, said["huge"].reason, said["huge"].result) == ("failed", "bad_input", {})
    assert "bytes" in (said["huge"].error or "")
    assert said["huge"].cursors == {"l": 3}
    assert (said["loud"].error, said["loud"].reason) == ("e", "bug")
