"""What `doctor` says of a server's place among several."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tunefleet.cli.server import checks
from tunefleet.cli.server.checks import place
from tunefleet.schemas.api import ServerInfo
from tunefleet.schemas.server_info import PeersView, PeerView


def peer(id_: str, *, leads: bool = False, this: bool = False, silent_s: float = 0.0) -> PeerView:
    at = datetime(2026, 11, 1, tzinfo=UTC)
    return PeerView(
        id=id_, host=f"host-{id_}", url=None, version="1", leads=leads, this=this, started_at=at, silent_s=silent_s
    )


@pytest.mark.parametrize(
    ("servers", "told"),
    [
        ((peer("a", leads=True, this=True), peer("b")), "of 2 servers this one leads"),
        ((peer("a", leads=True), peer("b", this=True)), "of 2 servers this one follows; a on host-a leads"),
        ((peer("a", leads=True, silent_s=60.0), peer("b", this=True)), "of 2 servers none leads"),
        ((peer("b", this=True),), "of 1 server none leads"),
    ],
)
def test_the_place_of_a_server(servers: tuple[PeerView, ...], told: str) -> None:
    found = place(PeersView(shared=True, epoch=1, servers=servers))
    assert found is not None
    assert (found.told, found.mend is not None) == (told, told.endswith("none leads"))


def test_one_that_is_alone_has_none() -> None:
    assert place(PeersView(shared=False, epoch=0, servers=())) is None


def test_doctor_says_it_and_does_not_ask_with_a_workers_key(home: object, monkeypatch: pytest.MonkeyPatch) -> None:
    view = PeersView(shared=True, epoch=1, servers=(peer("a", leads=True, silent_s=60.0), peer("b", this=True)))

    class Known:
        url, role = "http://fleet", "admin"

        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> Known:
            return self

        def __exit__(self, *_: object) -> None: ...

        def info(self) -> ServerInfo:
            from tunefleet import __version__

            return ServerInfo(version=__version__, authenticated=True, role=self.role, owner="ada")  # type: ignore[arg-type]

        def servers(self) -> PeersView:
            assert self.role != "worker"
            return view

    monkeypatch.setattr(checks, "Client", Known)
    found = checks.server()
    assert (found.state, "of 2 servers none leads" in found.found) == ("warning", True)
    monkeypatch.setattr(Known, "role", "worker")
    assert checks.server().state == "good"
