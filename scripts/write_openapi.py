"""The OpenAPI document that the page's client is typed by: `web/openapi.json`, written by `make docs`.

It is the server's own, without the examples: they are for people, and change more often than the shapes do.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tunefleet.api.app import create_app
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.settings import ServerSettings, load

PATH = Path(__file__).resolve().parent.parent / "web/openapi.json"


def text() -> str:
    """Return the document as it is committed."""
    with tempfile.TemporaryDirectory(prefix="tunefleet-openapi-") as folder:
        core = open_context(load(ServerSettings, data=Path(folder)))
        try:
            document = create_app(core).openapi()
        finally:
            core.close()
    document = {**document, "info": {"title": document["info"]["title"], "version": "v1"}}
    return json.dumps(_plain(document), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _plain(part: Any, *, names: bool = False) -> Any:
    """Leave out examples, and say of a tuple only that it is a list, which the page's client can read.

    Args:
        part: A part of the document.
        names: Whether its keys are names of fields, paths or schemas, and not words of OpenAPI.
    """
    if isinstance(part, list):
        return [_plain(item) for item in part]
    if not isinstance(part, dict):
        return part
    if not names and "prefixItems" in part:
        forms = part["prefixItems"]
        part = {**part, "items": forms[0] if all(form == forms[0] for form in forms) else {"anyOf": forms}}
        part = {key: value for key, value in part.items() if key not in {"prefixItems", "minItems", "maxItems"}}
    return {
        key: _plain(value, names=not names and key in {"properties", "schemas", "paths"})
        for key, value in part.items()
        if names or key not in {"example", "examples"}
    }
