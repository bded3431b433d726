"""`tunefleet debug-dump` without a server: what the archive has, and what is not in it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tunefleet.cli.main import run
from tunefleet.cli.server import checks

PLANTED = {
    "TUNEFLEET_SECRET_HUB": "planted-hub-secret",
    "TUNEFLEET_KEY": "planted-client-key",
    "REDIS_URL": "redis://user:planted-redis-word@127.0.0.1:1/0",
    "TUNEFLEET_SMTP_URL": "smtp://me:planted-smtp-word@127.0.0.1:1",
    "WANDB_API_KEY": "planted-tracker-key",
    "AWS_SECRET_ACCESS_KEY": "planted-bucket-key",
}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # The others start torch and nvidia-smi, which are no part of what is asked here.
    monkeypatch.setattr(checks, "CHECKS", (checks.python, checks.disk, checks.port))
    for name, value in {
        **PLANTED,
        "TUNEFLEET_HOME": str(tmp_path / "home"),
        "TUNEFLEET_URL": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path / "results"))
    monkeypatch.setenv("TUNEFLEET_DATA", str(tmp_path / "data"))
    (tmp_path / "data/keys").mkdir(parents=True)
    (tmp_path / "data/keys/admin.key").write_text("planted-admin-key-of-a-file")
    (tmp_path / "data/logs").mkdir()
    (tmp_path / "data/logs/server.log").write_text(
        "INFO a plain line\n"
        "INFO the header was Authorization: Bearer planted-header-token\n"
        'INFO {"password": "planted-logged-word", "user": "me"}\n'
        "INFO GET http://x/y?X-Amz-Signature=planted-signature&a=1 and planted-hub-secret by value\n"
        "INFO planted-admin-key-of-a-file\n"
        + "".join(f"INFO line {number}\n" for number in range(2000))
        + "INFO api_key=planted-late-key end\n"
    )
    (tmp_path / "results").mkdir()
    (tmp_path / "results/worker.log").write_text("INFO a worker\n")
    return tmp_path


def dump(where: Path) -> dict[str, str]:
    assert run(["debug-dump", str(where / "dump.tar.gz"), "--json"]) == 0
    with tarfile.open(where / "dump.tar.gz") as archive:
        found = {}
        for member in archive.getmembers():
            stream = archive.extractfile(member)
            assert stream is not None
            assert member.mode == 0o600
            found[member.name.partition("/")[2]] = stream.read().decode()
        return found


def test_without_a_server_the_dump_has_what_there_is_and_says_what_is_missing(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = dump(machine)
    assert {"about.json", "settings/server.json", "settings/worker.json", "doctor.json", "missing.txt"} <= found.keys()
    assert "server: No server responds at http://127.0.0.1:9" in found["missing.txt"]
    assert "server" in json.loads(capsys.readouterr().out)["missing"]
    assert json.loads(found["about.json"])["packages"]["pydantic"]
    assert json.loads(found["settings/server.json"])["lost_after_s"] == 30.0
    assert any(finding["name"] == "Python" for finding in json.loads(found["doctor.json"]))
    server_log = next(text for name, text in found.items() if name.endswith("server.log"))
    assert len(server_log.splitlines()) == 1000
    assert "line 1999" in server_log
    assert any(name.endswith("worker.log") for name in found)
    assert (machine / "dump.tar.gz").stat().st_mode & 0o077 == 0


def test_no_secret_of_the_machine_is_in_the_archive(machine: Path) -> None:
    text = "\n".join(dump(machine).values())
    assert "planted" not in text
    assert "TUNEFLEET_SECRET_HUB" in text  # that there is one may be known


def test_an_archive_that_cannot_be_written_is_a_sentence(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["debug-dump", str(machine / "nowhere" / "dump.tar.gz")]) != 0
    assert "Choose another file" in capsys.readouterr().err


def test_a_setting_that_cannot_be_used_costs_nothing_but_its_own_part(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what one looks for: without a dump nobody would find it."""
    monkeypatch.setenv("TUNEFLEET_PORT", "abc")
    monkeypatch.setenv("HEARTBEAT_INTERVAL_SEC", "never")
    found = dump(machine)
    assert "TUNEFLEET_PORT must be an integer, not 'abc'" in found["missing.txt"]
    assert "settings/client.json" in found
    assert any("INFO a plain line" in text or "INFO line 1999" in text for text in found.values()), "logs are found"
    assert "planted" not in "".join(found.values())
    assert (machine / "dump.tar.gz").stat().st_mode & 0o077 == 0
