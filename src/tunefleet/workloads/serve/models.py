"""The models of an endpoint by their ids: the endpoint's name, the base model and the adapters."""

from __future__ import annotations

from collections.abc import Callable

from tunefleet.schemas.job_folder import Job
from tunefleet.spec import ServeTaskSpec
from tunefleet.spec.tasks.serve_task import endpoint_name
from tunefleet.workloads.engine.client import connect
from tunefleet.workloads.engine.protocol import Engine, EngineModel
from tunefleet.workloads.inference.engines import CHECKPOINT, runtime_adapters


def adapter_ids(job: Job, spec: ServeTaskSpec, model: EngineModel) -> dict[str, str | None]:
    """Return the ids that a request may name, the default first, each with its adapter; None for the model itself."""
    loaded = runtime_adapters(model)
    # Weights from `checkpoint.load` are what the endpoint is for, so its name means them.
    own = CHECKPOINT if CHECKPOINT in loaded else None
    ids: dict[str, str | None] = {endpoint_name(job.spec, job.task_id): own}
    if not any(each.merge for each in model.adapters) and (spec.start is None or own is not None):
        ids.setdefault(spec.model.source.identifier, None)
    return ids | {name: name for name in loaded if name != CHECKPOINT}


class ServedModels:
    """The engine of an endpoint.

    Raises:
        ModelError: If the model or an adapter cannot be loaded.
    """

    def __init__(self, job: Job, spec: ServeTaskSpec, model: EngineModel, say: Callable[[str], None]) -> None:
        self._ids = adapter_ids(job, spec, model)
        self._engine = connect(model, gpus=job.gpus, say=say)
        self.names = tuple(self._ids)
        self.default = self.names[0]

    def is_open(self, name: str) -> bool:
        """Return True: all models share one engine."""
        del name
        return True

    def of(self, name: str | None) -> tuple[Engine, str | None]:
        """Return the engine for a request, and the name of the adapter in it."""
        return self._engine, self._ids[name or self.default]

    def close(self) -> None:
        """Release the engine; it stays warm for a while."""
        self._engine.close()
