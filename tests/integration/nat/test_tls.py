"""TLS with a private authority, and proxies on the way: what passes, and in which words the rest fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.middle import Middle, middle
from tests.integration.api.support import Running
from tests.integration.nat.conftest import Papers
from tests.unit.orchestrator.lab import capabilities
from tunefleet.client import Client
from tunefleet.client.backend import AgentClient
from tunefleet.errors import MachineError, UnreachableError
from tunefleet.schemas.worker_link import RegisterRequest
from tunefleet.transport.http import HttpLink

WORDS = "me:se%40cret"


def _as_client(url: str, running: Running) -> object:
    with Client(url, running.admin_key, patience_s=60.0) as client:
        return client.info()


def _as_worker(url: str, running: Running) -> object:
    link = HttpLink(url, running.worker_key)
    try:
        return link.register(RegisterRequest(worker_id="tls-1", session="s", state_id="f", capabilities=capabilities()))
    finally:
        link.close()


def _as_agent(url: str, running: Running) -> object:
    with AgentClient(url, running.worker_key, "agent-0123456789", {}) as agent:
        return agent.poll(0.0, want=0)


WAYS = pytest.mark.parametrize("way", [_as_client, _as_worker, _as_agent])
Way = Callable[[str, Running], object]


@WAYS
def test_a_certificate_of_a_private_authority_holds_where_the_settings_name_it(
    way: Way, running: Running, behind_tls: int, papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"https://localhost:{behind_tls}"
    with pytest.raises(UnreachableError, match=r"is issued by an authority that is not in the system's") as refused:
        way(url, running)
    assert "TUNEFLEET_CA_FILE" in str(refused.value.hint)
    monkeypatch.setenv("TUNEFLEET_CA_FILE", str(papers.authority))
    assert way(url, running)


@pytest.mark.parametrize(
    ("which", "words"),
    [("expired", "has expired"), ("foreign", "is not valid for localhost")],
)
def test_a_certificate_that_does_not_hold_is_named_and_not_asked_again(
    which: str, words: str, running: Running, papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEFLEET_CA_FILE", str(papers.authority))
    paper = str(getattr(papers, which))
    with middle(target=running.url.removeprefix("http://"), certificate=paper) as end:
        url = f"https://localhost:{end.port}"
        for way in (_as_client, _as_worker, _as_agent):
            with pytest.raises(UnreachableError, match=f"The certificate of {url}/? {words}"):
                way(url, running)
        assert end.bytes_up == 0


def test_a_plain_server_is_not_taken_for_one_with_tls(running: Running) -> None:
    with pytest.raises(UnreachableError, match="does not speak TLS"):
        _as_worker(running.url.replace("http://", "https://"), running)


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_file_of_certificates_that_is_none_is_an_error_that_names_it(
    text: str | None, running: Running, behind_tls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ca.pem"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("TUNEFLEET_CA_FILE", str(file))
    with pytest.raises(MachineError, match=r"TUNEFLEET_CA_FILE=.*ca\.pem is not a valid certificate file"):
        _as_client(f"https://localhost:{behind_tls}", running)


@WAYS
def test_a_proxy_with_a_password_lets_us_through(
    way: Way, running: Running, behind_tls: int, papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another loopback address: of localhost itself no proxy is asked.
    url = f"https://127.0.0.2:{behind_tls}"
    monkeypatch.setenv("TUNEFLEET_CA_FILE", str(papers.authority))
    with middle(kind="proxy", credentials="me:se@cret") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{WORDS}@127.0.0.1:{proxy.port}")
        assert way(url, running)
        assert set(proxy.tunnels) == {f"127.0.0.2:{behind_tls}"}
        monkeypatch.setenv("NO_PROXY", "127.0.0.2")
        before = proxy.connections
        assert way(url, running)
        assert proxy.connections == before


@WAYS
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"credentials": "me:other"}, r"requires authentication \(407\)"),
        ({"refuses": "403 Forbidden"}, r"refuses connections to .*: 403 Forbidden"),
    ],
)
def test_a_proxy_that_refuses_is_named_without_its_password(
    way: Way,
    options: dict[str, Any],
    words: str,
    running: Running,
    behind_tls: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with middle(kind="proxy", **options) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{WORDS}@127.0.0.1:{proxy.port}")
        with pytest.raises(UnreachableError, match=words) as refused:
            way(f"https://127.0.0.2:{behind_tls}", running)
        assert f"http://127.0.0.1:{proxy.port}" in str(refused.value)
        assert "cret" not in f"{refused.value} {refused.value.hint}"


def test_a_plain_server_is_reached_through_a_proxy_and_its_refusal_is_named(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with middle(listen="0.0.0.0:0", target=running.url.removeprefix("http://")) as line:
        url = f"http://127.0.0.2:{line.port}"
        with middle(kind="proxy", credentials="me:se@cret") as proxy:
            monkeypatch.setenv("HTTP_PROXY", f"http://{WORDS}@127.0.0.1:{proxy.port}")
            assert _as_client(url, running)
            assert _passed(proxy)
            monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
            with pytest.raises(UnreachableError, match=r"\(407\)"):
                _as_client(url, running)
        with pytest.raises(
            UnreachableError, match=f"Cannot reach {url} through the proxy http://127.0.0.1:{proxy.port}"
        ):
            _as_worker(url, running)


def _passed(proxy: Middle) -> bool:
    return any(target.startswith("http://127.0.0.2") for target in proxy.tunnels)
