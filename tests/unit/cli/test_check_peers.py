"""What `doctor` says of a server's peer_role among several."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tunefleet.cli.server import checks
from tunefleet.cli.server.checks import peer_role
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
        ((peer("a", leads=True, this=True), peer("b")), "leader of 2 servers"),
        ((peer("a", leads=True), peer("b", this=True)), "follower, one of 2 servers; the leader is a on host-a"),
        ((peer("a", leads=True, silent_s=60.0), peer("b", this=True)), "none of 2 servers is the leader"),
        ((peer("b", this=True),), "none of 1 server is the leader"),
    ],
)
def test_the_place_of_a_server(servers: tuple[PeerView, ...], told: str) -> None:
    found = peer_role(PeersView(shared=True, epoch=1, servers=servers))
    assert found is not None
    assert (found.text, found.fix is not None) == (told, told.startswith("none of"))


def test_one_that_is_alone_has_none() -> None:
    assert peer_role(PeersView(shared=False, epoch=0, servers=())) is None


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
    assert (found.state, "none of 2 servers is the leader" in found.found) == ("warning", True)
    monkeypatch.setattr(Known, "role", "worker")
    assert checks.server().state == "good"
