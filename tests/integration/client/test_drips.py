"""No host outlives the time that its answer has, whatever it sends meanwhile; what is not wanted any more is let go."""

from __future__ import annotations

import http.server
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.fakes.dripping import DRIPS, dripping
from tests.fakes.listening import listening
from tunefleet.client.external.download import Address, Downloader
from tunefleet.client.external.external_http import HttpRequest, ask
from tunefleet.client.external.interrupt import CancelledByToken, CancelToken
from tunefleet.client.external.limit import Limit
from tunefleet.client.external.result_delivery import HttpDelivery, Receiver
from tunefleet.client.external.ssrf_guard import Guarded, SsrfGuard
from tunefleet.errors import UnreachableError
from tunefleet.schemas.worker_guide import ResultEnvelope

LOOPBACK = ("127.0.0.1",)
SHORT_S = 0.2
BODIES = {"a body", "the frame of a body", "a body without an end"}


def get(url: str, _: Path) -> object:
    with SsrfGuard(LOOPBACK).get(url, timeout=httpx.Timeout(SHORT_S)) as answer:
        return answer.read()


def download(url: str, folder: Path) -> object:
    return Downloader(folder, allowed=LOOPBACK).fetch(Address(url, timeout_s=SHORT_S))


def send_result(url: str, _: Path) -> object:
    receiver = Receiver(url, timeout_s=SHORT_S)
    return HttpDelivery(receiver, allowed=LOOPBACK).result(ResultEnvelope(task_id="task-1", result={}))


def send_file(url: str, folder: Path) -> object:
    (folder / "x").write_bytes(b"x" * 300_000)
    return HttpDelivery(Receiver(url, timeout_s=SHORT_S), allowed=LOOPBACK).file("task-1", folder / "x")


def ask_api(url: str, _: Path) -> object:
    return ask(HttpRequest(method="GET", url=url, timeout_s=SHORT_S), allowed=LOOPBACK)


def ask_database(url: str, _: Path) -> object:
    with httpx.Client(transport=Guarded(LOOPBACK), timeout=SHORT_S) as client:
        return client.post(url, json={})


ACTS = (get, download, send_result, send_file, ask_api, ask_database)
CASES = [
    (act, what)
    for act in ACTS
    for what in DRIPS
    # A file may take long, as long as it is not too slow (test_download_pace.py).
    if what != "a handshake" and (act is not download or what not in {"a body", "a body without an end"})
]


@pytest.mark.parametrize(("act", "what"), CASES)
def test_a_host_that_drips_is_given_up(act: Callable[[str, Path], object], what: str, tmp_path: Path) -> None:
    whole = act in (send_result, send_file) and what in BODIES  # the status says all
    with dripping(what) as host:
        if whole:
            act(host.url, tmp_path)
        else:
            with pytest.raises((UnreachableError, httpx.ReadTimeout)):
                act(host.url, tmp_path)
        assert host.left.wait(30), "the connection is closed"


def test_a_handshake_that_drips_is_given_up(tmp_path: Path) -> None:
    with dripping("a handshake") as host, pytest.raises(UnreachableError, match=r"timed out|within 0\.4 seconds"):
        get(host.url.replace("http:", "https:"), tmp_path)


@pytest.mark.parametrize("what", ["nothing", "a header", "a body", "the frame of a body"])
def test_a_download_that_is_not_wanted_any_more_ends_at_once_and_keeps_what_has_come(what: str, tmp_path: Path) -> None:
    stop = CancelToken()
    with dripping(what) as host, ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(Downloader(tmp_path, allowed=LOOPBACK).fetch, Address(host.url, timeout_s=600), stop)
        assert host.begun.wait(30)
        stop.set()
        with pytest.raises(CancelledByToken):
            fetched.result(30)
        assert host.left.wait(30)
        assert host.asked == 1


def test_redirects_share_the_time(tmp_path: Path) -> None:
    with dripping("a header") as last:

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                self.send_response(302)
                self.send_header("Location", last.url)
                self.send_header("Content-Length", "0")
                self.end_headers()

        with listening(Handler) as url, pytest.raises(UnreachableError, match=r"within 0\.4 seconds"):
            get(f"{url}/first", tmp_path)
        assert last.left.wait(30)


def test_what_goes_on_is_not_ended_and_what_this_end_takes_its_time_for_costs_none() -> None:
    limit = Limit(SHORT_S)
    pieces = limit.renewed_by([b"a", b"b"], 600)
    with limit.watched():
        assert list(pieces) == [b"a", b"b"]
        limit.rest()
        assert not limit._over._event.wait(2 * SHORT_S)
        limit.renew(0.01)
        assert limit._over._event.wait(30)
    with pytest.raises(UnreachableError, match=r"host made no progress within 0\.01 seconds"):
        limit.check("host")
