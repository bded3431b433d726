"""A machine joins a real server: what it keeps, what a repeated command does, and whom its key is sent to."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.integration.api.support import Running
from tunefleet.cli.main import app
from tunefleet.client import Client
from tunefleet.errors import AuthError, ConflictError, InputError, UnreachableError
from tunefleet.settings import ProcessSettings, load, load_worker
from tunefleet.worker.machine import enrollment


def _token(running: Running, name: str | None = None) -> str:
    with Client(running.url, running.admin_key) as client:
        return client.workers.invite(name, tags=["lab"]).token


def _join(url: str, token: str, *, replace: bool = False) -> enrollment.Enrollment:
    return enrollment.join(load(ProcessSettings), url, token, {"RESULTS_DIR": "/data"}, replace=replace, patience_s=0.5)


def test_a_repeated_command_keeps_the_key_and_another_machine_is_refused(
    running: Running, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = _token(running, "gpu-1")
    done = CliRunner().invoke(app, ["join", running.url, token, "--no-start"])
    assert done.exit_code == 0, done.output
    file = home / "worker.env"
    before = file.read_text()
    assert {stat.S_IMODE(path.stat().st_mode) for path in (file, home / "join.json")} == {0o600}
    file.unlink()  # as if the answer had been lost
    assert CliRunner().invoke(app, ["join", running.url, token, "--no-start"]).exit_code == 0
    assert file.read_text() == before
    settings = load_worker()
    assert (settings.server_url, settings.worker_id, settings.tags) == (running.url, "gpu-1", ("lab",))
    assert settings.key is not None
    with Client(running.url, settings.key.get_secret_value()) as client:
        assert client.info().role == "worker"
    monkeypatch.setenv("TUNEFLEET_HOME", str(home / "other"))
    with pytest.raises(ConflictError, match="Another machine has joined"):
        _join(running.url, token)
    assert not (home / "other" / "worker.env").exists()


def test_a_key_goes_to_its_own_server_only_and_one_of_the_environment_comes_first(
    running: Running, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _join(running.url, _token(running))
    assert load_worker().key is not None
    assert load_worker(server_url="http://elsewhere.example").key is None
    monkeypatch.setenv("TUNEFLEET_WORKER_KEY", "tf_given")
    found = load_worker()
    assert found.key is not None
    assert found.key.get_secret_value() == "tf_given"
    assert str(found.results_dir) == "results_workers", "nothing of the file counts then"


@pytest.mark.usefixtures("home")
def test_a_machine_that_has_joined_moves_to_another_server_only_if_it_is_told_to(running: Running) -> None:
    _join(running.url, _token(running))
    other = running.url.replace("127.0.0.1", "localhost")
    with pytest.raises(InputError, match=r"is already a worker of"):
        _join(other, _token(running))
    assert _join(other, _token(running), replace=True).url == other


def test_what_fails_leaves_no_settings(running: Running, home: Path) -> None:
    with pytest.raises(AuthError, match="join token is wrong"):
        _join(running.url, "tfj_none")
    with pytest.raises(UnreachableError, match="No server responds"):
        _join("http://127.0.0.1:9", _token(running))
    with pytest.raises(InputError, match="has a quote"):
        enrollment.join(load(ProcessSettings), running.url, _token(running), {"RESULTS_DIR": "/it's"})
    assert not (home / "worker.env").exists()


def test_invitations_are_made_listed_and_withdrawn_by_command(
    running: Running, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEFLEET_URL", running.url)
    monkeypatch.setenv("TUNEFLEET_KEY", running.admin_key)
    made = CliRunner().invoke(app, ["workers", "invite", "gpu-9", "--tags", "a,b", "--expires", "2h"])
    command = next(line for line in made.output.splitlines() if line.startswith("tunefleet join"))
    assert command.startswith(f"tunefleet join {running.url} tfj_")
    with Client() as client:
        mine = next(each for each in client.workers.invitations().items if each.worker_id == "gpu-9")
    assert (mine.state, mine.tags, mine.owner) == ("open", ("a", "b"), "gpu-9")
    assert CliRunner().invoke(app, ["workers", "withdraw", mine.id, "--yes"]).exit_code == 0
    listed = CliRunner().invoke(app, ["workers", "invitations"])
    assert "withdrawn" in listed.output
    assert command.split()[-1] not in listed.output
    with pytest.raises(AuthError, match="withdrawn"):
        _join(running.url, command.split()[-1])
