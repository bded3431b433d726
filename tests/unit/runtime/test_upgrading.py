"""An upgrade installs what the server offers that the package came from, and nothing from a public index."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tunefleet.errors import ConflictError, InputError
from tunefleet.runtime import self_upgrade

SERVER = "https://lab.example.org/fleet"
OFFER = f"tunefleet[train] @ {SERVER}/install/tunefleet-1.2.3-py3-none-any.whl"
ROOT = Path(__file__).resolve().parents[3]


class Installed:
    """A distribution, of which only its origin is asked for."""

    def __init__(self, url: str | None) -> None:
        self._url = url

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self._url is None else json.dumps({"url": self._url})


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Let this environment be ours to change, and return what its interpreter is told."""
    told: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        told.append(command)
        return subprocess.CompletedProcess(command, 0, "done", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(self_upgrade, "refusal", lambda: None)
    came_from(monkeypatch, f"{SERVER}/install/tunefleet-1.0-py3-none-any.whl")
    return told


def came_from(monkeypatch: pytest.MonkeyPatch, url: str | None) -> None:
    monkeypatch.setattr(self_upgrade, "distribution", lambda name: Installed(url))


def offers(line: str) -> object:
    def ask(url: str) -> str:
        assert url == f"{SERVER}/install"
        return line + "\n"

    return ask


@pytest.mark.parametrize("version", ["1.2.3", None])
def test_the_servers_own_package_is_installed(ours: list[list[str]], tmp_path: Path, version: str | None) -> None:
    self_upgrade.upgrade(version, who="worker", ask=offers(OFFER), ca_file=tmp_path / "ca.pem")  # type: ignore[arg-type]
    install = [sys.executable, "-m", "pip", "install", "--upgrade", "--no-input", OFFER]
    assert ours == [[*install, "--cert", str(tmp_path / "ca.pem")]]


@pytest.mark.parametrize(
    ("line", "version", "why"),
    [
        (OFFER, "1.2.4", r"offers 1\.2\.3, not 1\.2\.4"),
        ("tunefleet", None, "does not offer a package of its own"),
        ("tunefleet==1.2.3", "1.2.3", "does not offer a package of its own"),
        (OFFER.replace("lab.", "stranger."), None, "does not offer a package of its own"),
        (OFFER.replace("/install/", "/elsewhere/"), None, "does not offer a package of its own"),
        (OFFER + " --index-url http://stranger.example", None, "does not offer a package of its own"),
        ("<html>a captive portal</html>", None, "does not offer a package of its own"),
    ],
)
def test_nothing_else_is(ours: list[list[str]], line: str, version: str | None, why: str) -> None:
    with pytest.raises(ConflictError, match=why):
        self_upgrade.upgrade(version, who="worker", ask=offers(line))  # type: ignore[arg-type]
    assert not ours


@pytest.mark.parametrize(
    "url", [None, "file:///tmp/tunefleet-1.0-py3-none-any.whl", "https://example.org/tunefleet-1.0-py3-none-any.whl"]
)
def test_what_came_from_elsewhere_is_upgraded_there(
    ours: list[list[str]], monkeypatch: pytest.MonkeyPatch, url: str | None
) -> None:
    came_from(monkeypatch, url)
    with pytest.raises(ConflictError, match="it was not installed from a server"):
        self_upgrade.upgrade("1.2.3", who="agent", ask=lambda asked: pytest.fail(asked))
    assert not ours


@pytest.mark.parametrize("version", ["", "1; rm -rf /", "--pre", "1.0 evil", 3, ["1.0"]])
def test_what_is_no_version_never_comes_to_pip(ours: list[list[str]], version: object) -> None:
    with pytest.raises(InputError, match="is not a version"):
        self_upgrade.upgrade(version, who="worker", ask=offers(OFFER))  # type: ignore[arg-type]
    assert not ours


def test_an_environment_that_is_not_ours_is_left_alone(ours: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_upgrade, "refusal", lambda: "its Python is managed by the operating system")
    with pytest.raises(ConflictError, match="This agent cannot be upgraded remotely: its Python is managed"):
        self_upgrade.upgrade("1.2.3", who="agent", ask=offers(OFFER))  # type: ignore[arg-type]
    assert not ours


INSTALLS = re.compile(r"pip3? install\b(?P<rest>[^\n`]*)")


def test_no_page_and_no_hint_installs_the_bare_name_from_a_public_index() -> None:
    """Nor does one with an extra, but with the address behind it: that shell's `pip` may be another environment's."""
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    files += [
        *(ROOT / "src" / "tunefleet").rglob("*.py"),
        *(ROOT / "deploy").rglob("*"),
        *(ROOT / "scripts").glob("*.*"),
    ]
    found = [
        f"{file.relative_to(ROOT)}: {line[0]}"
        for file in files
        if file.is_file() and file.suffix in {".md", ".py", ".sh", ".ps1", ""}
        for line in INSTALLS.finditer(file.read_text(encoding="utf-8", errors="replace"))
        if re.search(r"(?:^|\s)['\"]?tunefleet(?![\w./-]|\[[a-z0-9,]+\] @ )", line["rest"])
    ]
    assert not found
