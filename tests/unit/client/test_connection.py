from __future__ import annotations

from pathlib import Path

import pytest

from tunefleet.client import AsyncClient, Client
from tunefleet.client.connection import Connection, normalise, read_client_file, resolve, write_client_file
from tunefleet.errors import AuthError, InputError, UnreachableError
from tunefleet.settings import ClientSettings, load


def test_arguments_come_before_the_environment_and_that_before_the_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_client_file(home / "client.json", Connection("http://saved:1", "k-saved"))
    assert resolve() == Connection("http://saved:1", "k-saved")
    monkeypatch.setenv("TUNEFLEET_URL", "http://env:2")
    monkeypatch.setenv("TUNEFLEET_KEY", "k-env")
    assert resolve() == Connection("http://env:2", "k-env")
    assert resolve("http://arg:3", "k-arg") == Connection("http://arg:3", "k-arg")


def test_a_saved_key_is_not_sent_to_another_server(home: Path) -> None:
    write_client_file(home / "client.json", Connection("http://saved:1", "k-saved"))
    with pytest.raises(AuthError, match="tunefleet login http://other:2"):
        resolve("http://other:2")
    assert resolve("http://saved:1/").key == "k-saved"


def test_without_a_server_the_way_out_is_named(home: Path) -> None:
    with pytest.raises(UnreachableError, match=r"tunefleet up.*tunefleet login"):
        resolve()


def test_the_file_is_for_this_user_alone(home: Path) -> None:
    file = home / "sub" / "client.json"
    write_client_file(file, Connection("http://x", "secret"))
    write_client_file(file, Connection("http://y", "secret"))
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["client.json"]
    found = read_client_file(file)
    assert found is not None
    assert found.url == "http://y"
    file.write_text("{")
    with pytest.raises(InputError, match="is unreadable or invalid"):
        read_client_file(file)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://box/", "https://box"),
        ("http://box/api/v1", "http://box"),
        ("http://user:pw@box:1/?x=1#y", "http://box:1"),
        ("http://box/prefix/", "http://box/prefix"),
    ],
)
def test_a_url_may_be_written_in_many_ways(written: str, meant: str) -> None:
    assert normalise(written) == meant


@pytest.mark.parametrize("written", ["", "ftp://x", "http://", "http://[::1"])
def test_what_is_no_url_is_refused(written: str) -> None:
    with pytest.raises(InputError, match="not a server URL"):
        normalise(written)


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(Connection("http://x", "secret"))


async def test_clients_know_their_server_and_close() -> None:
    with Client("http://x:1", "k") as client:
        assert client.url == "http://x:1"
        assert client.data is client.artifacts
        assert "status" in (client.tasks.list.__doc__ or "") or client.tasks.list.__name__ == "list_tasks"
    async with AsyncClient("http://x:1", "k") as other:
        assert other.url == "http://x:1"
    assert load(ClientSettings).url is None


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("ftp://user:secret@host", "ftp://…@host"),
        ("http://:fed-secret@host:9100\nFederatedCallback(token='fed-secret')", "http://…@host:9100"),
        ("x://" + "y" * 5000, "x://" + "y" * 196),
    ],
)
def test_an_error_about_a_url_shows_no_token(written: str, shown: str) -> None:
    with pytest.raises(InputError, match="is not a server URL") as caught:
        normalise(written)
    assert repr(shown) in caught.value.message
    assert "secret" not in str(caught.value)
