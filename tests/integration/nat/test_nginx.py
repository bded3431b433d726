"""A real nginx before the server, set up by what the guides print: what must pass it does, and at once."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.api.support import ECHO, Running, until
from tests.integration.nat.conftest import Papers
from tests.integration.nat.test_tls import WAYS, Way
from tunefleet.client import Client

ROOT = Path(__file__).resolve().parents[3]
GUIDES = ROOT / "docs" / "how-to"
OWN = ROOT / ".nginx/usr/sbin/nginx"
SIZE = 8 << 20
"""nginx takes bodies of up to 1 MiB where it is not told otherwise."""
FRAME = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{guide}
}}
"""


def _printed(guide: str) -> str:
    (found,) = re.findall(r"```nginx\n(.*?)```", (GUIDES / f"{guide}.md").read_text(), re.DOTALL)
    return str(found)


@pytest.fixture(scope="module", params=["tls", "run-several-servers"])
def nginx(
    request: pytest.FixtureRequest,
    running: Running,
    papers: Papers,
    missing: Callable[[str], None],
    free_port: Callable[[], int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """The address of one that runs a guide's text with these ports and certificates in it."""
    program = str(OWN) if OWN.exists() else shutil.which("nginx")
    if program is None:
        missing("nginx")
    folder, port, here = tmp_path_factory.mktemp("nginx"), free_port(), running.url.removeprefix("http://")
    guide, places = _printed(request.param), {
        r"listen 443\b": f"listen 127.0.0.1:{port}",
        r"(?<=certificate )\S+(?=;)|(?<=certificate_key )\S+(?=;)": str(papers.good),
        # Of two servers the first one is away.
        r"10\.0\.0\.11:8000": f"127.0.0.1:{free_port()}",
        r"10\.0\.0\.12:8000|127\.0\.0\.1:8000": here,
    }  # fmt: skip
    for place, what in places.items():
        guide = re.sub(place, what, guide)
    (folder / "nginx.conf").write_text(FRAME.format(folder=folder, guide=guide))
    process = subprocess.Popen(
        [program, "-p", str(folder), "-c", str(folder / "nginx.conf")], stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: process.poll() is not None or _listens(port))
        assert process.poll() is None, (folder / "error.log").read_text()
        yield f"https://localhost:{port}"
    finally:
        process.terminate()
        process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture(autouse=True)
def trusted(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFLEET_CA_FILE", str(papers.authority))


@WAYS
def test_clients_workers_and_agents_pass(way: Way, running: Running, nginx: str) -> None:
    assert way(nginx, running)


def test_a_file_passes_whole(running: Running, nginx: str, tmp_path: Path) -> None:
    content = random.Random(3).randbytes(SIZE)
    (tmp_path / "weights.bin").write_bytes(content)
    with Client(nginx, running.admin_key, patience_s=30.0) as client:
        pushed = client.artifacts.push(tmp_path / "weights.bin")
        client.artifacts.fetch(pushed.id, tmp_path / "back")
    assert next(path for path in (tmp_path / "back").rglob("*") if path.is_file()).read_bytes() == content


def test_what_happens_is_heard_at_once_and_from_whom_it_comes_is_known(
    running: Running, nginx: str, papers: Papers
) -> None:
    headers = {"Authorization": f"Bearer {running.admin_key}"}
    context = ssl.create_default_context(cafile=str(papers.authority))
    with httpx.Client(base_url=f"{nginx}/api/v1", headers=headers, verify=context, timeout=30) as client:
        began = time.monotonic()
        with client.stream("GET", "/events/stream") as stream:
            lines = stream.iter_lines()
            made = client.post("/workflows", content=ECHO, headers={"Content-Type": "application/yaml"})
            assert made.is_success, made.text
            assert any("workflow.submitted" in line for line in lines)
        assert time.monotonic() - began < 10, "it is not held back until there is more"
        rows = client.get("/audit", params={"limit": 5}).json()["items"]
        assert any(row["status"] == 201 and row["address"] == "127.0.0.1" for row in rows)
