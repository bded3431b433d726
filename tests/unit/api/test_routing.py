"""Routes are made once, for the first who asks for them, and are then what FastAPI makes of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Query
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from tunefleet.api.routing import LateRoute, Router

made: list[str] = []


class Counted(LateRoute):
    """A route that says when it is made."""

    def get_route_handler(self) -> Any:
        made.append(self.path)
        return super().get_route_handler()


def _outer() -> None:
    made.append("outer")


def _inner() -> None:
    made.append("inner")


@pytest.fixture
def app() -> Iterator[FastAPI]:
    router = Router(prefix="/things", tags=["things"], route_class=Counted)

    @router.get("/{number}", dependencies=[Depends(_inner)])
    def thing(number: int, more: Annotated[int, Query(le=9)] = 0) -> int:
        """Return a number."""
        return number + more

    @router.head("/{number}")
    def head(number: int) -> None:
        """Say that it is there."""

    @router.post("/{number}", status_code=201, tags=["more"])
    def make(number: int) -> int:
        """Make one."""
        return number

    whole = FastAPI()
    router.install(whole, prefix="/api", dependencies=[Depends(_outer)])
    made.clear()
    yield whole
    made.clear()


def test_a_route_is_made_for_its_first_request_and_no_other(app: FastAPI) -> None:
    with TestClient(app) as client:
        assert client.get("/api/nothing").status_code == 404
        assert made == []
        assert client.get("/api/things/2", params={"more": 3}).json() == 5
        assert made == ["/api/things/{number}", "outer", "inner"]
        assert client.get("/api/things/2", params={"more": 10}).status_code == 422
        assert client.get("/api/things/x").status_code == 422
        assert client.post("/api/things/4").status_code == 201
        assert made.count("/api/things/{number}") == 2
        assert client.delete("/api/things/4").status_code == 405


def test_the_document_names_all_of_them_as_if_they_had_been_made(app: FastAPI) -> None:
    found = app.openapi()["paths"]["/api/things/{number}"]
    assert {method: told["tags"] for method, told in found.items()} == {
        "get": ["things"], "head": ["things"], "post": ["things", "more"],
    }  # fmt: skip
    assert found["get"]["operationId"] == "thing_api_things__number__get"
    assert found["get"]["summary"] == "Thing"
    assert found["get"]["description"] == "Return a number."
    assert [each["name"] for each in found["get"]["parameters"]] == ["number", "more"]


def test_threads_that_ask_at_once_find_one_route(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Counted.get_route_handler

    def slowly(self: Counted) -> Any:
        time.sleep(0.05)
        return before(self)

    monkeypatch.setattr(Counted, "get_route_handler", slowly)
    route = next(route for route in app.routes if isinstance(route, Counted))
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(route.app)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == ["/api/things/{number}"]
    assert len({id(each) for each in found}) == 1
    assert len(found) == 8


def test_a_route_that_cannot_be_made_says_why_each_time() -> None:
    router = Router()

    @router.get("/")
    def wrong(_given: threading.Thread) -> None:
        """Take what no request has."""

    app = FastAPI(openapi_url=None)
    router.install(app)
    route = next(route for route in app.routes if isinstance(route, APIRoute))
    for _ in range(2):
        with pytest.raises(Exception, match="Invalid args for response field"):
            _ = route.dependant
    with pytest.raises(AttributeError):
        _ = LateRoute("/", _inner).nothing_like_that


def test_an_attribute_that_is_missing_while_it_is_made_is_no_missing_attribute() -> None:
    """Or who asks for `dependant`, and takes none for a route without a key, would let everybody in."""

    class Wrong(LateRoute):
        def get_route_handler(self) -> Any:
            raise AttributeError("dependant")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="The route /wrong cannot be made"):
            getattr(Wrong("/wrong", _inner), "dependant", None)


def test_what_no_app_would_serve_is_refused() -> None:
    router = Router()
    router.mount("/files", FastAPI())
    with pytest.raises(TypeError, match="give it to the app itself"):
        router.install(FastAPI())
