from __future__ import annotations

from pathlib import Path

from tunefleet.cli.local_cluster.supervisor import SavedServer
from tunefleet.client.connection import Connection, read_client_file, write_client_file


def saved(file: Path) -> str | None:
    found = read_client_file(file)
    return found and found.url


def test_the_server_of_before_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "client.json"
    write_client_file(file, Connection("http://first", "k-1"))
    second = SavedServer(file, Connection("http://second", "k-2"))
    assert saved(file) == "http://second"
    second.restore()
    assert saved(file) == "http://first"
    assert "k-1" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_server_that_was_saved_meanwhile_stays(tmp_path: Path) -> None:
    file = tmp_path / "client.json"
    write_client_file(file, Connection("http://first", "k-1"))
    second = SavedServer(file, Connection("http://second", "k-2"))
    write_client_file(file, Connection("http://login", "k-3"))
    second.restore()
    assert saved(file) == "http://login"


def test_the_only_server_stays_saved(tmp_path: Path) -> None:
    file = tmp_path / "client.json"
    file.write_text("{ broken")
    only = SavedServer(file, Connection("http://only", "k-1"))
    only.restore()
    assert saved(file) == "http://only"
    file.unlink()
    only.restore()
    assert not file.exists()
