"""How routes are declared and made: each once, when it is asked for first.

FastAPI makes the routes of an `APIRouter` where they are declared, and all of them again for the first request to an
app that includes it, on its event loop: of two hundred, a fifth of a server's start, and most of a second after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from fastapi import APIRouter, FastAPI
from fastapi.params import Depends
from fastapi.routing import APIRoute
from starlette.routing import compile_path, get_name

_making = threading.RLock()


class LateRoute(APIRoute):
    """A route that knows which requests are its own, and is made for the first of them, or for who looks into it.

    Args:
        path: The whole of its path.
        endpoint: What serves it.
        methods: Of requests.
        name: Of the route; default: its endpoint's.
        include_in_schema: Whether the OpenAPI document names it.
        options: As `APIRoute` takes them.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        methods: Sequence[str] | set[str] | None = None,
        name: str | None = None,
        include_in_schema: bool = True,
        **options: Any,
    ) -> None:
        self.path, self.endpoint = path, endpoint
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self.methods = {method.upper() for method in methods or ("GET",)}
        self.name = name or get_name(endpoint)
        self.include_in_schema = include_in_schema
        self._make: Callable[[], None] = partial(
            super().__init__,
            path,
            endpoint,
            methods=self.methods,
            name=self.name,
            include_in_schema=include_in_schema,
            **options,
        )

    def __getattr__(self, name: str) -> Any:
        """Make the route: this is asked for what it does not have yet."""
        with _making:
            make = self.__dict__.pop("_make", None)
            if make is not None:
                try:
                    make()
                except AttributeError as error:
                    self._make = make
                    # Who asks for an attribute would take it that there is none.
                    raise RuntimeError(f"The route {self.path} cannot be made.") from error
                except BaseException:
                    self._make = make
                    raise
        return object.__getattribute__(self, name)


class Declared(NamedTuple):
    """A route as a module has declared it.

    Args:
        path: Below the prefix of its router.
        endpoint: What serves it.
        options: As `APIRouter.add_api_route` takes them.
    """

    path: str
    endpoint: Callable[..., Any]
    options: dict[str, Any]


class Router(APIRouter):
    """The routes of a module; none of them is made before an app has them.

    Args:
        prefix: Of their paths.
        tags: Of each, before its own.
        route_class: Of its routes.
        include_in_schema: Whether the OpenAPI document names those that do not say otherwise.
    """

    def __init__(
        self,
        *,
        prefix: str = "",
        tags: Sequence[str] = (),
        route_class: type[LateRoute] = LateRoute,
        include_in_schema: bool = True,
    ) -> None:
        super().__init__(prefix=prefix, tags=[*tags], route_class=route_class, include_in_schema=include_in_schema)
        self.declared: list[Declared] = []

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Remember a route; what `get`, `post` and the like come to."""
        self.declared.append(Declared(path, endpoint, options))

    def install(self, app: FastAPI, *, prefix: str = "", dependencies: Sequence[Depends] = ()) -> None:
        """Give its routes to an app.

        Args:
            app: Whose requests they serve.
            prefix: Before the router's own.
            dependencies: Of each route, before its own.

        Raises:
            TypeError: If it has what is no HTTP route, such as a mount: an app would not serve that.
        """
        if self.routes:
            raise TypeError(f"{self.routes[0]!r} is no route that a request comes to late; give it to the app itself.")
        for path, endpoint, options in self.declared:
            more = {
                "tags": [*self.tags, *(options.get("tags") or ())],
                "dependencies": [*dependencies, *(options.get("dependencies") or ())],
                "include_in_schema": self.include_in_schema and options.get("include_in_schema", True),
                "route_class_override": self.route_class,
            }
            app.router.add_api_route(prefix + self.prefix + path, endpoint, **{**options, **more})
