"""Where a redirect leads is checked again, and credentials stay with their host."""

from __future__ import annotations

import http.server
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.fakes.listening import listening
from tunefleet.client.external.external_http import HttpRequest, ask
from tunefleet.client.external.ssrf_guard import SsrfGuard
from tunefleet.errors import ForbiddenError, InputError, UnreachableError

LOOPBACK = ("127.0.0.0/8",)


@contextmanager
def host(location: str = "") -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that notes headers, and sends everybody on if it has somewhere to send them."""
    seen: list[dict[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            seen.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(302 if location else 200)
            if location not in {"", "nowhere"}:
                self.send_header("Location", location if location != "self" else self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with listening(Handler) as url:
        yield url, seen


def test_credentials_stay_with_their_host_when_it_sends_one_on() -> None:
    with host() as (second, seen), host(f"{second}/x") as (first, before):
        headers = {"Authorization": "Bearer secret", "Range": "bytes=5-"}
        with SsrfGuard(LOOPBACK).get(f"{first}/a", headers=headers) as response:
            assert response.status_code == 200
        assert before[0]["authorization"] == "Bearer secret"
        assert "authorization" not in seen[0]
        assert seen[0]["range"] == "bytes=5-"


@pytest.mark.parametrize("location", ["nowhere", "http://[", "//["])
def test_a_redirect_that_leads_nowhere_is_an_answer_of_the_host(location: str) -> None:
    with (
        host(location) as (first, _),
        pytest.raises(InputError, match="responded with redirect 302 without a valid location"),
        SsrfGuard(LOOPBACK).get(first),
    ):
        pass


@pytest.mark.parametrize(
    "location", ["http://a..b/", f"http://{'a' * 70}.com/", "http://xn--/", "http://h:x/", "mailto:x"]
)
def test_a_redirect_to_what_is_no_host_is_said(location: str) -> None:
    with host(location) as (first, _):
        with pytest.raises(UnreachableError), SsrfGuard(LOOPBACK).get(first):
            pass
        with pytest.raises(UnreachableError):
            ask(HttpRequest("GET", first), allowed=LOOPBACK)


def test_a_question_whose_answer_is_a_redirect_that_leads_nowhere_has_that_answer() -> None:
    with host("nowhere") as (first, _):
        assert ask(HttpRequest("GET", first), allowed=LOOPBACK).status == 302


def test_where_one_is_sent_on_is_checked_again() -> None:
    with (
        host("http://169.254.169.254/latest") as (first, _),
        pytest.raises(ForbiddenError, match=r"169\.254"),
        SsrfGuard(("127.0.0.0/8", "169.254.0.0/16")).get(first),
    ):
        pass
    with (
        host("self") as (circle, seen),
        pytest.raises(UnreachableError, match="too many redirects"),
        SsrfGuard(LOOPBACK).get(circle),
    ):
        pass
    assert len(seen) == 5
