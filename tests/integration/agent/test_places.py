"""An agent fetches rows from public or allowed addresses only."""

from __future__ import annotations

import http.server
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.listening import listening
from tunefleet.client.external.download import Downloader
from tunefleet.errors import ForbiddenError, InputError, TooLargeError


@pytest.fixture
def site() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path.startswith("/away"):
                self.send_response(302)
                self.send_header("Location", "http://169.254.169.254/latest/meta-data")
                self.end_headers()
                return
            body = b'{"text": "x"}\n' * 10
            self.send_response(200 if self.path.startswith("/rows") else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with listening(Handler) as url:
        yield url


def test_only_public_or_allowed_addresses_are_fetched(tmp_path: Path, site: str) -> None:
    with pytest.raises(ForbiddenError, match="TUNEFLEET_URL_ALLOW"):
        Downloader(tmp_path).fetch(f"{site}/rows.jsonl")
    for allowed in (["127.0.0.0/8"], ["127.0.0.1"]):
        path = Downloader(tmp_path, allowed=allowed).fetch(f"{site}/rows.jsonl")
        assert path.name == "rows.jsonl"
        assert path.read_text().count("\n") == 10
    allowing = Downloader(tmp_path, allowed=["127.0.0.0/8", "169.254.0.0/16"])
    with pytest.raises(ForbiddenError, match=r"169\.254"):
        allowing.fetch(f"{site}/away.jsonl")
    with pytest.raises(InputError, match="404"):
        allowing.fetch(f"{site}/nothing.jsonl")
    with pytest.raises(TooLargeError):
        Downloader(tmp_path, allowed=["127.0.0.0/8"], max_bytes=5).fetch(f"{site}/rows.jsonl?another")
    for address in ("file:///etc/passwd", "http://[::ffff:169.254.169.254]/rows.jsonl", "http://0.0.0.0:1/rows.jsonl"):
        with pytest.raises(ForbiddenError):
            Downloader(tmp_path).fetch(address)
    assert not list(tmp_path.glob("*/.*.partial")), "nothing half is left"
