"""An endpoint's job: load the model, serve HTTP on the job's socket, write the result."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Final

import uvicorn

from tunefleet.fsutil import write_file
from tunefleet.runtime.chat_channel import END_FILE, http_socket
from tunefleet.spec import ServeTaskSpec
from tunefleet.spec.tasks.serve_task import endpoint_name
from tunefleet.workloads.common.job import open_task
from tunefleet.workloads.inference import engines
from tunefleet.workloads.serve.app import OpenAiRoutes
from tunefleet.workloads.serve.models import ServedModels

_LOOK_S: Final = 0.2
# How long open requests may take after the end was requested; the relay has no open ones then.
_GRACE_S: Final = 10


def run(folder: Path) -> None:
    """Run the endpoint of a job folder.

    Raises:
        InputError: If model or options cannot be used.
    """
    task = open_task(folder, ServeTaskSpec)
    spec, session, journal = task.spec, task.session, task.journal
    session.status.write(state="running", phase="loading")
    engine = engines.choose(spec, task.job.gpus)
    model = engines.engine_model(spec, task.job.inputs, task.workspace, engine)
    models = ServedModels(task.job, spec, model, lambda text: journal.event("engine.said", text, "warning"))
    try:
        session.status.write(phase="ready")
        data = {"models": models.names, "engine": engine}
        journal.event("endpoint.ready", f"The endpoint is ready: {', '.join(models.names)}.", data=data)
        _serve(folder, OpenAiRoutes(models, spec.inference))
    finally:
        models.close()
    name = endpoint_name(task.job.spec, task.job.task_id)
    result = {"ok": True, "model": spec.model.source.identifier, "models": list(models.names), "endpoint": name}
    write_file(task.folder.responses_json, json.dumps({**result, "ended": "asked"}, indent=1).encode())
    journal.event("endpoint.ended", "The endpoint has ended.")


def _serve(folder: Path, routes: OpenAiRoutes) -> None:
    socket = http_socket(folder)
    # A killed launch leaves its socket file, on which bind would fail.
    socket.unlink(missing_ok=True)
    (folder / END_FILE).unlink(missing_ok=True)
    config = uvicorn.Config(
        routes.app(), uds=str(socket), log_config=None, access_log=False, timeout_graceful_shutdown=_GRACE_S,
        lifespan="off",
    )  # fmt: skip
    server = uvicorn.Server(config)
    over = threading.Event()
    threading.Thread(target=_await_end, args=(folder, server, over), name="end", daemon=True).start()
    try:
        server.run()
    finally:
        over.set()
        socket.unlink(missing_ok=True)


def _await_end(folder: Path, server: uvicorn.Server, over: threading.Event) -> None:
    while not over.wait(_LOOK_S):
        if (folder / END_FILE).exists():
            server.should_exit = True
            return
