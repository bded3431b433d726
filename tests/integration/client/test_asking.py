"""Asking an address: it ends when nobody wants the answer any more."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.fakes.service import Asked, Says, serving
from tunefleet.client.external.external_http import HttpRequest, HttpResponse, ask
from tunefleet.client.external.interrupt import CancelledByToken, CancelToken

LONG_S = 600.0


def asked(pool: ThreadPoolExecutor, url: str, stop: CancelToken) -> Future[HttpResponse]:
    question = HttpRequest(method="GET", url=url, timeout_s=LONG_S, retries=3)
    return pool.submit(ask, question, allowed=("127.0.0.1",), stop=stop)


def test_a_question_that_waits_for_its_answer_is_ended() -> None:
    stop, there, go_on = CancelToken(), threading.Event(), threading.Event()

    def hold(_: Asked) -> Says:
        there.set()
        go_on.wait(LONG_S)
        return Says(body="too late")

    with serving() as service, ThreadPoolExecutor(1) as pool:
        service.answer = hold
        answer = asked(pool, service.url, stop)
        assert there.wait(60)
        stop.set()
        try:
            with pytest.raises(CancelledByToken):
                answer.result(60)
        finally:
            go_on.set()
        assert len(service.asked) == 1, "it is no reason for another try"


def test_a_question_that_waits_for_its_next_try_is_ended() -> None:
    stop, there = CancelToken(), threading.Event()

    def busy(_: Asked) -> Says:
        there.set()
        return Says(503, "busy", {"Retry-After": "100"})

    with serving() as service, ThreadPoolExecutor(1) as pool:
        service.answer = busy
        answer = asked(pool, service.url, stop)
        assert there.wait(60)
        stop.set()
        with pytest.raises(CancelledByToken):
            answer.result(60)


def test_what_nobody_wants_is_not_asked() -> None:
    stop = CancelToken()
    stop.set()
    with serving() as service:
        with pytest.raises(CancelledByToken):
            ask(HttpRequest(method="GET", url=service.url), allowed=("127.0.0.1",), stop=stop)
        assert not service.asked
