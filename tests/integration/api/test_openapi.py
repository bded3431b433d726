"""The OpenAPI document is valid and complete; `tests/properties/api` asks a server whether it is true."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import httpx
import pytest

from tunefleet import schemas
from tunefleet.api.routers import campaigns
from tunefleet.spec.options import federation_options

HOMES = [
    federation_options,
    campaigns,
    *(import_module(each.name) for each in pkgutil.walk_packages(schemas.__path__, f"{schemas.__name__}.")),
]
PUBLIC = {"/api/v1/healthz", "/api/v1/session", "/api/v1/join", "/api/v1/info", "/api/v1/schema", "/healthz"}


@pytest.fixture
def document(admin: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = admin.get("/openapi.json").json()
    return found


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def test_document_is_valid(document: dict[str, Any]) -> None:
    import schemathesis

    schemathesis.openapi.from_dict(document).validate()
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(_references(document)) <= known


def test_every_operation_is_described_tagged_and_protected(document: dict[str, Any]) -> None:
    tags = {tag["name"] for tag in document["tags"]}
    for path, method, operation in _operations(document):
        where = f"{method} {path}"
        assert operation["description"], where
        assert set(operation["tags"]) <= tags, where
        assert "application/problem+json" in operation["responses"]["default"]["content"], where
        assert (operation.get("security") == []) == (path in PUBLIC), where


def test_every_json_body_has_an_example_that_fits(document: dict[str, Any]) -> None:
    for path, method, operation in _operations(document):
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if body is not None:
            assert "example" in body, f"{method} {path} has no example (api/openapi.py)"
            forms = [body["schema"], *body["schema"].get("anyOf", ())]
            names = [form["$ref"].rpartition("/")[2] for form in forms if "$ref" in form]
            for name in names[:1]:  # the guide's own route describes its body in place
                model = next(getattr(home, name) for home in HOMES if hasattr(home, name))
                assert model.model_validate(body["example"]), f"{method} {path}"
