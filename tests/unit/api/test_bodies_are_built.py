"""What routes take as their bodies is built when they are made; FastAPI would warn of aliases at the first request."""

from __future__ import annotations

import importlib
import pkgutil
import typing
from collections.abc import Iterator
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel

from tunefleet.agent import routes as agent_routes
from tunefleet.api import routers


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    for inner in typing.get_args(kind):
        yield from _models(inner)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind


def test_no_body_of_a_route_is_built_later() -> None:
    found = pkgutil.walk_packages(routers.__path__, f"{routers.__name__}.")
    modules = [importlib.import_module(each.name) for each in found if not each.ispkg]
    modules.append(agent_routes)
    routes = [route for module in modules for route in module.router.routes if isinstance(route, APIRoute)]
    bodies = {
        model
        for route in routes
        for body in route.dependant.body_params
        for model in _models(body.field_info.annotation)
    }
    assert len(bodies) > 20
    assert [model.__name__ for model in bodies if model.model_config.get("defer_build")] == []
