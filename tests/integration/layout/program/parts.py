"""Imports one part after the other, as a process that has just started; prints what each brought along as JSON."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

TRAINING = {"torch", "transformers", "trl", "peft"}
CLOUDS = {"azure", "boto3", "botocore", "google.cloud"}


def validators() -> tuple[int, list[str]]:
    """Return how many models documents and settings have, and the names of those whose validator is built."""
    from pydantic import BaseModel

    for name in ("settings", "spec.documents.campaign_document", "spec.tasks.task_types", "spec.documents.workflow"):
        import_module(f"tunefleet.{name}")
    found = list(BaseModel.__subclasses__())
    for kind in found:
        found += kind.__subclasses__()
    ours = [kind for kind in found if kind.__module__.startswith(("tunefleet.settings", "tunefleet.spec"))]
    return len(ours), [kind.__name__ for kind in ours if kind.__pydantic_complete__]


def reopened(folder: Path) -> list[str]:
    """Open a database that is there already."""
    from tunefleet.db import Database

    Database.open(folder / "test.db").close()
    return sorted({"alembic"} & set(sys.modules))


def offers() -> list[str]:
    """Ask what the executors offer."""
    from tunefleet.executors.registry import installed

    installed().offers()
    return sorted(TRAINING & set(sys.modules))


def spans() -> tuple[bool, list[str]]:
    """Open no spans, as server and worker do without an endpoint."""
    import_module("tunefleet.api.app")
    import_module("tunefleet.worker.main")
    from tunefleet.observability.spans import open_spans

    opened = open_spans(None, "x", "1")
    # FastAPI looks for OpenTelemetry's API by itself.
    packages = ("opentelemetry.sdk", "opentelemetry.exporter")
    return opened is None, [name for name in sys.modules if name.startswith(packages)]


def blobs(folder: Path) -> tuple[list[str], str]:
    """Open the store of a server without a bucket; then one in S3, where boto3 is missing."""
    from tunefleet.errors import MachineError
    from tunefleet.orchestrator.storage.blob_stores import open_blobs
    from tunefleet.settings import ServerSettings, load

    open_blobs(load(ServerSettings, data=folder))
    found = sorted(CLOUDS & set(sys.modules))
    sys.modules["boto3"] = None  # type: ignore[assignment]
    try:
        open_blobs(load(ServerSettings, data=folder, artifacts="s3://bucket"))
    except MachineError as error:
        return found, str(error)
    return found, "opened"


def main(folder: Path) -> None:
    """Import them in this order: what came earlier is there for what comes later."""
    found = {"validators": validators(), "reopened": reopened(folder), "offers": offers()}
    print(json.dumps({**found, "spans": spans(), "blobs": blobs(folder)}))


main(Path(sys.argv[1]))
