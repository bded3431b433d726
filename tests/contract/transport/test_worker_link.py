"""What a worker may rely on, whatever carries its messages."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator

import pytest

from tests.contract.transport.conftest import Site, registration
from tunefleet.errors import AuthError, ConflictError, ForbiddenError, NotFoundError, UnreachableError
from tunefleet.schemas.worker_link import ExchangeReply, ExchangeRequest, Finish, Offer
from tunefleet.transport.base import WorkerLink

HELD_S = 60.0  # how long a poll is held that nothing ends


class Hand:
    """A worker by hand: one link, one session."""

    def __init__(self, link: WorkerLink, worker_id: str) -> None:
        self.link = link
        self.worker_id = worker_id
        self.registered = link.register(registration(worker_id))

    def say(self, *, wait_s: float = 0.0, want: int = 8, **more: object) -> ExchangeReply:
        plain = {"worker_id": self.worker_id, "session": "s1", "wait_s": wait_s, "want": {"light": want}}
        return self.link.exchange(ExchangeRequest.model_validate(plain | more))

    def offer(self, task_id: str) -> Offer:
        """Wait for the offer of a task."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for offer in self.say(wait_s=1.5).offers:
                if offer.task_id == task_id:
                    return offer
        raise AssertionError(f"{task_id} was not offered")


@pytest.fixture
def hand(link: WorkerLink, site: Site) -> Iterator[Hand]:
    made = Hand(link, f"w-{uuid.uuid4().hex[:6]}")
    yield made
    # The next test's tasks are not for this worker: neither asked for, nor in the place of an offer it never took.
    for status in ("queued", "dispatched"):
        for task in site.client.tasks.list(status=status).items:
            site.client.tasks.cancel(task.id)
    link.register(registration(made.worker_id))
    made.say(want=0, leaves=True)


def _done(token: str) -> Finish:
    return Finish(token=token, outcome="completed", reason="finished", result={"ok": True})


def test_an_exchange_of_a_stranger_is_told_to_register(link: WorkerLink) -> None:
    with pytest.raises(NotFoundError):
        link.exchange(ExchangeRequest(worker_id="stranger", session="s"))


def test_an_offer_wakes_a_long_poll(hand: Hand, site: Site) -> None:
    hand.say()
    replies: list[ExchangeReply] = []
    poll = threading.Thread(target=lambda: replies.append(hand.say(wait_s=HELD_S)))
    poll.start()
    poll.join(0.2)
    task_id = site.submit()
    poll.join(HELD_S / 2)
    assert [offer.task_id for reply in replies for offer in reply.offers] == [task_id]


def test_a_finish_implies_its_accept_and_may_be_repeated(hand: Hand, site: Site) -> None:
    task_id = site.submit()
    token = hand.offer(task_id).token
    assert hand.say(finishes=(_done(token),)).finished == (token,)
    assert hand.say(finishes=(_done(token),)).finished == (token,)
    task = site.client.tasks.get(task_id)
    assert task.status == "completed"
    assert [attempt.state for attempt in task.attempt_list] == ["finished"]


def test_an_accept_may_be_repeated_and_starts_the_task(hand: Hand, site: Site) -> None:
    task_id = site.submit()
    token = hand.offer(task_id).token
    assert hand.say(accepts=(token,), holding=(token,)).accepted == (token,)
    assert hand.say(accepts=(token,), holding=(token,)).accepted == (token,)
    assert site.client.tasks.get(task_id).status == "running"
    hand.say(finishes=(_done(token),))


def test_an_offer_that_was_not_taken_is_made_again(hand: Hand, site: Site) -> None:
    task_id = site.submit()
    assert hand.offer(task_id).token == hand.offer(task_id).token


def test_what_the_server_never_gave_is_dropped(hand: Hand) -> None:
    reply = hand.say(holding=("att-nobody.0123",), finishes=(_done("att-else.0123"),))
    assert "att-nobody.0123" in reply.drop
    assert "att-else.0123" in (*reply.finished, *reply.drop)


def test_a_newer_exchange_releases_the_older_one(hand: Hand, site: Site) -> None:
    replies: list[ExchangeReply] = []
    older = threading.Thread(target=lambda: replies.append(hand.say(wait_s=HELD_S)))
    older.start()
    deadline = time.monotonic() + HELD_S / 2
    while older.is_alive() and time.monotonic() < deadline:
        hand.say()
        older.join(0.2)
    assert replies == [ExchangeReply()]


def test_cancel_is_wished_until_the_generation_is_reached(hand: Hand, site: Site) -> None:
    task_id = site.submit()
    token = hand.offer(task_id).token
    hand.say(accepts=(token,), holding=(token,))
    site.client.tasks.cancel(task_id)
    wish = hand.say(wait_s=1.5, holding=(token,)).desired[0]
    assert (wish.token, wish.action) == (token, "cancel")
    hand.say(holding=(token,), reached=({"token": token, "generation": wish.generation},))
    assert hand.say(holding=(token,), wait_s=0.0).desired == ()
    hand.say(finishes=(Finish(token=token, outcome="cancelled", reason="cancelled_by_user"),))
    assert site.client.tasks.get(task_id).status == "cancelled"


def test_an_accepted_attempt_that_is_not_held_any_more_is_lost_at_once(hand: Hand, site: Site) -> None:
    task_id = site.submit()
    token = hand.offer(task_id).token
    hand.say(accepts=(token,), holding=(token,))
    hand.link.register(registration(hand.worker_id, session="s2"))
    task = site.client.tasks.get(task_id)
    assert (task.status, task.attempt_list[0].state) == ("queued", "void")
    site.client.tasks.cancel(task_id)


def test_a_held_attempt_outlives_the_process_that_accepted_it(hand: Hand, site: Site) -> None:
    token = hand.offer(site.submit()).token
    hand.say(accepts=(token,), holding=(token,))
    reply = hand.link.register(registration(hand.worker_id, session="s2", holding=(token, "att-x.y")))
    assert (reply.keep, reply.drop) == ((token,), ("att-x.y",))
    with pytest.raises(ConflictError):
        hand.say()
    hand.link.register(registration(hand.worker_id, session="s1", holding=(token,)))
    assert hand.say(finishes=(_done(token),)).finished == (token,)


def test_a_living_id_is_refused_to_another_folder(hand: Hand) -> None:
    with pytest.raises(ConflictError, match=hand.worker_id):
        hand.link.register(registration(hand.worker_id, state_id="elsewhere"))


def test_a_wrong_key_and_a_key_of_another_role_are_told_apart(site: Site) -> None:
    if site.redis is not None:  # there are no keys: who can reach the Redis may be a worker
        link = site.link("tf_wrong")
        assert link.register(registration("w-wrong")).drop == ()
        link.close()
        return
    wrong, viewer = site.link("tf_wrong"), site.link(site.client.keys.create("a viewer", role="viewer").secret)
    with pytest.raises(AuthError):
        wrong.register(registration("w-wrong"))
    with pytest.raises(ForbiddenError):
        viewer.register(registration("w-viewer"))
    wrong.close()
    viewer.close()


def test_a_closed_link_is_out_of_reach(site: Site) -> None:
    link = site.link()
    link.close()
    with pytest.raises(UnreachableError):
        link.register(registration("w-closed"))
