"""Choice of the engine, and the engine itself: never silently another one than requested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from tunefleet.errors import MachineError
from tunefleet.runtime import envs
from tunefleet.spec.tasks.item_tasks import AnsweringTaskSpec
from tunefleet.trainer_control.journal.null import Journal
from tunefleet.workloads.engine.client import connect
from tunefleet.workloads.engine.protocol import Engine, EngineModel
from tunefleet.workloads.inference.weights import EngineName


def choose(spec: AnsweringTaskSpec, gpus: Sequence[str]) -> EngineName:
    """Return the engine of a task: vLLM if requested, or with a GPU if vLLM is installed; else Transformers.

    Raises:
        MachineError: If vLLM is requested but cannot run here.
    """
    # vLLM is used on GPUs only.
    if spec.enforce_cpu:
        return "transformers"
    unavailable = _without_vllm()
    if spec.model.vllm is not None and unavailable is not None:
        raise MachineError(
            f"The spec has a model.vllm block, but vLLM cannot run here. {unavailable}",
            hint="Without that block the task runs with Transformers.",
        )
    asked = spec.model.vllm is not None
    return "vllm" if asked or (gpus and unavailable is None and spec.model.transformers is None) else "transformers"


def _without_vllm() -> str | None:
    return None if find_spec("vllm") is not None else envs.reason("vllm")


@contextmanager
def opened(model: EngineModel, gpus: Sequence[str], journal: Journal) -> Iterator[Engine]:
    """Yield an engine with the model loaded.

    Raises:
        ModelError: If the model or an adapter cannot be loaded.
    """
    engine = connect(model, gpus=gpus, say=lambda text: journal.event("engine.said", text, "warning"))
    how = ("engine.warm", "was already loaded") if engine.was_loaded else ("engine.loaded", "is loaded")
    about = {"engine": engine.name, "pid": engine.pid}
    journal.event(how[0], f"{model.identifier} {how[1]} in {engine.name}.", data=about)
    try:
        yield engine
    finally:
        engine.close()
