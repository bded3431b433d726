"""What routes take as their bodies is built when they are made; FastAPI would warn of aliases at the first request."""

from __future__ import annotations

import importlib
import pkgutil
import typing
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel

from tunefleet.api import routers


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    for inner in typing.get_args(kind):
        yield from _models(inner)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind


def test_no_body_of_a_route_is_built_later() -> None:
    names = [each.name for each in pkgutil.walk_packages(routers.__path__, f"{routers.__name__}.")]
    app = FastAPI()
    for name in names:
        importlib.import_module(name).router.install(app)
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    bodies = {
        model
        for route in routes
        for body in route.dependant.body_params
        for model in _models(body.field_info.annotation)
    }
    assert len(bodies) > 20
    assert [model.__name__ for model in bodies if model.model_config.get("defer_build")] == []
