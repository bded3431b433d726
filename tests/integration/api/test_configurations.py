"""The configuration of a model is read from the Hub, once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.fakes.listening import listening
from tunefleet.client.external import hub_config
from tunefleet.errors import ForbiddenError, UnreachableError
from tunefleet.orchestrator.preflight import model_configs
from tunefleet.orchestrator.preflight.model_configs import Configurations
from tunefleet.settings import ServerSettings, load

CONFIG = {"model_type": "llama", "hidden_size": 8}


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = json.dumps(CONFIG).encode() if "/there/" in self.path else b"<html>"
            self.send_response(200 if "gone" not in self.path else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

    with listening(Hub) as url:
        yield url, asked


def test_it_is_found_where_it_is_nearest_and_asked_for_once(tmp_path: Path, hub: tuple[str, list[str]]) -> None:
    address, asked = hub
    settings = load(
        ServerSettings, data=tmp_path, hub_cache=tmp_path, hub_endpoint=address, hub_offline=False,
        url_allow=("127.0.0.1",),
    )  # fmt: skip
    known = Configurations()
    shipped = known.of("builtin:gsm8k-llama-2m", None, settings, 0.0)
    assert not isinstance(shipped, str)
    assert shipped["hidden_size"] == 192
    assert known.of("org/there", None, settings, 0.0) == CONFIG
    assert known.of("org/there", None, settings, 1.0) == CONFIG
    assert asked == ["/org/there/resolve/main/config.json"]
    assert "responded with status 404" in str(known.of("org/gone", "v1", settings, 0.0))
    assert "not a model configuration" in str(known.of("org/odd", None, settings, 0.0))
    assert "local folder" in str(known.of("../etc/passwd", None, settings, 0.0))

    folder = tmp_path / "models--org--here"
    (folder / "snapshots/abc").mkdir(parents=True)
    (folder / "snapshots/abc/config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("abc")
    quiet = settings.model_copy(update={"hub_offline": True})
    assert known.of("org/here", None, quiet, 0.0) == {"model_type": "qwen3"}
    assert "HF_HUB_OFFLINE" in str(known.of("org/nowhere", None, quiet, 0.0))
    assert not any("nowhere" in path for path in asked)


def test_a_hub_in_a_private_range_is_not_reached(tmp_path: Path, hub: tuple[str, list[str]]) -> None:
    address, asked = hub
    settings = load(ServerSettings, data=tmp_path, hub_cache=tmp_path, hub_endpoint=address, hub_offline=False)
    assert "could not be fetched" in str(Configurations().of("org/there", None, settings, 0.0))
    assert asked == []


def test_a_search_lists_what_the_hub_knows_of_each_model(hub_of_models: tuple[str, list[str]]) -> None:
    address, asked = hub_of_models
    found = hub_config.search(address, "small model", 5, ("127.0.0.1",))
    (path,) = asked
    query = parse_qs(urlsplit(path).query)
    assert urlsplit(path).path == "/api/models"
    assert query["search"] == ["small model"]
    assert query["limit"] == ["5"]
    assert set(query["expand[]"]) == {"safetensors", "gated", "downloads"}
    assert [model.model_dump() for model in map(model_configs.hub_model, found)] == [
        {"id": "org/open", "weights": 135_000_000, "downloads": 9, "gated": False},
        {"id": "org/gated", "weights": None, "downloads": 0, "gated": True},
    ]
    with pytest.raises(UnreachableError, match="not a list of models"):
        hub_config.search(f"{address}/odd", "x", 5, ("127.0.0.1",))
    with pytest.raises(ForbiddenError):
        hub_config.search(address, "x", 5, ())


@pytest.fixture
def hub_of_models() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    models = [
        {"id": "org/open", "gated": False, "downloads": 9, "safetensors": {"total": 135_000_000}},
        {"id": "org/gated", "gated": "manual", "safetensors": {"total": "many"}},
    ]

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = json.dumps({} if self.path.startswith("/odd") else models).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

    with listening(Hub) as url:
        yield url, asked
