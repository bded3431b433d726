"""Names, folders and addresses that a request may give."""

from __future__ import annotations

import http.server
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.listening import listening
from tunefleet.agent import places
from tunefleet.client.download import Downloader
from tunefleet.errors import ForbiddenError, InputError, TooLargeError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "datasets"
    (root / "sub").mkdir(parents=True)
    (root / "rows.jsonl").write_text("{}\n")
    (root / "sub" / "rows.csv").write_text("a\n")
    (root / "split").mkdir()
    for name in ("train.jsonl", "validation-00000.parquet"):
        (root / "split" / name).write_text("")
    (root / "saved").mkdir()
    (root / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    (tmp_path / "outside.jsonl").write_text("{}\n")
    return root


@pytest.mark.parametrize("name", ["rows.jsonl", "sub/rows.csv", "./rows.jsonl"])
def test_a_name_is_looked_for_in_the_folder(folder: Path, name: str) -> None:
    found = places.dataset(name, folder)
    assert found.inputs["data.path"] == str((folder / name).resolve())
    assert found.splits == ()
    assert places.dataset(str(folder / name), folder) == found


def test_splits_are_known(folder: Path) -> None:
    assert places.dataset("split", folder).splits == ("train", "validation")
    assert places.dataset("saved", folder).splits == ("train", "test")


@pytest.mark.parametrize("name", ["../outside.jsonl", "{}/../outside.jsonl", "/etc/passwd", "sub/../../outside.jsonl"])
def test_what_lies_outside_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(ForbiddenError, match="DATASETS_DIR"):
        places.dataset(name.format(folder), folder)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b", "/a\0b", "http://[::1", "http://[::1]:x/rows", "~nobody/x.jsonl"])
def test_what_no_file_can_be_called_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(InputError):
        places.dataset(name, folder)


def test_hub_ids_and_addresses(folder: Path) -> None:
    assert places.dataset("org/name", folder).source == {"dataset_name": "org/name"}
    assert places.dataset("hf://datasets/org/name@v1", folder).source == {"dataset_name": "org/name", "revision": "v1"}
    found = places.dataset("https://example.org/x/rows.jsonl?sig=1", folder)
    assert (found.source, found.addresses) == (
        {"path": "rows.jsonl"},
        {"data.path": "https://example.org/x/rows.jsonl?sig=1"},
    )
    with pytest.raises(InputError, match="data file"):
        places.dataset("https://example.org/", folder)
    assert places.model("org/model", folder) == "org/model"
    assert places.model("sub", folder) == str(folder / "sub")
    with pytest.raises(ForbiddenError, match="MODELS_DIR"):
        places.model("/srv/model", folder)


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
