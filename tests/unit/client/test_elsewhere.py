"""Files that the server keeps elsewhere: its link is followed, and the key stays here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.unit.client.fake import QUICK, URL, FakeServer
from tunefleet.client import transfer
from tunefleet.client.connection import Connection
from tunefleet.client.throttle import Throttle, Ticks
from tunefleet.client.transport import Transport
from tunefleet.errors import ArtifactError, UnreachableError

STORE = "https://objects.test"


@dataclass
class FakeServerWithStore(FakeServer):
    """Answers downloads with a link, and is the store that the link leads to."""

    at_store: list[httpx.Request] = field(default_factory=list)
    store_answers: list[httpx.Response | Exception] = field(default_factory=list)
    location: str = STORE + "/bucket/{digest}?X-Amz-Signature=secret-link"

    def _answer(self, request: httpx.Request, pieces: object) -> httpx.Response:
        if request.url.host == "objects.test":
            self.at_store.append(request)
            if self.store_answers:
                answer = self.store_answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return answer
            return super()._get(request, request.url.path.rpartition("/")[2])
        return super()._answer(request, pieces)  # type: ignore[arg-type]

    def _get(self, request: httpx.Request, digest: str) -> httpx.Response:
        return httpx.Response(307, headers={"Location": self.location.format(digest=digest)})


@pytest.fixture
def server(tmp_path: Path) -> FakeServerWithStore:
    made = FakeServerWithStore()
    (tmp_path / "model.bin").write_bytes(bytes(range(256)) * 400)
    made.sync().run(transfer.push(tmp_path / "model.bin", name="m"))
    return made


@pytest.mark.parametrize("asynchronous", [False, True], ids=["thread", "loop"])
async def test_a_link_is_followed_without_the_key_and_goes_on_after_a_break(
    server: FakeServerWithStore, tmp_path: Path, asynchronous: bool
) -> None:
    server.break_downloads_after = [1000]
    flow = transfer.fetch("m", tmp_path / "copy")
    if asynchronous:
        transport = server.asynchronous()
        await transport.run(flow)
        await transport.close()
    else:
        server.sync().run(flow)
    assert (tmp_path / "copy" / "model.bin").read_bytes() == (tmp_path / "model.bin").read_bytes()
    assert [request.headers.get("Range") for request in server.at_store] == [None, "bytes=1000-"]
    for request in server.at_store:
        assert "authorization" not in request.headers
        assert "tf_key" not in f"{request.url}{request.headers}"
    ours = [request for request in server.requests if request.url.host != "objects.test"]
    assert all(request.headers["authorization"] == "Bearer tf_key" for request in ours)
    links = [request for request in ours if "/blobs/" in request.url.path and request.method == "GET"]
    assert len(links) == 2, "each try begins with a fresh link"


def test_what_the_store_gives_is_checked_and_paced(server: FakeServerWithStore, tmp_path: Path) -> None:
    slept: list[float] = []
    throttle = Throttle(51_200, ticks=Ticks(now=lambda: 0.0, sleep=slept.append))
    Transport(Connection(URL, "tf_key"), QUICK, network=server, throttle=throttle).run(
        transfer.fetch("m", tmp_path / "copy")
    )
    assert max(slept) == pytest.approx(2.0, abs=0.1), "102,400 bytes at 51,200 a second"
    digest = next(iter(server.blobs))
    server.blobs[digest] = b"x" * 102_400
    with pytest.raises(ArtifactError, match="corrupted"):
        server.sync().run(transfer.fetch("m", tmp_path / "other"))


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ([httpx.Response(403, text="<Error/>")] * 9, r"The object store objects\.test responded with status 403"),
        ([httpx.ConnectError("refused")] * 9, r"Connection to the object store objects\.test failed: ConnectError"),
    ],
    ids=["refused", "away"],
)
def test_a_store_that_fails_is_named_and_its_link_is_not(
    server: FakeServerWithStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[httpx.Response | Exception],
    sentence: str,
) -> None:
    monkeypatch.setattr(transfer, "FRUITLESS_TRIES", 1)
    server.store_answers = list(answers)
    with pytest.raises(UnreachableError, match=sentence) as caught:
        server.sync().run(transfer.fetch("m", tmp_path / "copy"))
    assert "secret-link" not in f"{caught.value}{caught.value.detail}"
    server.store_answers = []
    server.sync().run(transfer.fetch("m", tmp_path / "copy"))


def test_a_link_that_is_no_address_is_refused(
    server: FakeServerWithStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "FRUITLESS_TRIES", 1)
    server.location = "file:///etc/passwd"
    with pytest.raises(UnreachableError, match="invalid download link"):
        server.sync().run(transfer.fetch("m", tmp_path / "copy"))


def test_an_upload_waits_until_the_server_has_passed_it_on(tmp_path: Path) -> None:
    content = b"0123456789" * 100
    (tmp_path / "f").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    server = FakeServer(partials={digest: content})
    server.sync().run(transfer.push(tmp_path / "f"))
    puts = [request for request in server.requests if request.method == "PUT"]
    assert [(each.headers["Upload-Offset"], each.headers["Content-Length"]) for each in puts] == [("1000", "0")]
    assert server.blobs == {digest: content}, "all bytes were there, and yet the file was not"
