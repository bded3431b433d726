"""What a machine installs that is to join: the server's own version, from the server."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import unquote

import httpx

from tests.integration.api.support import Running
from tunefleet.api.routers import install
from tunefleet.runtime import self_upgrade


def test_pip_installs_what_the_server_offers_and_it_runs(running: Running, tmp_path: Path) -> None:
    said = httpx.get(f"{running.url}/install").text.strip()
    assert said.startswith(f"tunefleet[train] @ {running.url}/install/tunefleet-")
    assert self_upgrade._offered(running.url, said, None) == said, "a worker that is upgraded takes it"
    version = unquote(said.rpartition("/tunefleet-")[2].partition("-")[0])
    assert self_upgrade._offered(running.url, said, version) == said
    assert self_upgrade._VERSION.fullmatch(version), version
    wanted = said.replace("[train]", "")  # the libraries are here already
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path / "to"),
    ]
    subprocess.run([*pip, wanted], check=True, timeout=120)
    code = "import tunefleet, sys; print(tunefleet.__file__); from tunefleet.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"],
        env={"PYTHONPATH": str(tmp_path / "to"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    where, version = done.stdout.splitlines()
    assert where.startswith(str(tmp_path / "to")), "what was installed runs, and not the checkout"
    assert install.wheel_name().split("-")[1] in version


def test_the_wheel_has_what_the_server_runs_from_and_nothing_of_its_data(running: Running, tmp_path: Path) -> None:
    url = httpx.get(f"{running.url}/install").text.split(" @ ")[1].strip()
    (tmp_path / "wheel.zip").write_bytes(httpx.get(url, timeout=60).raise_for_status().content)
    with zipfile.ZipFile(tmp_path / "wheel.zip") as wheel:
        assert wheel.testzip() is None
        names = wheel.namelist()
    assert "tunefleet/api/routers/install.py" in names
    assert all(name.startswith(("tunefleet/", "tunefleet-")) for name in names)
    assert not [name for name in names if "__pycache__" in name]


def test_another_name_is_not_there(running: Running) -> None:
    for name in ("tunefleet-9.9-py3-none-any.whl", "..%2F..%2Fkeys%2Fadmin.key", "RECORD"):
        assert httpx.get(f"{running.url}/install/{name}").status_code == 404
